"""The engine that a run's settings ask for. Invariant: what is wrong with the settings is one `ConfigError` before anything is
sampled."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deskhand.config.load import Config
from deskhand.config.trainer import LoraConfig
from deskhand.engines import sglang_protocol, vllm
from deskhand.engines.http_engine.engine import HttpEngine, ServerTimeouts
from deskhand.engines.openai_endpoint import OpenAIEndpointEngine
from deskhand.errors import ConfigError
from deskhand.models.load import LoadedModel, check_checkpoint, checkpoint_folder, load, load_processors
from deskhand.types import Engine
from deskhand.venvs import newest_venv


@dataclass(frozen=True)
class EngineBundle:
    """An engine that serves, with what the recorder reads and shows its model's conversations by."""

    engine: Engine
    tokenizer: Any
    image_processor: Any
    context_tokens: int
    """What a prompt and its reply may have together."""
    model: LoadedModel | None = None
    """The model itself, of an engine in this process."""


async def build_engine(
    config: Config,
    source: str,
    version: int,
    folder: Path,
    encoded: Callable[[str], bytes],
    environment: Mapping[str, str] | None = None,
) -> EngineBundle:
    """An engine for the checkpoint `source`, whose weights have that version. `folder` takes a server's log and the weights that
    are published to it; `encoded(sha256)` gives a screen as it was taken (for remote endpoints). A server at an address is taken to
    have the config's own model as long as nobody published anything to it; otherwise it is told to load `source`."""
    settings, environment = config.engine, os.environ if environment is None else environment
    if settings.backend == "hf":
        from deskhand.engines.hf import HfEngine

        model = load(source, dtype=config.dtype, device=config.device)
        names = ("max_batch", "max_tokens", "prefill_tokens", "parked_tokens", "image_tokens")
        engine = HfEngine(model, version=version, **{name: getattr(settings, name) for name in names})
        return EngineBundle(engine, model.tokenizer, model.image_processor, settings.max_model_len, model)
    tokenizer, processor = load_processors(source)
    key = _key(settings.api_key_env, environment)
    if settings.backend == "remote":
        assert settings.base_url is not None
        assert settings.served_model_name is not None
        remote = OpenAIEndpointEngine(settings.base_url, settings.served_model_name, tokenizer, encoded, api_key=key)
        return EngineBundle(remote, tokenizer, processor, settings.max_model_len)
    served = _served(config, source, processor, version, folder, key, environment)
    await served.start()
    if settings.base_url is not None and (source != config.model or served.had_other_weights):
        await served.load_checkpoint(version, checkpoint_folder(source).resolve())
    return EngineBundle(served, tokenizer, processor, min(served.max_tokens, settings.max_model_len))


def _served(
    config: Config,
    source: str,
    processor: Any,
    version: int,
    folder: Path,
    key: str | None,
    environment: Mapping[str, str],
) -> HttpEngine:
    settings = config.engine
    patience = replace(ServerTimeouts(), outage_s=settings.server_timeout_s)
    if settings.base_url is not None:  # it runs already: nobody has to wait until it has read its weights
        patience = replace(patience, start_s=settings.server_timeout_s)
        given = vllm.connect_vllm if settings.backend == "vllm" else sglang_protocol.connect_sglang
        return given(settings.base_url, processor, folder, api_key=key, version=version, patience=patience)
    adapter = config.policy.lora
    return vllm.launch_vllm(
        checkpoint_folder(source),
        processor,
        settings.venv_python or newest_venv("vllm", environment) / "bin" / "python",
        folder,
        device="cpu" if config.device == "cpu" else "cuda",
        dtype=config.dtype,
        max_tokens=settings.max_model_len,
        max_batch=settings.max_num_seqs,
        max_images=_most_images(config),
        memory_share=settings.gpu_memory_utilization,
        adapter_rank=adapter.rank
        if adapter is not None and sends_lora_only(adapter, check_checkpoint(source)[1])
        else None,
        adapter_tower=adapter is not None and adapter.vision,
        arguments=settings.extra_args,
        version=version,
        patience=patience,
    )


def sends_lora_only(adapter: LoraConfig, family: str) -> bool:
    """Whether a vLLM that we start gets adapters alone: over weights as they are, and on the vision tower of the family for which a
    test holds vLLM to what the trainer computes."""
    return not adapter.load_in_4bit and (family == "qwen3_vl" or not adapter.vision)


def _most_images(config: Config) -> int:
    """Screens that one prompt can show under the agent's window."""
    agent = config.agent
    return {"grow_drop": agent.history_max_turns, "sliding": agent.sliding_turns, "full": 256}[agent.history]


def _key(variable: str | None, environment: Mapping[str, str]) -> str | None:
    """The key in a variable; its value stands in no setting and no error."""
    if variable is None:
        return None
    if not environment.get(variable):
        raise ConfigError(
            f"engine.api_key_env: the environment variable {variable} is not set; set it to the server's key"
        )
    return environment[variable]
