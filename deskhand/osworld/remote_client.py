"""OSWorld's own server in its own VM, for `SetupRunner`.

Requests are passed on unchanged, and nothing is installed in the VM.
"""

from __future__ import annotations

from typing import Any

import httpx2

from deskhand.desktop.base import DesktopSpec, StageableDesktop
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop
from deskhand.osworld.local_client import LocalOsworldClient
from deskhand.server.guest import Guest

_REPEATABLE_PATHS = frozenset(
    {"/file", "/list_directory", "/screen_size", "/window_size", "/wallpaper", "/setup/upload"}
)
"""Requests without side effects, sent again if the response is lost."""


class RemoteGuest(Guest):
    """Files and programs of a machine, through its server."""

    async def expand(self, path: str) -> str:
        """Return `path`: the server expands it."""
        return path

    async def has_program(self, program: str) -> bool:
        return (
            await self.desktop.run(["/bin/sh", "-c", 'command -v -- "$1" >/dev/null', "sh", program])
        ).returncode == 0

    async def read(self, path: str) -> bytes:
        return await self.desktop.pull(path)


class RemoteOsworldClient(LocalOsworldClient):
    """A machine, through its own server."""

    is_local = False

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

    async def request(self, method: str, path: str, *, timeout_s: float = 180.0, **body: Any) -> httpx2.Response:
        is_repeatable = method == "GET" or path in _REPEATABLE_PATHS
        link = self._machine.server.client
        return await link.send(
            method,
            path,
            repeatable=is_repeatable,
            acts=not is_repeatable,
            wait_for_quota=False,
            may_take_s=timeout_s,
            **body,
        )

    async def close(self) -> None:
        """Do nothing: the pool closes the machine."""


def connect_remote(desktop: StageableDesktop, template: DesktopSpec) -> LocalOsworldClient:
    """Return a client of an OSWorld machine's server, or of an in-process server for any other desktop."""
    return (
        RemoteOsworldClient(desktop, template)
        if isinstance(desktop, OsworldDesktop)
        else LocalOsworldClient(desktop, template)
    )
