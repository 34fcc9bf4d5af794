"""vLLM's server: its protocol, and how to start or connect to one. Used by `recipes.engine_factory`.

`POST /inference/v1/generate` (`--enable-scale-out`) takes and returns token ids; development routes
(`VLLM_SERVER_DEV_MODE=1`) load weights. vLLM expands placeholders, and silently expands expanded ids again, so the
served ids are requested and compared on every call. An image is sent to a server once and referred to by hash
afterwards. `--logprobs-mode processed_logprobs` gives the log-probs defined by `Sampling`, except that `top_p` and
grammars renormalize them (see `Sampling.restriction`). A server with `--enable-lora` and
`VLLM_ALLOW_RUNTIME_LORA_UPDATING=1` keeps its weights and loads adapters (`/v1/load_lora_adapter`); requests in flight
finish with the adapter they started with.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any, Literal

from deskhand.engines.http_engine.endpoint import HttpEndpoint, RequestRejected
from deskhand.engines.http_engine.engine import HttpEngine, ServerTimeouts, connect_server
from deskhand.engines.http_engine.image_encoding import ImageEncoder
from deskhand.engines.http_engine.protocol import (
    CONTROL_S,
    LOAD_S,
    MAX_LOADED_LORAS,
    RetryRequest,
    ServerProtocol,
    StaleWeights,
    build_completion,
    collapse_placeholders,
    finish_reason_of,
)
from deskhand.engines.http_engine.server_process import ServerProcess
from deskhand.errors import ConfigError, RecordError
from deskhand.models.families import FAMILIES
from deskhand.models.load import check_checkpoint
from deskhand.types import Completion, Prompt, Sampling
from deskhand.venvs import install_command

EXTENSION = "deskhand_worker.Extension"
"""Worker extension of servers started by Deskhand (`worker/deskhand_worker.py`)."""
_HERE = Path(__file__).parent
_PASSED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "USER",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "HF_HOME",
    "XDG_CACHE_HOME",
)
"""Environment variables passed to the server: no keys, no proxies."""
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""LoRA ranks supported by vLLM."""
_NEVER = -100.0
"""Bias of banned ids, the lowest that vLLM accepts; e^-100 is zero in float32."""


