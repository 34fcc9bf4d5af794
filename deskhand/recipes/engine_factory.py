"""Build the engine of a config. Entry point: `build_engine`, used by `recipes.assemble` and benchmarks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deskhand.config.schema import EngineConfig
from deskhand.config.trainer import LoraConfig
from deskhand.engines import sglang_protocol, vllm
from deskhand.engines.http_engine.engine import ServerTimeouts
from deskhand.engines.openai_endpoint import OpenAIEndpointEngine
from deskhand.errors import ConfigError
from deskhand.models.load import LoadedModel, check_checkpoint, checkpoint_folder, load, load_processors
from deskhand.recorder.renderer import ChatRenderer
from deskhand.types import Engine
from deskhand.venvs import newest_venv


@dataclass(frozen=True)
class EngineBundle:
    """A running engine with the renderer and image processor of its model."""

    engine: Engine
    renderer: ChatRenderer
    image_processor: Any
    context_tokens: int
    """Maximum tokens of prompt and reply."""
    model: LoadedModel | None = None
    """The model, if the engine runs in this process."""


async def build_engine(
    engine: EngineConfig,
    checkpoint: str,
    version: int,
    *,
    device: str,
    dtype: str,
    run_dir: Path,
    read_png: Callable[[str], bytes],
    lora: LoraConfig | None = None,
    max_images: int = 1,
    served_checkpoint: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> EngineBundle:
    """Start or connect the engine for a checkpoint.

    Args:
        engine: Settings. checkpoint: Checkpoint to serve. version: Version of its weights. device: Torch device. dtype:
        Precision of the weights. run_dir: Folder for a server's log and weight files. read_png: Returns a screenshot by
        its SHA-256 (for OpenAI-compatible endpoints). lora: LoRA settings of the trainer. max_images: Maximum images
        per prompt. served_checkpoint: Checkpoint that a running server has loaded (default: `checkpoint`), unless
        weights were pushed
            to it; it loads `checkpoint` if they differ.
        environment: Environment variables (default: those of the process).

    Raises:
        ConfigError: The settings do not match the server or the environment.
    """
    environment = os.environ if environment is None else environment
    if engine.backend == "hf":
        from deskhand.engines.hf import HfEngine

        model = load(checkpoint, dtype=dtype, device=device)
        renderer = ChatRenderer(model.tokenizer, source=checkpoint, history=engine.rewritten_history)
        served = HfEngine(model, engine, version=version)
        return EngineBundle(served, renderer, model.image_processor, engine.max_model_len, model)
    tokenizer, processor = load_processors(checkpoint)
    renderer = ChatRenderer(tokenizer, source=checkpoint, history=engine.rewritten_history)
    key = _key(engine.api_key_env, environment)
    if engine.backend == "openai":
        assert engine.base_url is not None
        assert engine.served_model_name is not None
        remote = OpenAIEndpointEngine(engine.base_url, engine.served_model_name, tokenizer, read_png, api_key=key)
        return EngineBundle(remote, renderer, processor, engine.max_model_len)
    patience = replace(ServerTimeouts(), outage_s=engine.server_timeout_s)
    if engine.base_url is not None:  # already running: no wait until it has loaded its weights
        patience = replace(patience, start_s=engine.server_timeout_s)
        connect = vllm.connect_vllm if engine.backend == "vllm" else sglang_protocol.connect_sglang
        served = connect(engine.base_url, processor, run_dir, api_key=key, version=version, patience=patience)
    else:
        served = vllm.launch_vllm(
            checkpoint_folder(checkpoint),
            processor,
            engine.venv_python or newest_venv("vllm", environment) / "bin" / "python",
            run_dir,
            device="cpu" if device == "cpu" else "cuda",
            dtype=dtype,
            max_tokens=engine.max_model_len,
            max_batch=engine.max_num_seqs,
            max_images=max_images,
            memory_share=engine.gpu_memory_utilization,
            adapter_rank=lora.rank
            if lora is not None and sends_lora_only(lora, check_checkpoint(checkpoint)[1])
            else None,
            adapter_tower=lora is not None and lora.vision,
            arguments=engine.extra_args,
            version=version,
            patience=patience,
        )
    await served.start()
    if engine.base_url is not None and (checkpoint != (served_checkpoint or checkpoint) or served.was_told):
        await served.load_checkpoint(version, checkpoint_folder(checkpoint).resolve())
    return EngineBundle(served, renderer, processor, min(served.max_tokens, engine.max_model_len))


def sends_lora_only(lora: LoraConfig, family: str) -> bool:
    """Whether a vLLM launched here receives LoRA alone: not with 4-bit weights, and with LoRA on the vision tower only
    for the family in which vLLM's results are tested against the trainer's."""
    return not lora.load_in_4bit and (family == "qwen3_vl" or not lora.vision)


def _key(variable: str | None, environment: Mapping[str, str]) -> str | None:
    if variable is None:
        return None
    if not environment.get(variable):
        raise ConfigError(
            f"engine.api_key_env: environment variable {variable} is not set; set it to the server's API key"
        )
    return environment[variable]
