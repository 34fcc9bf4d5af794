"""SGLang's protocol, spoken to a server at an address. Invariant: as for vLLM, what the server says it served is what is returned.

`POST /generate` with `input_ids` (one placeholder id per image: the server expands them and keeps all other ids as they are) and
`image_data`; `return_prompt_token_ids` gives back the expanded ids. Its log-probs are of the logits after the bias of banned ids
and the temperature, before `top_p` cuts the tail; a grammar is in them, so such a completion is not exact. Weights are taken from a
folder (`/update_weights_from_disk`). A pause retracts the requests in flight, so that their keys and values are computed again
with the new weights. A server that was started with `--enable-lora` keeps its weights and takes adapters (`/load_lora_adapter`):
each version is an adapter of its own, which requests name, so those in flight end with the one that they began with. Seeds are
honoured by servers with `--enable-deterministic-inference` only.
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
from deskhand.types import Completion, Feature, FinishReason, UnsupportedGrammar, Prompt, Sampling

_CONTROL_S = 60.0
_LOAD_S = 600.0
_NEVER = -1e9
"""Bias of banned ids."""
_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "aborted"}


class SglangProtocol:
    """`engines.served.wire.Wire` for SGLang. `pictures` turns recorded pixels into what is sent."""

    name = "SGLang"
    features: frozenset[Feature] = frozenset({"regex", "json_schema", "stop_texts", "top_logprobs"})

    def __init__(self, pictures: ImageEncoder) -> None:
        self._pictures = pictures
        self.supports_lora = self.supports_vision_lora = False
        self._adapters = LoraVersions()

    async def inspect(self, endpoint: HttpEndpoint) -> int:
        info = await endpoint.get("/server_info", timeout_s=_CONTROL_S)
        if info.get("skip_tokenizer_init"):
            raise ConfigError(
                f"{endpoint.name} was started with --skip-tokenizer-init and cannot take images; start it without"
            )
        found = info.get("context_length") or info.get("max_req_input_len")
        if not found:
            raise ConfigError(f"{endpoint.name} does not say what it can hold; start SGLang with --context-length")
        self.supports_lora = bool(info.get("enable_lora"))
        return int(found)

    async def label(self, endpoint: HttpEndpoint) -> str:
        return str((await endpoint.get("/get_model_info", timeout_s=_CONTROL_S)).get("weight_version"))

    async def set_label(self, endpoint: HttpEndpoint, label: str) -> None:
        body = {"new_version": label, "abort_all_requests": False}
        _demand(await endpoint.post("/update_weight_version", body, timeout_s=_CONTROL_S), endpoint)

    async def load(self, endpoint: HttpEndpoint, folder: Path, label: str) -> None:
        if (folder / ADAPTER_CONFIG).exists():
            await self._lay(endpoint, folder, label)
            return
        await self.pause(endpoint)
        body = {"model_path": str(folder), "weight_version": label, "flush_cache": True, "abort_all_requests": False}
        _demand(await endpoint.post("/update_weights_from_disk", body, timeout_s=_LOAD_S), endpoint)

    async def _lay(self, endpoint: HttpEndpoint, folder: Path, label: str) -> None:
        async def load(name: str) -> None:
            body = {"lora_name": name, "lora_path": str(folder)}
            _demand(await endpoint.post("/load_lora_adapter", body, timeout_s=_LOAD_S), endpoint)

        async def unload(name: str) -> None:
            await endpoint.post("/unload_lora_adapter", {"lora_name": name}, timeout_s=_CONTROL_S)

        await self._adapters.lay(self, endpoint, int(label), load, unload)

    async def pause(self, endpoint: HttpEndpoint) -> None:
        await endpoint.post("/pause_generation", {"mode": "retract"}, timeout_s=_CONTROL_S)

    async def resume(self, endpoint: HttpEndpoint) -> None:
        await endpoint.post("/continue_generation", {}, timeout_s=_CONTROL_S)

    async def healthy(self, endpoint: HttpEndpoint, timeout_s: float) -> None:
        await endpoint.get("/health", timeout_s=timeout_s)

    def forget(self) -> None:
        """Pictures go with every request; nothing is remembered of them."""

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
            body["image_data"] = await asyncio.to_thread(self._pictures_of, prompt)
        try:
            reply = await endpoint.post("/generate", body, timeout_s=timeout_s)
        except RequestRejected as error:
            if adapter is not None and adapter.name in error.message:
                raise StaleWeights(
                    f"{endpoint.name} does not hold the adapter that was published: {error.message}"
                ) from None
            if sampling.grammar is not None and error.status == 400:
                raise UnsupportedGrammar(f"SGLang cannot keep to the grammar: {error.message}") from None
            raise
        return _completion(reply, prompt, sampling, endpoint.name, adapter)

    def _pictures_of(self, prompt: Prompt) -> list[str]:
        images = prompt.images or {}
        return [self._pictures.data_uri(images[span.sha256]) for span in prompt.spans]


def connect_sglang(
    url: str,
    image_processor: Any,
    folder: Path,
    *,
    api_key: str | None = None,
    version: int = 0,
    patience: ServerTimeouts | None = None,
) -> HttpEngine:
    """An engine on an SGLang server that runs already; it must be able to read `folder`, where weights are published."""
    endpoint = HttpEndpoint(check_url(url, "engine.base_url"), api_key=api_key)
    return HttpEngine(
        SglangProtocol(ImageEncoder(image_processor)), folder, endpoint=endpoint, version=version, patience=patience
    )


def _demand(reply: Any, endpoint: HttpEndpoint) -> None:
    """Raise unless the server says that it did what it was told."""
    if not isinstance(reply, Mapping) or reply.get("success") is not True:
        said = reply.get("message", reply) if isinstance(reply, Mapping) else reply
        raise InfrastructureError(f"{endpoint.name} did not take the weights: {str(said)[:300]}")


def _sampling(sampling: Sampling) -> dict[str, Any]:
    """SGLang's sampling parameters. `ignore_eos`: only the ids that the caller names end a reply; `no_stop_trim` keeps them."""
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
    """What the server says that it did; nothing is taken over from what it was asked to do, but for the adapter's version: the
    server names the weights below it only."""
    meta = reply["meta_info"]
    reason = meta["finish_reason"]
    finish = _FINISH.get(reason["type"])
    if finish == "aborted":
        raise RetryRequest(f"{server} aborted a request: {reason.get('message', 'it does not say why')}")
    if finish is None:
        raise InfrastructureError(f"{server} ended a request with {reason!r}")
    ids = tuple(reply["output_ids"])
    scored = meta["output_token_logprobs"]
    if [entry[1] for entry in scored] != list(ids):
        raise RecordError(
            "lengths", f"{server} gave log-probs of {len(scored)} other tokens than the {len(ids)} it sampled"
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
