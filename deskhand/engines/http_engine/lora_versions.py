"""Adapters over a server's weights. Invariant: each version is an adapter of its own name, over weights whose label stays, and the
version of a token is that of the adapter which its request named.
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
"""Adapters that a server holds: the newest, and that of the requests in flight."""
LoadLora = Callable[[str], Awaitable[None]]


@dataclass(frozen=True)
class LoadedLora:
    """An adapter that the server holds, its version, and the server's label for the weights below it."""

    name: str
    version: int
    below: str

    def versions(self, found: tuple[int, ...], server: str) -> tuple[int, ...]:
        """Versions of tokens that were sampled with it; `found`: those that the server says, which names the weights below only."""
        if found and set(found) != {int(self.below)}:
            raise StaleWeights(f"{server} sampled with an adapter over weights {set(found)}, not {self.below}")
        return (self.version,) * len(found)


class LoraVersions:
    """Those of one server."""

    def __init__(self) -> None:
        self.current: LoadedLora | None = None
        """What requests are sampled with; None: the server's own weights."""
        self._below: str | None = None
        """The label of the weights below adapters."""
        self._loaded: list[str] = []
        """Names of adapters that the server holds, the newest last."""

    async def lay(
        self, wire: ServerProtocol, endpoint: HttpEndpoint, version: int, load: LoadLora, unload: LoadLora
    ) -> None:
        """Load an adapter by its new name; the last one stays for the requests in flight, older ones go."""
        label = await wire.label(endpoint)
        if not label.isdecimal():  # started anew
            label = self._below or "0"
            await wire.set_label(endpoint, label)
        self._below = self._below or label
        if label != self._below:
            raise InfrastructureError(
                f"{endpoint.name} was given other weights ({label}, not {self._below}); start it anew for adapters"
            )
        name = f"deskhand-{version}-{secrets.token_hex(4)}"  # a name that was ever used may be found in a cache
        await load(name)
        self.current = LoadedLora(name, version, self._below)
        self._loaded.append(name)
        while len(self._loaded) > MAX_LOADED_LORAS:
            with contextlib.suppress(RequestRejected):  # it may have gone with a server that ended
                await unload(self._loaded[0])
            del self._loaded[0]
