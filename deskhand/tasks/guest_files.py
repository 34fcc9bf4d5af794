"""Read files and folders of the guest's home, which the agent may have removed or replaced.

Used by checks, families and oracles. A path that is not a regular file counts as a wrong answer, not as an error, and
so does what is too large to hold in memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from deskhand.desktop.base import StageableDesktop

UNREADABLE = (FileNotFoundError, PermissionError, IsADirectoryError)
"""Raised by desktops for a path that is missing, a folder, a pipe, or a link that leaves the home."""


MAX_TEXT_BYTES = 16 * 2**20
"""A text takes up to four times the memory of its file."""
MAX_FILES_BYTES = 32 * 2**20


async def read_file(desktop: StageableDesktop, path: str) -> bytes | None:
    """Return the bytes of a regular file, or None."""
    try:
        return await desktop.pull(path)
    except UNREADABLE:
        return None


async def read_text(desktop: StageableDesktop, path: str) -> str | None:
    """Return the text of a regular file of at most `MAX_TEXT_BYTES`, or None. Invalid UTF-8 becomes U+FFFD."""
    data = await read_file(desktop, path)
    return None if data is None or len(data) > MAX_TEXT_BYTES else data.decode("utf-8", errors="replace")


async def list_folder(desktop: StageableDesktop, path: str) -> list[str]:
    """Return the names in a folder; empty if it is not a folder."""
    try:
        return await desktop.listdir(path)
    except UNREADABLE:
        return []


async def read_folder(desktop: StageableDesktop, path: str) -> dict[str, bytes | None]:
    """Return the bytes of each file in a folder by name, as `read_files` does."""
    names = await list_folder(desktop, path)
    found = await read_files(desktop, [f"{path}/{name}" for name in names])
    return {name: found[f"{path}/{name}"] for name in names}


async def read_files(desktop: StageableDesktop, paths: Iterable[str]) -> dict[str, bytes | None]:
    """Return the bytes of each file; None for a path that is not a regular file, and after `MAX_FILES_BYTES`."""
    found: dict[str, bytes | None] = {}
    size = 0
    for path in paths:
        found[path] = await read_file(desktop, path) if size <= MAX_FILES_BYTES else None
        size += len(found[path] or b"")
    return found