class VllmProtocol(ServerProtocol):
    """Protocol of vLLM."""

    name = "vLLM"

    def __init__(self, images: ImageEncoder) -> None:
        super().__init__(images)
        self._sent: set[str] = set()
        """Hashes of images that the server has received."""
        self._model = ""
        self._reload: str | None = None
        """Worker method that loads weights; None if the server cannot load any."""

    async def inspect(self, endpoint: HttpEndpoint) -> int:
        listed = await endpoint.get("/v1/models", timeout_s=CONTROL_S)
        self._model = listed["data"][0]["id"]
        try:
            info = await endpoint.get("/server_info", timeout_s=CONTROL_S, query={"config_format": "json"})
        except RequestRejected as error:
            raise ConfigError(
                f"{endpoint.name}: no development routes ({error.status}); start vLLM with VLLM_SERVER_DEV_MODE=1"
            ) from None
        settings = info["vllm_config"]
        adapters = settings.get("lora_config")
        self.supports_lora = adapters is not None
        self.supports_vision_lora = bool(adapters and adapters.get("enable_tower_connector_lora"))
        has_extension = settings["parallel_config"].get("worker_extension_cls") == EXTENSION
        is_cpu = settings["device_config"].get("device_type") == "cpu"
        self._reload = "take_weights" if has_extension else None if is_cpu else "reload_weights"
        mode = settings["model_config"].get("logprobs_mode")
        if mode != "processed_logprobs":
            raise ConfigError(
                f"{endpoint.name}: log-probs mode is {mode}; start vLLM with --logprobs-mode processed_logprobs"
            )
        try:
            await endpoint.post("/inference/v1/generate", {}, timeout_s=CONTROL_S)
        except RequestRejected as error:
            if error.status in (403, 404):
                raise ConfigError(
                    f"{endpoint.name}: no route /inference/v1/generate; start vLLM with --enable-scale-out"
                ) from None
        return int(listed["data"][0]["max_model_len"])

    async def label(self, endpoint: HttpEndpoint) -> str:
        return str((await endpoint.get("/weight_info", timeout_s=CONTROL_S))["weight_version"])

    async def set_label(self, endpoint: HttpEndpoint, label: str) -> None:
        await endpoint.post("/update_weight_version", {"new_version": label}, timeout_s=CONTROL_S)

    async def load_weights(self, endpoint: HttpEndpoint, folder: Path, label: str) -> None:
        """Load weights. Requests in flight are queued again, so their keys and values are recomputed.

        All caches are reset: the worker drops its encoder cache with the old weights, and a scheduler that still relies
        on it would crash the engine at the next known image.
        """
        if self._reload is None:
            raise ConfigError(
                f"{endpoint.name}: on CPUs vLLM keeps the old weights of a tied output layer; "
                "set engine.venv_python instead of engine.base_url"
            )
        await self.pause(endpoint)
        body = {"method": self._reload, "kwargs": {"weights_path": str(folder)}}
        await endpoint.post("/collective_rpc", body, timeout_s=LOAD_S)
        await endpoint.post("/reset_mm_cache", timeout_s=CONTROL_S)
        await endpoint.post("/reset_encoder_cache", timeout_s=CONTROL_S)
        await endpoint.post("/reset_prefix_cache", timeout_s=CONTROL_S, query={"reset_running_requests": "true"})
        await self.set_label(endpoint, label)

    async def load_adapter(self, endpoint: HttpEndpoint, name: str, folder: Path) -> None:
        body = {"lora_name": name, "lora_path": str(folder)}
        await endpoint.post("/v1/load_lora_adapter", body, timeout_s=LOAD_S, read=False)

    async def unload_adapter(self, endpoint: HttpEndpoint, name: str) -> None:
        await endpoint.post("/v1/unload_lora_adapter", {"lora_name": name}, timeout_s=CONTROL_S, read=False)

    async def pause(self, endpoint: HttpEndpoint) -> None:
        await endpoint.post("/pause", timeout_s=CONTROL_S, query={"mode": "keep", "clear_cache": "false"})

    async def resume(self, endpoint: HttpEndpoint) -> None:
        await endpoint.post("/resume", timeout_s=CONTROL_S)

    def forget(self) -> None:
        self._sent.clear()

    async def generate(
        self, endpoint: HttpEndpoint, prompt: Prompt, sampling: Sampling, timeout_s: float
    ) -> Completion:
        names = [span.sha256 for span in prompt.spans]
        known = self._sent.intersection(names)
        lora = self.lora
        body: dict[str, Any] = {
            "model": lora.name if lora is not None else self._model,
            "token_ids": collapse_placeholders(prompt),
            "sampling_params": _sampling(sampling),
            "return_token_ids": True,
        }
        if names:
            body["content_parts"] = await asyncio.to_thread(image_parts, prompt, self._images, known)
        try:
            reply = await endpoint.post("/inference/v1/generate", body, timeout_s=timeout_s)
        except RequestRejected as error:
            found = self.rejection(error, endpoint, sampling, lora)
            if known and not isinstance(found, StaleWeights):  # it may have evicted one of them
                self._sent -= known
                raise RetryRequest(f"{error}; sending its images again") from None
            raise found from None
        self._sent.update(names)
        choice = reply["choices"][0]
        finish_reason = finish_reason_of(endpoint.name, choice["finish_reason"])
        served = tuple(reply["prompt_token_ids"])
        placed = [(place["offset"], place["length"]) for place in (reply.get("mm_placeholders") or {}).get("image", ())]
        if served == prompt.token_ids and placed != [(span.start, span.count) for span in prompt.spans]:
            raise RecordError("placeholders", f"{endpoint.name} placed images at {placed[:4]}, unlike the prompt")
        content = choice["logprobs"]["content"]
        return build_completion(
            endpoint.name,
            sampling,
            lora,
            finish_reason=finish_reason,
            token_ids=choice["token_ids"],
            scored=[_scored(entry) for entry in content],
            weight_versions=choice.get("weight_versions"),
            served_ids=served,
            likely=[
                sorted(map(_scored, entry["top_logprobs"]), key=lambda one: -one[1])[: sampling.top_logprobs]
                for entry in content
            ],
        )


def image_parts(prompt: Prompt, encoder: ImageEncoder, known: Set[str] = frozenset()) -> list[dict[str, Any]]:
    """Return the images of a prompt as vLLM's content parts; those in `known`, and repeated ones, by hash alone."""
    images, parts = prompt.images or {}, list[dict[str, Any]]()
    for sha256 in (span.sha256 for span in prompt.spans):
        url = None if sha256 in known else encoder.data_uri(images[sha256])
        known = known | {sha256}
        parts.append({"type": "image_url", "url": url, "uuid": sha256})
    return parts


def _sampling(sampling: Sampling) -> dict[str, Any]:
    """Return vLLM's `SamplingParams`. With `ignore_eos` only `stop_ids` stop a reply."""
    params: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "stop_token_ids": list(sampling.stop_ids),
        "ignore_eos": True,
        "detokenize": bool(sampling.stop_texts),
        "logprobs": sampling.top_logprobs,
        "logit_bias": {str(banned): _NEVER for banned in sampling.banned_ids},
    }
    if sampling.stop_texts:
        params |= {"stop": list(sampling.stop_texts), "include_stop_str_in_output": True, "skip_special_tokens": False}
    if sampling.seed is not None:
        params["seed"] = sampling.seed
    if sampling.grammar is not None:
        kind = "json" if sampling.grammar.kind == "json_schema" else "regex"
        text = sampling.grammar.text
        params["structured_outputs"] = {kind: json.loads(text) if kind == "json" else text}
    return params


