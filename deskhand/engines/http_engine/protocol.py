"""Interface of a server's protocol, implemented by `engines.vllm` and `engines.sglang_protocol`.

To support another server, implement `ServerProtocol` and pass it to `HttpEngine`. A protocol only translates; it has no
state except the images and adapters that the server has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from deskhand.engines.http_engine.endpoint import HttpEndpoint
from deskhand.errors import InfrastructureError
from deskhand.types import Completion, Feature, Prompt, Sampling


class RetryRequest(InfrastructureError):
    """The request was dropped (aborted, or an image was evicted) and can be repeated at once."""


class StaleWeights(InfrastructureError):
    """The server answered with weights other than those published last, so it was restarted."""


class ServerProtocol(Protocol):
    """Protocol of one kind of server. All methods raise what `HttpEndpoint` raises."""

    name: str
    features: frozenset[Feature]
    supports_lora: bool
    """Whether the server accepts adapters; set by `inspect`."""
    supports_vision_lora: bool
    """Whether adapters may include the vision tower."""

    async def inspect(self, endpoint: HttpEndpoint) -> int:
        """Return the context length. Raises `ConfigError` if the server was started with unsuitable options."""
        ...

    async def label(self, endpoint: HttpEndpoint) -> str:
        """Return the label of the server's weights."""
        ...

    async def set_label(self, endpoint: HttpEndpoint, label: str) -> None:
        """Set the label of the server's weights."""
        ...

    async def load(self, endpoint: HttpEndpoint, folder: Path, label: str) -> None:
        """Load the checkpoint in `folder` as `label`; requests in flight wait and continue with it.

        An adapter is loaded over the base weights, for new requests.
        """
        ...

    async def pause(self, endpoint: HttpEndpoint) -> None: ...

    async def resume(self, endpoint: HttpEndpoint) -> None: ...

    async def healthy(self, endpoint: HttpEndpoint, timeout_s: float) -> None:
        """Return if the server is healthy, raise otherwise."""
        ...

    async def generate(
        self, endpoint: HttpEndpoint, prompt: Prompt, sampling: Sampling, timeout_s: float
    ) -> Completion:
        """Make one attempt. Also raises `RetryRequest` and `StaleWeights`."""
        ...

    def forget(self) -> None:
        """Forget the server's state after a restart or when it dropped its caches."""
        ...


def collapse_placeholders(prompt: Prompt) -> list[int]:
    """Return the prompt's ids with one placeholder per image, for servers that expand placeholders."""
    ids: list[int] = []
    at = 0
    for span in prompt.spans:
        ids.extend(prompt.token_ids[at : span.start + 1])
        at = span.start + span.count
    ids.extend(prompt.token_ids[at:])
    return ids


def versions_of(spans: Iterable[Mapping[str, Any]] | None, count: int, server: str) -> tuple[int, ...]:
    """Return the versions of `count` sampled tokens from the server's spans `{"version", "start", "end"}`.

    Raises `StaleWeights` if they were not published by this run or do not cover the tokens.
    """
    versions: list[int] = []
    for span in spans or ():
        label = str(span.get("version"))
        if not label.isdecimal() or span.get("start") != len(versions):
            raise StaleWeights(f"{server} sampled with weights {label!r}, which were not published by this run")
        versions.extend([int(label)] * (int(span["end"]) - len(versions)))
    if len(versions) != count:
        raise StaleWeights(f"{server} reported weights versions of {len(versions)} of {count} sampled tokens")
    return tuple(versions)
