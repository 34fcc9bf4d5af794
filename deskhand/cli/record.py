"""`deskhand record`: record the model calls of an unmodified agent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from deskhand.cli.common import Flag
from deskhand.errors import ConfigError


def record(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    upstream: str,
    out: Path,
    checkpoint: str | None = None,
    token_ids: Annotated[bool, Flag] = False,
    api_key_env: str = "UPSTREAM_API_KEY",
    host: str = "127.0.0.1",
    port: int = 0,
) -> None:
    """Record an unmodified agent's model calls as data for SFT and RL.

    Parameters
    ----------
    command
        Command of the agent, after --. It receives the recording URL and key in its environment. Without a command,
        Deskhand records until Ctrl-C.
    upstream
        URL of the engine, e.g. http://127.0.0.1:8000/v1 (chat completions, responses or Anthropic messages).
    out
        Output folder; earlier recordings in it are kept.
    checkpoint
        Model behind the URL (folder, hub name or tiny), to also write call graphs with token ids.
    token_ids
        Request token ids and log-probs in vLLM's form.
    api_key_env
        Environment variable with the engine's API key.
    host
        Address to listen on.
    port
        Port to listen on; 0 selects a free one.
    """
    import asyncio

    from deskhand.recipes import record as recipe

    if checkpoint is not None:
        from deskhand.models.load import check_checkpoint

        check_checkpoint(checkpoint, download=False)  # only its tokenizer and chat template are read
    code, has_started = 0, True
    try:
        code = asyncio.run(
            recipe.record(
                upstream, out, command, host=host, port=port, api_key_env=api_key_env, request_token_ids=token_ids
            )
        )
    except ConfigError:
        has_started = False
        raise
    except KeyboardInterrupt:
        if command:
            raise
    finally:
        if has_started and (out / "sessions").is_dir():
            print("\n".join(recipe.write_datasets(out, checkpoint).lines()), file=sys.stderr)
    raise SystemExit(code)
