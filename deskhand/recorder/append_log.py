"""Lines at the end of a file. Invariant: a line is in the file whole or not at all: one that could not be written is taken back,
and what a kill has torn is cut off before the next line is written.

Files are opened for appending (`os.O_APPEND`) and written without a buffer, so that nothing is left over from a write that failed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_CHUNK = 1 << 16


def open_new(path: Path) -> int:
    """A new file to append to. Raises `FileExistsError`: of two processes only one gets it."""
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o644)


def open_again(path: Path) -> int:
    """A file to append to, made if need be; what stands after its last whole line is cut off."""
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
    """Append a line; `durable`: wait until the disk has it. Raises `OSError` with the file as it was."""
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
    """Wait until the disk has the folder's own entries, such as the name of a new file."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
