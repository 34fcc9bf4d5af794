"""Crash-safe appending of lines to files. Used by `recorder.session_store` and `recorder.recording_proxy`.

Files are opened with `os.O_APPEND` and written without a buffer, so that a failed write leaves nothing pending.

Invariant: a line is in the file completely or not at all. A failed write is truncated; a line torn by a kill is
truncated before the next append.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_CHUNK = 1 << 16


def open_new(path: Path) -> int:
    """Create a file to append to. Raises `FileExistsError`, so only one process can own it."""
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o644)


def open_again(path: Path) -> int:
    """Open or create a file to append to, truncated after its last complete line."""
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o644)
    size = end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - _CHUNK)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        os.ftruncate(file, end)
    return file


def append(file: int, line: bytes, *, durable: bool) -> None:
    """Append a line and, with `durable`, flush it to disk. Raises `OSError` and restores the file."""
    before = os.fstat(file).st_size
    try:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(file, rest) :]
        if durable:
            os.fsync(file)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(file, before)
        raise


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries, such as the name of a new file, to disk."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
