"""What one kind of server understands. Invariant: a `Wire` only translates; it keeps no state but which images a server holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from deskhand.engines.http_engine.endpoint import HttpEndpoint
from deskhand.errors import InfrastructureError
from deskhand.types import Completion, Feature, Prompt, Sampling


class RetryRequest(InfrastructureError):
    """The server holds its weights but not the request (it was aborted, an image was evicted): it can be asked again at once."""


class StaleWeights(InfrastructureError):
    """The server answered with weights that are not those published last: it was started anew behind our back."""


class ServerProtocol(Protocol):
    """The protocol of one kind of server. All methods raise what `Endpoint` raises."""

    name: str
    features: frozenset[Feature]
    supports_lora: bool
    """Whether the server, as it was started, takes adapters; known once it was inspected."""
    supports_vision_lora: bool
    """Whether these may be for the vision tower, too."""

    async def inspect(self, endpoint: HttpEndpoint) -> int:
        """The most tokens that prompt and output may have together. Raises `ConfigError` when the server was started otherwise
        than the contract needs."""
        ...

    async def label(self, endpoint: HttpEndpoint) -> str:
        """What the server calls the weights that it has."""
        ...

    async def set_label(self, endpoint: HttpEndpoint, label: str) -> None:
        """Name the weights that the server has."""
        ...

    async def load(self, endpoint: HttpEndpoint, folder: Path, label: str) -> None:
        """Take the checkpoint in `folder` under that name, while requests in flight wait; they go on with it. A folder with an
        adapter is laid over the weights that the server has, for requests that come from now on."""
        ...

    async def pause(self, endpoint: HttpEndpoint) -> None: ...

    async def resume(self, endpoint: HttpEndpoint) -> None: ...

    async def healthy(self, endpoint: HttpEndpoint, timeout_s: float) -> None:
        """Returns if the server can serve."""
        ...

    async def generate(
        self, endpoint: HttpEndpoint, prompt: Prompt, sampling: Sampling, timeout_s: float
    ) -> Completion:
        """Ask once. Raises `AskAgain` or `WeightsLost` as well."""
        ...

    def forget(self) -> None:
        """The server was started anew or dropped its caches."""
        ...


def collapse_placeholders(prompt: Prompt) -> list[int]:
    """The prompt's ids with one placeholder per image: what servers take that expand placeholders themselves."""
    ids: list[int] = []
    at = 0
    for span in prompt.spans:
        ids.extend(prompt.token_ids[at : span.start + 1])
        at = span.start + span.count
    ids.extend(prompt.token_ids[at:])
    return ids


def versions_of(spans: Iterable[Mapping[str, Any]] | None, count: int, server: str) -> tuple[int, ...]:
    """Versions of `count` sampled tokens from the server's spans `{"version", "start", "end"}`.

    Raises `WeightsLost` when they are not labels of ours or do not cover the tokens.
    """
    versions: list[int] = []
    for span in spans or ():
        label = str(span.get("version"))
        if not label.isdecimal() or span.get("start") != len(versions):
            raise StaleWeights(f"{server} sampled with weights {label!r}, which were not published by this run")
        versions.extend([int(label)] * (int(span["end"]) - len(versions)))
    if len(versions) != count:
        raise StaleWeights(f"{server} says the weights of {len(versions)} of {count} sampled tokens")
    return tuple(versions)
