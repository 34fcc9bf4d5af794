"""Read files and folders of the guest's home, which the agent may have removed or replaced.

Used by checks, families and oracles. A path that is not a regular file counts as a wrong answer, not as an error.
"""

from __future__ import annotations

from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.document_readers import InvalidDocument

UNREADABLE = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
"""Raised by desktops for a path that is missing, a folder, a pipe, no folder, or a link that leaves the home."""

MAX_FILES = 200
MAX_BYTES = 16 * 2**20
"""Limits of one folder. Families create a few small files. An agent that fills a folder must not make its check too
slow to score it."""


async def read_file(desktop: StageableDesktop, path: str) -> bytes | None:
    """Return the bytes of a regular file, or None."""
    try:
        return await desktop.pull(path)
    except UNREADABLE:
        return None


async def read_text(desktop: StageableDesktop, path: str) -> str | None:
    """Return the text of a regular file, or None; also if the text, of 4 bytes per character, exceeds `MAX_BYTES`.

    Invalid UTF-8 becomes U+FFFD.
    """
    return decode_text(await read_file(desktop, path))


def decode_text(data: bytes | None) -> str | None:
    """Return the text of a file that was read, as `read_text` does."""
    return None if data is None or 4 * len(data) > MAX_BYTES else data.decode("utf-8", errors="replace")


async def list_folder(desktop: StageableDesktop, path: str) -> list[str]:
    """Return the names in a folder; empty if it is not a folder. Raises `InvalidDocument` for more than `MAX_FILES`."""
    try:
        names = await desktop.listdir(path)
    except UNREADABLE:
        return []
    if len(names) > MAX_FILES:
        raise InvalidDocument(f"{path}: more than {MAX_FILES} files and folders")
    return names


async def read_folder(desktop: StageableDesktop, path: str) -> dict[str, bytes | None]:
    """Return the bytes of each file in a folder by name; None for a name that is not a regular file.

    Files beyond `MAX_BYTES` are None, too. Raises `InvalidDocument` for more than `MAX_FILES`.
    """
    found: dict[str, bytes | None] = {}
    size = 0
    for name in await list_folder(desktop, path):
        data = found[name] = await read_file(desktop, f"{path}/{name}") if size < MAX_BYTES else None
        size += len(data or b"")
    return found
