"""vLLM's server protocol. Used by `vllm.launch`.

`POST /inference/v1/generate` (`--enable-scale-out`) takes and returns token ids; development routes
(`VLLM_SERVER_DEV_MODE=1`) load weights. vLLM expands placeholders, and silently expands expanded ids again, so the
served ids are requested and compared on every call. An image is sent to a server once and referred to by hash
afterwards. `--logprobs-mode processed_logprobs` gives the log-probs defined by `Sampling`, except that `top_p` and
grammars renormalize them; such completions are not exact. A server with `--enable-lora` and
`VLLM_ALLOW_RUNTIME_LORA_UPDATING=1` keeps its weights and loads adapters (`/v1/load_lora_adapter`); requests in flight
finish with the adapter they started with.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deskhand.engines.http_engine.endpoint import HttpEndpoint, RequestRejected
from deskhand.engines.http_engine.image_encoding import ImageEncoder
from deskhand.engines.http_engine.lora_versions import LoadedLora, LoraVersions
from deskhand.engines.http_engine.protocol import RetryRequest, StaleWeights, collapse_placeholders, versions_of
from deskhand.engines.http_engine.weight_files import ADAPTER_CONFIG
from deskhand.errors import ConfigError, InfrastructureError, RecordError
from deskhand.types import Completion, Feature, FinishReason, Prompt, Sampling, UnsupportedGrammar

EXTENSION = "deskhand_worker.Extension"
"""Worker extension of servers started by Deskhand (`worker/deskhand_worker.py`)."""
_CONTROL_S = 60.0
_LOAD_S = 600.0
_NEVER = -100.0
"""Bias of banned ids, the lowest that vLLM accepts; e^-100 is zero in float32."""
_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "aborted"}


class VllmProtocol:
    """`ServerProtocol` for vLLM. `images` encodes recorded pixels."""

    name = "vLLM"
    features: frozenset[Feature] = frozenset({"regex", "json_schema", "stop_texts", "top_logprobs"})

    def __init__(self, images: ImageEncoder) -> None:
        self._images = images
        self._sent: set[str] = set()
        """Hashes of images that the server has received."""
        self._model = ""
        self.supports_lora = self.supports_vision_lora = False
        self._adapters = LoraVersions()
        self._reload: str | None = None
        """Worker method that loads weights; None if the server cannot load any."""

    async def inspect(self, endpoint: HttpEndpoint) -> int:
        listed = await endpoint.get("/v1/models", timeout_s=_CONTROL_S)
        self._model = listed["data"][0]["id"]
        try:
            info = await endpoint.get("/server_info", timeout_s=_CONTROL_S, query={"config_format": "json"})
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
            await endpoint.post("/inference/v1/generate", {}, timeout_s=_CONTROL_S)
        except RequestRejected as error:
            if error.status in (403, 404):
                raise ConfigError(
                    f"{endpoint.name}: no route /inference/v1/generate; start vLLM with --enable-scale-out"
                ) from None
        return int(listed["data"][0]["max_model_len"])

    async def label(self, endpoint: HttpEndpoint) -> str:
        return str((await endpoint.get("/weight_info", timeout_s=_CONTROL_S))["weight_version"])

    async def set_label(self, endpoint: HttpEndpoint, label: str) -> None:
        await endpoint.post("/update_weight_version", {"new_version": label}, timeout_s=_CONTROL_S)

    async def load(self, endpoint: HttpEndpoint, folder: Path, label: str) -> None:
        """Load weights or an adapter.

        Requests in flight are queued again, so their keys and values are recomputed with the new weights. All caches
        are reset: the worker drops its encoder cache with the old weights, and a scheduler that still relies on it
        would crash the engine at the next known image.
        """
        if (folder / ADAPTER_CONFIG).exists():
            await self._load_lora(endpoint, folder, label)
            return
        if self._reload is None:
            raise ConfigError(
                f"{endpoint.name}: on CPUs vLLM keeps the old weights of a tied output layer; "
                "set engine.venv_python instead of engine.base_url"
            )
        await self.pause(endpoint)
        body = {"method": self._reload, "kwargs": {"weights_path": str(folder)}}
        await endpoint.post("/collective_rpc", body, timeout_s=_LOAD_S)
        await endpoint.post("/reset_mm_cache", timeout_s=_CONTROL_S)
        await endpoint.post("/reset_encoder_cache", timeout_s=_CONTROL_S)
        await endpoint.post("/reset_prefix_cache", timeout_s=_CONTROL_S, query={"reset_running_requests": "true"})
        await self.set_label(endpoint, label)

    async def _load_lora(self, endpoint: HttpEndpoint, folder: Path, label: str) -> None:
        async def load(name: str) -> None:
            body = {"lora_name": name, "lora_path": str(folder)}
            await endpoint.post_ignoring_reply("/v1/load_lora_adapter", body, timeout_s=_LOAD_S)

        async def unload(name: str) -> None:
            await endpoint.post_ignoring_reply("/v1/unload_lora_adapter", {"lora_name": name}, timeout_s=_CONTROL_S)

        await self._adapters.load(self, endpoint, int(label), load, unload)

    async def pause(self, endpoint: HttpEndpoint) -> None:
        await endpoint.post("/pause", timeout_s=_CONTROL_S, query={"mode": "keep", "clear_cache": "false"})

    async def resume(self, endpoint: HttpEndpoint) -> None:
        await endpoint.post("/resume", timeout_s=_CONTROL_S)

    async def healthy(self, endpoint: HttpEndpoint, timeout_s: float) -> None:
        await endpoint.get("/health", timeout_s=timeout_s)

    def forget(self) -> None:
        self._sent.clear()

    async def generate(
        self, endpoint: HttpEndpoint, prompt: Prompt, sampling: Sampling, timeout_s: float
    ) -> Completion:
        names = [span.sha256 for span in prompt.spans]
        known = self._sent.intersection(names)
        adapter = self._adapters.current
        body: dict[str, Any] = {
            "model": adapter.name if adapter is not None else self._model,
            "token_ids": collapse_placeholders(prompt),
            "sampling_params": _sampling(sampling),
            "return_token_ids": True,
        }
        if names:
            body["content_parts"] = await asyncio.to_thread(self._parts, prompt, known)
        try:
            reply = await endpoint.post("/inference/v1/generate", body, timeout_s=timeout_s)
        except RequestRejected as error:
            if adapter is not None and adapter.name in error.message:
                raise StaleWeights(f"{endpoint.name} does not have the published adapter: {error.message}") from None
            if known:  # the server may have evicted one of them, which it reports in several ways
                self._sent -= known
                raise RetryRequest(f"{error}; sending its images again") from None
            if sampling.grammar is not None and error.status == 400:
                raise UnsupportedGrammar(f"vLLM does not support the grammar: {error.message}") from None
            raise
        self._sent.update(names)
        return _completion(reply, prompt, sampling, endpoint.name, adapter)

    def _parts(self, prompt: Prompt, known: set[str]) -> list[dict[str, Any]]:
        images = prompt.images or {}
        parts = []
        for sha256 in (span.sha256 for span in prompt.spans):
            url = None if sha256 in known else self._images.data_uri(images[sha256])
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


def _completion(
    reply: Mapping[str, Any], prompt: Prompt, sampling: Sampling, server: str, adapter: LoadedLora | None
) -> Completion:
    """Build the completion from the server's report, except for the adapter's version, which it omits."""
    choice = reply["choices"][0]
    finish = _FINISH.get(choice["finish_reason"])
    if finish is None:
        raise InfrastructureError(f"{server}: unknown finish reason {choice['finish_reason']!r}")
    if finish == "aborted":
        raise RetryRequest(f"{server} aborted a request")
    served = tuple(reply["prompt_token_ids"])
    placed = [(place["offset"], place["length"]) for place in (reply.get("mm_placeholders") or {}).get("image", ())]
    if served == prompt.token_ids and placed != [(span.start, span.count) for span in prompt.spans]:
        raise RecordError("placeholders", f"{server} placed images at {placed[:4]}, unlike the prompt")
    ids = tuple(choice["token_ids"])
    content = choice["logprobs"]["content"]
    if [entry["token_id"] for entry in content] != list(ids):
        raise RecordError(
            "lengths", f"{server} returned log-probs of {len(content)} tokens that are not the {len(ids)} sampled ones"
        )
    versions = versions_of(choice.get("weight_versions"), len(ids), server)
    likely = tuple(
        tuple(
            (one["token_id"], one["logprob"]) for one in sorted(entry["top_logprobs"], key=lambda one: -one["logprob"])
        )[: sampling.top_logprobs]
        for entry in content
    )
    return Completion(
        ids,
        tuple(min(0.0, entry["logprob"]) for entry in content),
        versions if adapter is None else adapter.versions(versions, server),
        finish,
        served,
        likely if sampling.top_logprobs else (),
        exact=sampling.top_p >= 1 and sampling.grammar is None,
    )
