"""Desktops for tests of what lies between: they have a screen, a log of actions and files, and start at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from deskhand.actions.formats.limits import points_of
from deskhand.actions.ops import Op, to_screen_px
from deskhand.desktop.base import CommandResult, DesktopSpec, Frame
from deskhand.desktop.local.idempotency_cache import IdempotencyCache
from deskhand.desktop.pool import DesktopPool

REMEMBERED = 64
"""Actions whose frames are kept, as by an embedded desktop and by its own code: that is what is tested of them here."""


class Painted:
    """Has what the bridge and the faults' tests use of a `StagedDesktop`."""

    def __init__(self) -> None:
        self.actions: list[str] = []
        self.files: dict[str, bytes] = {}
        self.closed = False
        self.ran: list[list[str]] = []
        self._sequence = 0
        self._done = IdempotencyCache(REMEMBERED)
        self._cursor = (0, 0)
        self._size = (64, 48)

    async def reset(self, spec: DesktopSpec) -> Frame:
        self._size = (spec.width, spec.height)
        self.files.clear()
        return await self.observe()

    async def observe(self) -> Frame:
        self._sequence += 1
        pixels = np.full((self._size[1], self._size[0], 4), 40 + len(self.actions) % 200, np.uint8)
        return Frame(pixels, self._sequence, f"{len(self.actions)}", 0.0, "quiet", None, self._cursor)

    async def perform(self, ops: list[Op], *, action_id: str) -> Frame:
        if earlier := self._done.get(action_id):
            return earlier
        self._done.begin(action_id)
        self.actions.append(action_id)
        for op in ops:
            for point in points_of(op)[-1:]:
                self._cursor = to_screen_px(point, *self._size)
        frame = await self.observe()
        self._done.finish(action_id, frame)
        return frame

    async def run(self, argv: list[str], *, timeout_s: float = 30.0, env: Any = None, cwd: Any = None) -> CommandResult:
        self.ran.append(argv)
        if argv[:2] == ["env", "-0"]:
            return CommandResult(0, b"HOME=/home/user\0", b"")
        return CommandResult(0, " ".join(argv).encode(), b"")

    async def pull(self, path: str) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(2, "no such file", path)
        return self.files[path]

    async def push(self, path: str, data: bytes) -> None:
        self.files[path] = data

    async def accessibility_tree(self) -> str | None:
        return None

    async def close(self) -> None:
        self.closed = True


def painted_pool(size: int, made: list[Painted], spec: DesktopSpec | None = None) -> DesktopPool:
    """A pool of them; each that is made is put into `made`."""

    def make() -> Any:
        made.append(Painted())
        return made[-1]

    return DesktopPool(size, spec or DesktopSpec("plain", 64, 48), prewarm=0, make=make, memory_request_mib=None)
