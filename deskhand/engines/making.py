"""The engine that a run's settings ask for. Invariant: what is wrong with the settings is one `ConfigError` before anything is
sampled."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deskhand.config import Config
from deskhand.engines import sglang, vllm
from deskhand.engines.base import Engine
from deskhand.engines.remote import RemoteEngine
from deskhand.engines.served.engine import Patience, ServedEngine
from deskhand.errors import ConfigError
from deskhand.models.load import LoadedModel, check, checkpoint_folder, load, load_reading
from deskhand.training.config import AdapterConfig


@dataclass(frozen=True)
class Made:
    """An engine that serves, with what the recorder reads and shows its model's conversations by."""

    engine: Engine
    tokenizer: Any
    image_processor: Any
    context_tokens: int
    """What a prompt and its reply may have together."""
    model: LoadedModel | None = None
    """The model itself, of an engine in this process."""


async def make_engine(
    config: Config,
    source: str,
    version: int,
    folder: Path,
    encoded: Callable[[str], bytes],
    environment: Mapping[str, str] | None = None,
) -> Made:
    """An engine for the checkpoint `source`, whose weights have that version. `folder` takes a server's log and the weights that
    are published to it; `encoded(sha256)` gives a screen as it was taken (for remote endpoints). A server at an address is taken to
    have the config's own model as long as nobody published anything to it; otherwise it is told to load `source`."""
    settings, environment = config.engine, os.environ if environment is None else environment
    if settings.kind == "hf":
        from deskhand.engines.hf import HfEngine

        model = load(source, dtype=config.dtype, device=config.device)
        names = ("max_batch", "max_tokens", "prefill_tokens", "parked_tokens", "image_tokens")
        engine = HfEngine(model, version=version, **{name: getattr(settings, name) for name in names})
        return Made(engine, model.tokenizer, model.image_processor, settings.max_tokens, model)
    tokenizer, processor = load_reading(source)
    key = _key(settings.key_variable, environment)
    if settings.kind == "remote":
        assert settings.url is not None
        assert settings.name is not None
        remote = RemoteEngine(settings.url, settings.name, tokenizer, encoded, api_key=key)
        return Made(remote, tokenizer, processor, settings.max_tokens)
    served = _served(config, source, processor, version, folder, key, environment)
    await served.start()
    if settings.url is not None and (source != config.model or served.was_told):
        await served.take(version, checkpoint_folder(source).resolve())
    return Made(served, tokenizer, processor, min(served.max_tokens, settings.max_tokens))


def _served(
    config: Config, source: str, processor: Any, version: int, folder: Path, key: str | None, environment: Mapping[str, str]
) -> ServedEngine:
    settings = config.engine
    patience = replace(Patience(), outage_s=settings.patience_s)
    if settings.url is not None:  # it runs already: nobody has to wait until it has read its weights
        patience = replace(patience, start_s=settings.patience_s)
        given = vllm.given if settings.kind == "vllm" else sglang.given
        return given(settings.url, processor, folder, api_key=key, version=version, patience=patience)
    adapter = config.policy.adapter
    return vllm.started(
        checkpoint_folder(source),
        processor,
        settings.python or newest_environment("vllm", environment) / "bin" / "python",
        folder,
        device="cpu" if config.device == "cpu" else "cuda",
        dtype=config.dtype,
        max_tokens=settings.max_tokens,
        max_batch=settings.max_batch,
        max_images=_most_images(config),
        memory_share=settings.memory_share,
        adapter_rank=adapter.rank if adapter is not None and sends_adapters(adapter, check(source)[1]) else None,
        adapter_tower=adapter is not None and adapter.vision,
        arguments=settings.arguments,
        version=version,
        patience=patience,
    )


def sends_adapters(adapter: AdapterConfig, family: str) -> bool:
    """Whether a vLLM that we start gets adapters alone: over weights as they are, and on the vision tower of the family for which a
    test holds vLLM to what the trainer computes."""
    return not adapter.quantise and (family == "qwen3_vl" or not adapter.vision)


def _most_images(config: Config) -> int:
    """Screens that one prompt can show under the agent's window."""
    agent = config.agent
    return {"grow_drop": agent.grow_to, "sliding": agent.keep, "full": 256}[agent.window]


def newest_environment(name: str, environment: Mapping[str, str]) -> Path:
    """The folder that `scripts/environment NAME` made last. Raises `ConfigError` when there is none."""
    home = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME", "~"), ".cache")
    place = Path(environment.get("DESKHAND_ENVIRONMENTS") or Path(home, "deskhand", "environments"))
    marks = [mark for mark in place.glob(f"{name}-*/complete") if "-" not in mark.parent.name.removeprefix(f"{name}-")]
    found = sorted(marks, key=lambda mark: mark.stat().st_mtime)
    if not found:
        raise ConfigError(f"there is no environment for {name} in {place}; make one with scripts/environment {name}")
    return found[-1].parent


def _key(variable: str | None, environment: Mapping[str, str]) -> str | None:
    """The key in a variable; its value stands in no setting and no error."""
    if variable is None:
        return None
    if not environment.get(variable):
        raise ConfigError(f"engine.key_variable: the environment variable {variable} is not set; set it to the server's key")
    return environment[variable]