def _scored(entry: Mapping[str, Any]) -> tuple[int, float]:
    return entry["token_id"], entry["logprob"]


def launch_vllm(  # noqa: PLR0913
    model: str | Path,
    image_processor: Any,
    python: str | Path,
    folder: Path,
    *,
    device: Literal["cpu", "cuda"] = "cpu",
    dtype: str = "float32",
    max_tokens: int = 8192,
    max_batch: int = 16,
    max_images: int = 16,
    memory_share: float | None = None,
    adapter_rank: int | None = None,
    adapter_tower: bool = False,
    threads: int | None = None,
    arguments: Sequence[str] = (),
    version: int = 0,
    patience: ServerTimeouts | None = None,
) -> HttpEngine:
    """Return an engine with its own vLLM server, which `HttpEngine.start` launches.

    Args:
        python: Python of vLLM's environment (`scripts/environment vllm` creates one for CPUs).
        folder: Folder for the log and published weights.
        max_images: Maximum images in one prompt.
        memory_share: Share of GPU memory for the server (default: vLLM's).
        adapter_rank: Rank of LoRA adapters; None to publish full weights.
        adapter_tower: Whether adapters include the vision tower.
        threads: CPU threads (default: all cores but one).
        arguments: Additional command-line arguments of vLLM.
    """
    if not os.access(python, os.X_OK):
        raise ConfigError(
            f"engine.venv_python: {python} is not an executable; create it with {install_command('vllm')}"
        )
    _, family = check_checkpoint(str(model))
    on_cpu_with_states = device == "cpu" and FAMILIES[family].linear_interval > 0
    if on_cpu_with_states and dtype != "bfloat16":
        raise ConfigError(f"dtype {dtype}: vLLM serves {family} on a CPU in bfloat16 only; set dtype to bfloat16")

    def command(socket: str) -> list[str]:
        return [
            *(str(python), str(_HERE / "serve.py")),
            *("--model", str(model), "--served-model-name", "policy", "--uds", socket),
            # vLLM treats a checkpoint without an architecture in config.json as an embedding model.
            *("--runner", "generate", "--hf-overrides", f'{{"architectures":["{FAMILIES[family].architecture}"]}}'),
            *("--dtype", dtype, "--max-model-len", str(max_tokens), "--max-num-seqs", str(max_batch)),
            *("--limit-mm-per-prompt", f'{{"image":{max_images},"video":0}}'),
            *("--logprobs-mode", "processed_logprobs", "--enable-scale-out", "--generation-config", "vllm"),
            *("--worker-extension-cls", EXTENSION, "--disable-uvicorn-access-log"),
            *(("--enforce-eager",) if device == "cpu" else ()),
            # With prefix caching vLLM 0.32 splits prompts of such models, and on a CPU it fails if these have a seed.
            *(("--no-enable-prefix-caching",) if on_cpu_with_states else ()),
            *(
                ("--gpu-memory-utilization", f"{memory_share:g}")
                if device == "cuda" and memory_share is not None
                else ()
            ),
            *(_adapters(adapter_rank, adapter_tower) if adapter_rank is not None else ()),
            *arguments,
        ]

    environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
    environment |= {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONSAFEPATH": "1",  # keeps the folder of serve.py off the import path
    }
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(_HERE / "worker"), *([str(_HERE / "site")] if device == "cpu" else [])]
    )
    if device == "cpu":
        cores = str(threads or max(1, (os.cpu_count() or 2) - 1))
        environment |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": cores, "VLLM_CPU_KVCACHE_SPACE": "1"}
        # No compilation: the helpers that vLLM compiles even in eager mode delay the first request by about 20 s.
        environment |= {"VLLM_TARGET_DEVICE": "cpu", "TORCHDYNAMO_DISABLE": "1"}
    server = ServerProcess(command, environment, folder / "vllm.log")
    return HttpEngine(
        VllmProtocol(ImageEncoder(image_processor)), folder, server=server, version=version, patience=patience
    )


def _adapters(rank: int, tower: bool) -> tuple[str, ...]:
    max_rank = next((size for size in _RANKS if size >= rank), None)
    if max_rank is None:
        raise ConfigError(
            f"policy.lora.rank: vLLM supports ranks up to {_RANKS[-1]}, got {rank}; lower it or use engine.backend hf"
        )
    return (
        *("--enable-lora", "--max-lora-rank", str(max_rank)),
        *("--max-loras", str(MAX_LOADED_LORAS), "--max-cpu-loras", str(MAX_LOADED_LORAS)),
        *(("--enable-tower-connector-lora",) if tower else ()),
    )


connect_vllm = partial(connect_server, VllmProtocol)
