"""Base class of server protocols, implemented by `engines.vllm` and `engines.sglang_protocol`.

To support another server, subclass `ServerProtocol` and pass it to `HttpEngine`. A protocol only translates; it has no
state except the images and adapters that the server has.
"""

from __future__ import annotations

import contextlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deskhand.engines.http_engine.endpoint import HttpEndpoint, RequestRejected
from deskhand.engines.http_engine.image_encoding import ImageEncoder
from deskhand.engines.http_engine.weight_files import ADAPTER_CONFIG
from deskhand.errors import InfrastructureError, RecordError
from deskhand.types import Completion, Feature, FinishReason, Prompt, Sampling, UnsupportedGrammar

CONTROL_S = 60.0
LOAD_S = 600.0
MAX_LOADED_LORAS = 2
"""Adapters loaded at once: the newest, and that of the requests in flight."""
_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class RetryRequest(InfrastructureError):
    """The request was dropped (aborted, or an image was evicted) and can be repeated at once."""


class StaleWeights(InfrastructureError):
    """The server answered with weights other than those published last, so it was restarted."""


@dataclass(frozen=True)
class LoadedLora:
    """A loaded adapter, its version, and the server's label of the base weights."""

    name: str
    version: int
    base_label: str


class ServerProtocol(ABC):
    """Protocol of one kind of server; `images` encodes recorded pixels. All methods raise what `HttpEndpoint` raises.
    Each LoRA version is an adapter with its own name, over base weights whose label does not change."""

    name: str
    features: frozenset[Feature] = frozenset({"regex", "json_schema", "stop_texts", "top_logprobs"})

    def __init__(self, images: ImageEncoder) -> None:
        self._images = images
        self.supports_lora = self.supports_vision_lora = False
        """Whether the server accepts adapters, and adapters of the vision tower; set by `inspect`."""
        self.lora: LoadedLora | None = None
        """Adapter of new requests; None for the server's own weights."""
        self._base_label: str | None = None
        self._loaded: list[str] = []
        """Names of loaded adapters, newest last."""

    @abstractmethod
    async def inspect(self, endpoint: HttpEndpoint) -> int:
        """Return the context length. Raises `ConfigError` if the server was started with unsuitable options."""

    @abstractmethod
    async def label(self, endpoint: HttpEndpoint) -> str:
        """Return the label of the server's weights."""

    @abstractmethod
    async def set_label(self, endpoint: HttpEndpoint, label: str) -> None:
        """Set the label of the server's weights."""

    @abstractmethod
    async def load_weights(self, endpoint: HttpEndpoint, folder: Path, label: str) -> None:
        """Load a checkpoint as `label`; requests in flight wait and continue with it."""

    @abstractmethod
    async def load_adapter(self, endpoint: HttpEndpoint, name: str, folder: Path) -> None: ...

    @abstractmethod
    async def unload_adapter(self, endpoint: HttpEndpoint, name: str) -> None: ...

    @abstractmethod
    async def pause(self, endpoint: HttpEndpoint) -> None: ...

    @abstractmethod
    async def resume(self, endpoint: HttpEndpoint) -> None: ...

    @abstractmethod
    async def generate(
        self, endpoint: HttpEndpoint, prompt: Prompt, sampling: Sampling, timeout_s: float
    ) -> Completion:
        """Make one attempt. Also raises `RetryRequest` and `StaleWeights`."""

    def forget(self) -> None:  # noqa: B027
        """Forget the server's state after a restart or when it dropped its caches."""

    async def healthy(self, endpoint: HttpEndpoint, timeout_s: float) -> None:
        """Return if the server is healthy, raise otherwise."""
        await endpoint.get("/health", timeout_s=timeout_s)

    async def load(self, endpoint: HttpEndpoint, folder: Path, label: str) -> None:
        """Load the checkpoint in `folder` as `label`, or an adapter over the base weights, for new requests. All
        adapters but the previous one, which requests in flight use, are unloaded."""
        if not (folder / ADAPTER_CONFIG).exists():
            await self.load_weights(endpoint, folder, label)
            return
        base = await self.label(endpoint)
        if not base.isdecimal():  # the server was restarted
            base = self._base_label or "0"
            await self.set_label(endpoint, base)
        self._base_label = self._base_label or base
        if base != self._base_label:
            raise InfrastructureError(
                f"{endpoint.name} has other weights ({base}, not {self._base_label}); restart it to use adapters"
            )
        name = f"deskhand-{label}-{secrets.token_hex(4)}"  # unique, because servers cache adapters by name
        await self.load_adapter(endpoint, name, folder)
        self.lora = LoadedLora(name, int(label), base)
        self._loaded.append(name)
        while len(self._loaded) > MAX_LOADED_LORAS:
            with contextlib.suppress(RequestRejected):  # a restarted server does not have it
                await self.unload_adapter(endpoint, self._loaded[0])
            del self._loaded[0]

    def rejection(
        self, error: RequestRejected, endpoint: HttpEndpoint, sampling: Sampling, lora: LoadedLora | None
    ) -> Exception:
        """Return what a rejected request means."""
        if lora is not None and lora.name in error.message:
            return StaleWeights(f"{endpoint.name} does not have the published adapter: {error.message}")
        if sampling.grammar is not None and error.status == 400:
            return UnsupportedGrammar(f"{self.name} does not support the grammar: {error.message}")
        return error


