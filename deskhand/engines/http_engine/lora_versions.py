"""LoRA adapters loaded into a server. Used by the vLLM and SGLang protocols.

Each version is an adapter with its own name, over base weights whose label does not change. A token's version is that
of the adapter named by its request.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from deskhand.engines.http_engine.endpoint import HttpEndpoint, RequestRejected
from deskhand.engines.http_engine.protocol import ServerProtocol, StaleWeights
from deskhand.errors import InfrastructureError

MAX_LOADED_LORAS = 2
"""Adapters loaded at once: the newest, and that of the requests in flight."""
LoadLora = Callable[[str], Awaitable[None]]


@dataclass(frozen=True)
class LoadedLora:
    """A loaded adapter, its version, and the server's label of the base weights."""

    name: str
    version: int
    base_label: str

    def versions(self, reported: tuple[int, ...], server: str) -> tuple[int, ...]:
        """Return the versions of tokens sampled with this adapter; `reported` are those of the base weights."""
        if reported and set(reported) != {int(self.base_label)}:
            raise StaleWeights(f"{server} sampled with an adapter over weights {set(reported)}, not {self.base_label}")
        return (self.version,) * len(reported)


class LoraVersions:
    """Adapters of one server."""

    def __init__(self) -> None:
        self.current: LoadedLora | None = None
        """Adapter of new requests; None for the server's own weights."""
        self._base_label: str | None = None
        self._loaded: list[str] = []
        """Names of loaded adapters, newest last."""

    async def load(
        self, protocol: ServerProtocol, endpoint: HttpEndpoint, version: int, load: LoadLora, unload: LoadLora
    ) -> None:
        """Load an adapter under a new name and unload all but the previous one, which requests in flight use."""
        label = await protocol.label(endpoint)
        if not label.isdecimal():  # the server was restarted
            label = self._base_label or "0"
            await protocol.set_label(endpoint, label)
        self._base_label = self._base_label or label
        if label != self._base_label:
            raise InfrastructureError(
                f"{endpoint.name} has other weights ({label}, not {self._base_label}); restart it to use adapters"
            )
        name = f"deskhand-{version}-{secrets.token_hex(4)}"  # unique, because servers cache adapters by name
        await load(name)
        self.current = LoadedLora(name, version, self._base_label)
        self._loaded.append(name)
        while len(self._loaded) > MAX_LOADED_LORAS:
            with contextlib.suppress(RequestRejected):  # a restarted server does not have it
                await unload(self._loaded[0])
            del self._loaded[0]
