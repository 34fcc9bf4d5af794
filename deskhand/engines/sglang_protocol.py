"""SGLang's server protocol. Used by `recipes.engine_factory`; start with `connect_sglang`.

`POST /generate` takes `input_ids` (one placeholder per image, expanded by the server) and `image_data`;
`return_prompt_token_ids` returns the expanded ids. Log-probs include the bias of banned ids and the temperature, but
not `top_p`; they include a grammar, so constrained completions are not exact. Weights are loaded from a folder
(`/update_weights_from_disk`). A pause retracts requests in flight, so their keys and values are recomputed with the new
weights. A server started with `--enable-lora` keeps its weights and loads adapters (`/load_lora_adapter`), one name per
version, so requests in flight finish with the adapter they started with. Seeds need `--enable-deterministic-inference`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deskhand.engines.http_engine.endpoint import HttpEndpoint, RequestRejected, check_url
from deskhand.engines.http_engine.engine import HttpEngine, ServerTimeouts
from deskhand.engines.http_engine.image_encoding import ImageEncoder
from deskhand.engines.http_engine.lora_versions import LoadedLora, LoraVersions
from deskhand.engines.http_engine.protocol import RetryRequest, StaleWeights, collapse_placeholders, versions_of
from deskhand.engines.http_engine.weight_files import ADAPTER_CONFIG
from deskhand.errors import ConfigError, InfrastructureError, RecordError
from deskhand.types import Completion, Feature, FinishReason, Prompt, Sampling, UnsupportedGrammar

_CONTROL_S = 60.0
_LOAD_S = 600.0
_NEVER = -1e9
"""Bias of banned ids."""
_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "aborted"}


class SglangProtocol:
    """`ServerProtocol` for SGLang. `images` encodes recorded pixels."""

    name = "SGLang"
    features: frozenset[Feature] = frozenset({"regex", "json_schema", "stop_texts", "top_logprobs"})

    def __init__(self, images: ImageEncoder) -> None:
        self._images = images
        self.supports_lora = self.supports_vision_lora = False
        self._adapters = LoraVersions()

    async def inspect(self, endpoint: HttpEndpoint) -> int:
        info = await endpoint.get("/server_info", timeout_s=_CONTROL_S)
        if info.get("skip_tokenizer_init"):
            raise ConfigError(f"{endpoint.name}: --skip-tokenizer-init disables images; start SGLang without it")
        found = info.get("context_length") or info.get("max_req_input_len")
        if not found:
            raise ConfigError(f"{endpoint.name}: context length is unknown; start SGLang with --context-length")
        self.supports_lora = bool(info.get("enable_lora"))
        return int(found)

    async def label(self, endpoint: HttpEndpoint) -> str:
        return str((await endpoint.get("/get_model_info", timeout_s=_CONTROL_S)).get("weight_version"))

    async def set_label(self, endpoint: HttpEndpoint, label: str) -> None:
        body = {"new_version": label, "abort_all_requests": False}
        _check_success(await endpoint.post("/update_weight_version", body, timeout_s=_CONTROL_S), endpoint)

    async def load(self, endpoint: HttpEndpoint, folder: Path, label: str) -> None:
        if (folder / ADAPTER_CONFIG).exists():
            await self._load_lora(endpoint, folder, label)
            return
        await self.pause(endpoint)
        body = {"model_path": str(folder), "weight_version": label, "flush_cache": True, "abort_all_requests": False}
        _check_success(await endpoint.post("/update_weights_from_disk", body, timeout_s=_LOAD_S), endpoint)

    async def _load_lora(self, endpoint: HttpEndpoint, folder: Path, label: str) -> None:
        async def load(name: str) -> None:
            body = {"lora_name": name, "lora_path": str(folder)}
            _check_success(await endpoint.post("/load_lora_adapter", body, timeout_s=_LOAD_S), endpoint)

        async def unload(name: str) -> None:
            await endpoint.post("/unload_lora_adapter", {"lora_name": name}, timeout_s=_CONTROL_S)

        await self._adapters.load(self, endpoint, int(label), load, unload)

    async def pause(self, endpoint: HttpEndpoint) -> None:
        await endpoint.post("/pause_generation", {"mode": "retract"}, timeout_s=_CONTROL_S)

    async def resume(self, endpoint: HttpEndpoint) -> None:
        await endpoint.post("/continue_generation", {}, timeout_s=_CONTROL_S)

    async def healthy(self, endpoint: HttpEndpoint, timeout_s: float) -> None:
        await endpoint.get("/health", timeout_s=timeout_s)

    def forget(self) -> None:
        """Do nothing: images are sent with every request."""

    async def generate(
        self, endpoint: HttpEndpoint, prompt: Prompt, sampling: Sampling, timeout_s: float
    ) -> Completion:
        body: dict[str, Any] = {
            "input_ids": collapse_placeholders(prompt),
            "sampling_params": _sampling(sampling),
            "return_logprob": True,
            "top_logprobs_num": sampling.top_logprobs,
            "return_prompt_token_ids": True,
        }
        adapter = self._adapters.current
        if adapter is not None:
            body["lora_path"] = adapter.name
        if prompt.spans:
            body["image_data"] = await asyncio.to_thread(self._data_uris, prompt)
        try:
            reply = await endpoint.post("/generate", body, timeout_s=timeout_s)
        except RequestRejected as error:
            if adapter is not None and adapter.name in error.message:
                raise StaleWeights(f"{endpoint.name} does not have the published adapter: {error.message}") from None
            if sampling.grammar is not None and error.status == 400:
                raise UnsupportedGrammar(f"SGLang does not support the grammar: {error.message}") from None
            raise
        return _completion(reply, prompt, sampling, endpoint.name, adapter)

    def _data_uris(self, prompt: Prompt) -> list[str]:
        images = prompt.images or {}
        return [self._images.data_uri(images[span.sha256]) for span in prompt.spans]


def connect_sglang(
    url: str,
    image_processor: Any,
    folder: Path,
    *,
    api_key: str | None = None,
    version: int = 0,
    patience: ServerTimeouts | None = None,
) -> HttpEngine:
    """Return an engine on a running SGLang server, which must be able to read `folder`, where weights are written."""
    endpoint = HttpEndpoint(check_url(url, "engine.base_url"), api_key=api_key)
    return HttpEngine(
        SglangProtocol(ImageEncoder(image_processor)), folder, endpoint=endpoint, version=version, patience=patience
    )


def _check_success(reply: Any, endpoint: HttpEndpoint) -> None:
    """Raise `InfrastructureError` unless the server reports success."""
    if not isinstance(reply, Mapping) or reply.get("success") is not True:
        message = reply.get("message", reply) if isinstance(reply, Mapping) else reply
        raise InfrastructureError(f"{endpoint.name} did not load the weights: {str(message)[:300]}")


def _sampling(sampling: Sampling) -> dict[str, Any]:
    """Return SGLang's sampling parameters. With `ignore_eos` only `stop_ids` end a reply; `no_stop_trim` keeps them."""
    params: dict[str, Any] = {
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "stop_token_ids": list(sampling.stop_ids),
        "ignore_eos": True,
        "no_stop_trim": True,
        "skip_special_tokens": False,
        "logit_bias": {str(banned): _NEVER for banned in sampling.banned_ids},
    }
    if sampling.stop_texts:
        params["stop"] = list(sampling.stop_texts)
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    if sampling.grammar is not None:
        params[sampling.grammar.kind] = sampling.grammar.text
    return params


