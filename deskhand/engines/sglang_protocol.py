"""SGLang's server protocol. Used by `recipes.engine_factory`; start with `connect_sglang`.

`POST /generate` takes `input_ids` (one placeholder per image, expanded by the server) and `image_data`;
`return_prompt_token_ids` returns the expanded ids. Log-probs include the bias of banned ids and the temperature, but
not `top_p`; they include a grammar (see `Sampling.restriction`). Weights are loaded from a folder
(`/update_weights_from_disk`). A pause retracts requests in flight, so their keys and values are recomputed with the new
weights. A server started with `--enable-lora` keeps its weights and loads adapters (`/load_lora_adapter`), one name per
version, so requests in flight finish with the adapter they started with. Seeds need `--enable-deterministic-inference`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from deskhand.engines.http_engine.endpoint import HttpEndpoint, RequestRejected
from deskhand.engines.http_engine.engine import connect_server
from deskhand.engines.http_engine.protocol import (
    CONTROL_S,
    LOAD_S,
    ServerProtocol,
    build_completion,
    collapse_placeholders,
    finish_reason_of,
)
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.types import Completion, Prompt, Sampling

_NEVER = -1e9
"""Bias of banned ids."""


class SglangProtocol(ServerProtocol):
    """Protocol of SGLang."""

    name = "SGLang"

    async def inspect(self, endpoint: HttpEndpoint) -> int:
        info = await endpoint.get("/server_info", timeout_s=CONTROL_S)
        if info.get("skip_tokenizer_init"):
            raise ConfigError(f"{endpoint.name}: --skip-tokenizer-init disables images; start SGLang without it")
        found = info.get("context_length") or info.get("max_req_input_len")
        if not found:
            raise ConfigError(f"{endpoint.name}: context length is unknown; start SGLang with --context-length")
        self.supports_lora = bool(info.get("enable_lora"))
        return int(found)

    async def label(self, endpoint: HttpEndpoint) -> str:
        return str((await endpoint.get("/get_model_info", timeout_s=CONTROL_S)).get("weight_version"))

    async def set_label(self, endpoint: HttpEndpoint, label: str) -> None:
        body = {"new_version": label, "abort_all_requests": False}
        _check_success(await endpoint.post("/update_weight_version", body, timeout_s=CONTROL_S), endpoint)

    async def load_weights(self, endpoint: HttpEndpoint, folder: Path, label: str) -> None:
        await self.pause(endpoint)
        body = {"model_path": str(folder), "weight_version": label, "flush_cache": True, "abort_all_requests": False}
        _check_success(await endpoint.post("/update_weights_from_disk", body, timeout_s=LOAD_S), endpoint)

    async def load_adapter(self, endpoint: HttpEndpoint, name: str, folder: Path) -> None:
        body = {"lora_name": name, "lora_path": str(folder)}
        _check_success(await endpoint.post("/load_lora_adapter", body, timeout_s=LOAD_S), endpoint)

    async def unload_adapter(self, endpoint: HttpEndpoint, name: str) -> None:
        await endpoint.post("/unload_lora_adapter", {"lora_name": name}, timeout_s=CONTROL_S)

    async def pause(self, endpoint: HttpEndpoint) -> None:
        await endpoint.post("/pause_generation", {"mode": "retract"}, timeout_s=CONTROL_S)

    async def resume(self, endpoint: HttpEndpoint) -> None:
        await endpoint.post("/continue_generation", {}, timeout_s=CONTROL_S)

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
        lora = self.lora
        if lora is not None:
            body["lora_path"] = lora.name
        if prompt.spans:
            body["image_data"] = await asyncio.to_thread(self._data_uris, prompt)
        try:
            reply = await endpoint.post("/generate", body, timeout_s=timeout_s)
        except RequestRejected as error:
            raise self.rejection(error, endpoint, sampling, lora) from None
        meta = reply["meta_info"]
        reason = meta["finish_reason"]
        message = f": {reason.get('message', 'no reason given')}"
        finish_reason = finish_reason_of(endpoint.name, reason["type"], message)
        return build_completion(
            endpoint.name,
            sampling,
            lora,
            finish_reason=finish_reason,
            token_ids=reply["output_ids"],
            scored=[(entry[1], entry[0]) for entry in meta["output_token_logprobs"]],
            weight_versions=meta.get("weight_versions"),
            served_ids=reply.get("prompt_token_ids") or (),
            likely=[
                [(token_id, logprob) for logprob, token_id, *_ in entry]
                for entry in meta.get("output_top_logprobs") or ()
            ],
        )

    def _data_uris(self, prompt: Prompt) -> list[str]:
        images = prompt.images or {}
        return [self._images.data_uri(images[span.sha256]) for span in prompt.spans]


connect_sglang = partial(connect_server, SglangProtocol)


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
