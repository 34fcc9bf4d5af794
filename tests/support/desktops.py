"""Embedded desktops that are closed when a test ends."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from patience import limit

from deskhand.actions.ops import Point, screen_px
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.local.isolation import available_isolation
from deskhand.errors import InfrastructureError
from deskhand.tasks.task import Task

ISOLATIONS = ["namespaces", "plain"] if available_isolation()[0] == "namespaces" else ["plain"]
"""The kinds that this machine has."""


@asynccontextmanager
async def embedded(spec: DesktopSpec, **settings: Any) -> AsyncIterator[LocalDesktop]:
    """A desktop in the state of the spec."""
    desktop = LocalDesktop(**settings)
    try:
        await desktop.reset(spec)
        yield desktop
    finally:
        await desktop.close()


def point_on(spec: DesktopSpec) -> Callable[[int, int], Point]:
    """Points in pixels of this screen."""
    return lambda x, y: Point(x, y, screen_px(spec.width, spec.height))


async def failure_of(desktop: LocalDesktop) -> str:
    """Wait until the desktop says that it has failed."""
    deadline = time.monotonic() + limit(10)
    while time.monotonic() < deadline:
        try:
            await desktop.observe()
        except InfrastructureError as error:
            return str(error)
        await asyncio.sleep(0.02)
    return "it has not failed"


def home_contents(root: Path) -> dict[str, tuple[int, str | bytes | None]]:
    """Mode, and link target or content, of everything below `root`."""
    found: dict[str, tuple[int, str | bytes | None]] = {}
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        content = os.readlink(path) if stat.S_ISLNK(mode) else path.read_bytes() if stat.S_ISREG(mode) else None
        found[str(path.relative_to(root))] = mode, content
    return found


def desktop_for(task: Task) -> AbstractAsyncContextManager[LocalDesktop]:
    """One as the task wants it."""
    return embedded(DesktopSpec(task.theme, task.width, task.height, accessibility=task.accessibility))


def control_groups_of(part: str) -> list[str]:
    """Control groups whose name has `part`. Others disappear meanwhile, which `Path.glob` does not bear."""
    return [group for group, _, _ in os.walk("/sys/fs/cgroup") if part in os.path.basename(group)]
