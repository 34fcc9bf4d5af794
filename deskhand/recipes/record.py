"""`deskhand record`: record the model calls of an unmodified agent.

`record` runs the proxy and the agent, which gets the proxy's URL and key in the environment variables its client reads.
`write_datasets` then writes `sft.jsonl` (conversations with targets and rewards) and, given a checkpoint to count image
tokens, call graphs with token ids and log-probs (`recorder.session_store`). `keys.json` has the keys, with mode 0600.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from deskhand.errors import ConfigError
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recording_proxy import (
    ExchangeLog,
    RecordingProxy,
    StoredImages,
    check_upstream,
    create_proxy_app,
)
from deskhand.recorder.renderer import IMAGE_PAD
from deskhand.recorder.session_store import SessionStore
from deskhand.recorder.sft_export import graph_of, read_session, to_sft_rows


@dataclass(frozen=True)
class ExportSummary:
    """Contents of the exported data sets; `skipped` counts missing replies by reason."""

    sessions: int
    exchanges: int
    conversations: int
    calls: int
    skipped: Counter[str]

    def lines(self) -> list[str]:
        counted = (
            f"{self.exchanges} replies of {self.sessions} sessions: {self.conversations} conversations in sft.jsonl"
        )
        more = [f"{self.calls} calls with token ids"] if self.calls else []
        return [
            ", ".join([counted, *more]),
            *(f"skipped: {count} ({reason})" for reason, count in self.skipped.most_common()),
        ]


async def record(
    upstream: str,
    folder: Path,
    command: Sequence[str] = (),
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    api_key_env: str = "UPSTREAM_API_KEY",
    request_token_ids: bool = False,
) -> int:
    """Run the proxy until the command exits (without one, until canceled).

    Return the exit code of the command, or 128 plus the number of the signal that ended it. The key of the upstream
    is read from `api_key_env`, which is removed from the command's environment.

    Raises:
        ConfigError: The upstream URL is invalid, the port cannot be bound, or the command cannot be started.
    """
    check_upstream(upstream)
    files = SessionStore(folder)
    proxy = RecordingProxy(
        upstream, files, upstream_key=os.environ.get(api_key_env, ""), ask_token_ids=request_token_ids
    )
    admin_key, session_id = secrets.token_urlsafe(32), time.strftime("session-%Y%m%d-%H%M%S-") + secrets.token_hex(2)
    key = proxy.sessions.open(session_id)
    with _listen(host, port) as listener:
        address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        _write_keys(
            folder / "keys.json", {"address": address, "session": session_id, "api_key": key, "admin_key": admin_key}
        )
        app = create_proxy_app(proxy, admin_key)
        server = _ProxyServer(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
        serving = asyncio.create_task(server.serve([listener]))
        try:
            if command:
                return await _run(command, agent_environment(os.environ, address, key, api_key_env))
            print(f"recording {address}/v1 in front of {proxy.upstream}; keys in {folder / 'keys.json'}", flush=True)
            await serving
            return 0
        finally:
            server.should_exit = True
            with suppress(asyncio.CancelledError):
                await serving
            await proxy.close()


def agent_environment(base: Mapping[str, str], address: str, key: str, key_env: str) -> dict[str, str]:
    """Return the environment of an agent whose OpenAI or Anthropic client calls `address` directly."""
    local = ",".join(filter(None, [base.get("NO_PROXY") or base.get("no_proxy"), "127.0.0.1,localhost"]))
    return {
        **{name: value for name, value in base.items() if name != key_env},
        "OPENAI_BASE_URL": f"{address}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": address,
        "ANTHROPIC_API_KEY": key,
        "NO_PROXY": local,
        "no_proxy": local,
    }


def write_datasets(folder: Path, checkpoint: str | None = None) -> ExportSummary:
    """Write the data sets of a recording. `checkpoint`: folder, hub id or "tiny"; enables call graphs."""
    files = SessionStore(folder)
    log, stored_images = ExchangeLog(files), StoredImages(files)
    images, image_id = (None, -1) if checkpoint is None else _load_images(checkpoint, files)
    sessions = exchanges = rows = calls = 0
    skipped: Counter[str] = Counter()
    partial = folder / "sft.jsonl.partial"
    with partial.open("w", encoding="utf-8") as out:
        for session_id in log.sessions():
            recorded = read_session(log, stored_images, session_id)
            sessions, exchanges = sessions + 1, exchanges + len(recorded.exchanges)
            for row in to_sft_rows(recorded):
                out.write(json.dumps(row, ensure_ascii=False) + "\n")
                rows += 1
            if images is not None:
                graph = graph_of(recorded, images, image_id)
                if graph.calls:
                    files.finish(session_id, graph, recorded.rewards.of_calls(graph.ids))
                calls += len(graph.calls)
            skipped.update(recorded.skipped)
    partial.replace(folder / "sft.jsonl")
    return ExportSummary(sessions, exchanges, rows, calls, skipped)


def _load_images(checkpoint: str, files: SessionStore) -> tuple[ImageCache, int]:
    from deskhand.models.load import load_processors

    tokenizer, image_processor = load_processors(checkpoint)
    image_id = tokenizer.convert_tokens_to_ids(IMAGE_PAD)
    if not isinstance(image_id, int):
        raise ConfigError(f"{checkpoint}: its tokenizer has no {IMAGE_PAD}; use a Qwen2.5-VL or Qwen3-VL checkpoint")
    return ImageCache(image_processor, fetch=files.image), image_id


class _ProxyServer(uvicorn.Server):
    """Server that leaves signals to the command line."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128
        )
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "ports are 0 to 65535"
        raise ConfigError(f"{host}:{port} cannot be bound ({why}); choose another --host or --port") from None


def _write_keys(path: Path, keys: Mapping[str, str]) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(keys, file, indent=1)


async def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    try:
        process = await asyncio.create_subprocess_exec(*command, env=dict(environment))
    except OSError as error:
        raise ConfigError(f"{command[0]}: cannot be started ({error.strerror}); check the command") from None
    try:
        code = await process.wait()
        return code if code >= 0 else 128 - code
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        await process.wait()
        raise
