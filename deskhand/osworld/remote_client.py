"""OSWorld's own server in its own machine, for a stage. Invariant: requests go to that server as they are, and nothing of ours is
put into the machine: it has already what a home of ours is given first.
"""

from __future__ import annotations

from typing import Any

import httpx2

from deskhand.desktop.base import DesktopSpec, StageableDesktop
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop
from deskhand.osworld.local_client import LocalOsworldClient
from deskhand.server.guest import Guest

_LOOKS = frozenset({"/file", "/list_directory", "/screen_size", "/window_size", "/wallpaper", "/setup/upload"})
"""What may be sent again when its answer is lost."""


class RemoteGuest(Guest):
    """Files and programs of a machine, by its server."""

    async def expand(self, path: str) -> str:
        """The server does it."""
        return path

    async def finds(self, program: str) -> bool:
        return (
            await self.desktop.run(["/bin/sh", "-c", 'command -v -- "$1" >/dev/null', "sh", program])
        ).returncode == 0

    async def read(self, path: str) -> bytes:
        return await self.desktop.pull(path)


class RemoteOsworldClient(LocalOsworldClient):
    """`machine` by its own server."""

    ours = False

    def __init__(self, machine: OsworldDesktop, template: DesktopSpec) -> None:
        self._machine = machine
        self._size = template.width, template.height
        self._guest = RemoteGuest(machine, *self._size)

    @property
    def desktop(self) -> StageableDesktop:
        return self._machine

    @property
    def guest(self) -> Guest:
        return self._guest

    @property
    def size(self) -> tuple[int, int]:
        return self._size

    async def ask(self, method: str, path: str, *, timeout_s: float = 180.0, **body: Any) -> httpx2.Response:
        looks = method == "GET" or path in _LOOKS
        link = self._machine.server.client
        return await link.send(
            method, path, repeatable=looks, acts=not looks, wait_for_quota=False, may_take_s=timeout_s, **body
        )

    async def close(self) -> None:
        """The machine is its pool's to close."""


def connect_remote(desktop: StageableDesktop, template: DesktopSpec) -> LocalOsworldClient:
    """By the server of OSWorld's machine, or for any other desktop by one of this process."""
    return (
        RemoteOsworldClient(desktop, template)
        if isinstance(desktop, OsworldDesktop)
        else LocalOsworldClient(desktop, template)
    )