def _completion(
    reply: Mapping[str, Any], prompt: Prompt, sampling: Sampling, server: str, adapter: LoadedLora | None
) -> Completion:
    """Build the completion from the server's report, except for the adapter's version, which it omits."""
    meta = reply["meta_info"]
    reason = meta["finish_reason"]
    finish = _FINISH.get(reason["type"])
    if finish == "aborted":
        raise RetryRequest(f"{server} aborted a request: {reason.get('message', 'no reason given')}")
    if finish is None:
        raise InfrastructureError(f"{server}: unknown finish reason {reason!r}")
    ids = tuple(reply["output_ids"])
    scored = meta["output_token_logprobs"]
    if [entry[1] for entry in scored] != list(ids):
        raise RecordError(
            "lengths", f"{server} returned log-probs of {len(scored)} tokens that are not the {len(ids)} sampled ones"
        )
    versions = versions_of(meta.get("weight_versions"), len(ids), server)
    if adapter is not None:
        versions = adapter.versions(versions, server)
    likely = tuple(
        tuple((token_id, logprob) for logprob, token_id, *_ in entry) for entry in meta.get("output_top_logprobs") or ()
    )
    return Completion(
        ids,
        tuple(min(0.0, entry[0]) for entry in scored),
        versions,
        finish,
        tuple(reply.get("prompt_token_ids") or ()),
        likely if sampling.top_logprobs else (),
        exact=sampling.grammar is None,
    )