def finish_reason_of(server: str, reason: str, message: str = "") -> FinishReason:
    """Return a reply's finish reason. Check it first: a reply to an aborted request may lack everything else."""
    if reason == "abort":
        raise RetryRequest(f"{server} aborted a request{message}")
    if reason not in _FINISH:
        raise InfrastructureError(f"{server}: unknown finish reason {reason!r}")
    return _FINISH[reason]


def build_completion(
    server: str,
    sampling: Sampling,
    lora: LoadedLora | None,
    *,
    finish_reason: FinishReason,
    token_ids: Sequence[int],
    scored: Sequence[tuple[int, float]],
    weight_versions: Iterable[Mapping[str, Any]] | None,
    served_ids: Sequence[int],
    likely: Iterable[Iterable[tuple[int, float]]],
) -> Completion:
    """Build the completion from the server's report; with an adapter, the report has the versions of the base weights.
    `scored` and `likely` have (id, log-prob) of the sampled tokens and of their alternatives."""
    ids = tuple(token_ids)
    if tuple(token_id for token_id, _ in scored) != ids:
        raise RecordError(
            "lengths", f"{server} returned log-probs of {len(scored)} tokens that are not the {len(ids)} sampled ones"
        )
    versions = _versions(weight_versions, len(ids), server)
    if lora is not None:
        if versions and set(versions) != {int(lora.base_label)}:
            raise StaleWeights(f"{server} sampled with an adapter over weights {set(versions)}, not {lora.base_label}")
        versions = (lora.version,) * len(ids)
    logprobs = tuple(min(0.0, logprob) for _, logprob in scored)
    alternatives = tuple(tuple(listed) for listed in likely) if sampling.top_logprobs else ()
    return Completion(ids, logprobs, versions, finish_reason, tuple(served_ids), alternatives)


def _versions(spans: Iterable[Mapping[str, Any]] | None, count: int, server: str) -> tuple[int, ...]:
    """Return the versions of `count` sampled tokens from the server's spans `{"version", "start", "end"}`. Raises
    `StaleWeights` if they were not published by this run or do not cover the tokens."""
    versions: list[int] = []
    for span in spans or ():
        label = str(span.get("version"))
        if not label.isdecimal() or span.get("start") != len(versions):
            raise StaleWeights(f"{server} sampled with weights {label!r}, which were not published by this run")
        versions.extend([int(label)] * (int(span["end"]) - len(versions)))
    if len(versions) != count:
        raise StaleWeights(f"{server} reported weights versions of {len(versions)} of {count} sampled tokens")
    return tuple(versions)


def collapse_placeholders(prompt: Prompt) -> list[int]:
    """Return the prompt's ids with one placeholder per image, for servers that expand placeholders."""
    ids: list[int] = []
    at = 0
    for span in prompt.spans:
        ids.extend(prompt.token_ids[at : span.start + 1])
        at = span.start + span.count
    return [*ids, *prompt.token_ids[at:]]
