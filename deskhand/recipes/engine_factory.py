"""Build the engine of a config. Entry point: `build_engine`, used by `recipes.assemble` and benchmarks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deskhand import registry
from deskhand.config.schema import EngineConfig
from deskhand.config.trainer import LoraConfig
from deskhand.engines import sglang_protocol, vllm
from deskhand.engines.http_engine.engine import ServerTimeouts
from deskhand.engines.openai_endpoint import OpenAIEndpointEngine
from deskhand.errors import ConfigError
from deskhand.models.families import FAMILIES
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


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """What an engine is built for: the argument of a function that `engine.backend` names, which returns an
    `EngineBundle`."""

    config: EngineConfig
    checkpoint: str
    version: int = 0
    """Version of the checkpoint's weights."""
    device: str
    dtype: str
    run_dir: Path
    """For a server's log and the weights that are published to it."""
    read_png: Callable[[str], bytes]
    """A screenshot by its sha256, for endpoints."""
    lora: LoraConfig | None = None
    """Adapters that the engine is sent."""
    max_images: int = 1
    """Images in one prompt."""
    served_checkpoint: str = ""
    """What a running server holds until weights are published to it; empty is `checkpoint`."""
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def api_key(self) -> str | None:
        variable = self.config.api_key_env
        if variable is not None and not self.environment.get(variable):
            raise ConfigError(
                f"engine.api_key_env: environment variable {variable} is not set; set it to the server's API key"
            )
        return self.environment[variable] if variable is not None else None

    @property
    def timeouts(self) -> ServerTimeouts:
        return replace(ServerTimeouts(), outage_s=self.config.server_timeout_s)

    def renderer(self, tokenizer: Any) -> ChatRenderer:
        """The checkpoint's chat renderer."""
        return ChatRenderer(tokenizer, source=self.checkpoint, history=self.config.rewritten_history)


async def build_engine(request: EngineRequest) -> EngineBundle:
    """The engine of `engine.backend` for a checkpoint. Raises `ConfigError`."""
    backend = request.config.backend
    found = await registry.resolve("engine", backend)(request)
    if not isinstance(found, EngineBundle):
        raise ConfigError(f"engine.backend: {backend} must return an EngineBundle, got {type(found).__name__}")
    return found


async def build_hf(request: EngineRequest) -> EngineBundle:
    """The engine of this process."""
    from deskhand.engines.hf import HfEngine

    config = request.config
    model = load(request.checkpoint, dtype=request.dtype, device=request.device)
    served = HfEngine(model, config, version=request.version)
    return EngineBundle(served, request.renderer(model.tokenizer), model.image_processor, config.max_model_len, model)


async def build_endpoint(request: EngineRequest) -> EngineBundle:
    """Any OpenAI-compatible endpoint, for evaluation only."""
    config, (tokenizer, processor) = request.config, load_processors(request.checkpoint)
    assert config.base_url is not None
    assert config.served_model_name is not None
    served = OpenAIEndpointEngine(
        config.base_url, config.served_model_name, tokenizer, request.read_png, api_key=request.api_key
    )
    return EngineBundle(served, request.renderer(tokenizer), processor, config.max_model_len)


async def build_sglang(request: EngineRequest) -> EngineBundle:
    """A running SGLang server."""
    return await _connect(request, sglang_protocol.connect_sglang)


async def build_vllm(request: EngineRequest) -> EngineBundle:
    """A running vLLM server, or one that is started here."""
    config, lora = request.config, request.lora
    if config.base_url is not None:
        return await _connect(request, vllm.connect_vllm)
    tokenizer, processor = load_processors(request.checkpoint)
    adapters_only = lora is not None and sends_lora_only(lora, check_checkpoint(request.checkpoint)[1])
    served = vllm.launch_vllm(
        checkpoint_folder(request.checkpoint),
        processor,
        config.venv_python or newest_venv("vllm", request.environment) / "bin" / "python",
        request.run_dir,
        device="cpu" if request.device == "cpu" else "cuda",
        dtype=request.dtype,
        max_tokens=config.max_model_len,
        max_batch=config.max_num_seqs,
        max_images=request.max_images,
        memory_share=config.gpu_memory_utilization,
        adapter_rank=lora.rank if lora is not None and adapters_only else None,
        adapter_tower=lora is not None and lora.vision,
        arguments=config.extra_args,
        version=request.version,
        patience=request.timeouts,
    )
    await served.start()
    return EngineBundle(served, request.renderer(tokenizer), processor, min(served.max_tokens, config.max_model_len))


async def _connect(request: EngineRequest, connect: Callable[..., Any]) -> EngineBundle:
    """A running server, which holds the checkpoint afterwards. Its weights are loaded already, so it has less time to
    answer."""
    config, (tokenizer, processor) = request.config, load_processors(request.checkpoint)
    patience = replace(request.timeouts, start_s=config.server_timeout_s)
    served = connect(
        config.base_url, processor, request.run_dir, api_key=request.api_key, version=request.version, patience=patience
    )
    await served.start()
    if request.checkpoint != (request.served_checkpoint or request.checkpoint) or served.had_other_weights:
        await served.load_checkpoint(request.version, checkpoint_folder(request.checkpoint).resolve())
    return EngineBundle(served, request.renderer(tokenizer), processor, min(served.max_tokens, config.max_model_len))


def sends_lora_only(lora: LoraConfig, family: str) -> bool:
    """Whether a vLLM launched here receives LoRA alone: not with 4-bit weights, and else by family."""
    known = FAMILIES[family]
    return not lora.load_in_4bit and known.serves_lora and (known.serves_vision_lora or not lora.vision)
