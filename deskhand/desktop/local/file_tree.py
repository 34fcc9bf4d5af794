"""Folders that guests can write to: the disk that they use, and their removal.

Used by the resource monitor and by whatever removes such a folder, also by the reaper, which has no site packages.
Guests nest folders deeper than a path may be long or Python recurses, take away their own rights, and change everything
meanwhile. So each folder is opened relative to another, links are not followed, and nothing recurses.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path

MAX_ENTRIES = 200_000
"""Files and folders that `disk_bytes` counts, whatever their size."""
MAX_DEPTH = 100
"""Folders within folders that it counts. Each takes a file descriptor."""
MAX_WALKS = 5
"""A folder that is renamed each time exceeds the limit: guests could hide any number of files in it."""
MAX_REMOVAL_CPU_S = 60.0
"""Processor time for a removal: guests that live on could add files forever."""
_BATCH = 1000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNER_READS = stat.S_IRUSR | stat.S_IXUSR


class TreeTooLarge(Exception):
    """There are more files than `MAX_ENTRIES`, or folders deeper than `MAX_DEPTH` or with new names each time."""


def disk_bytes(folder: Path, limit: int) -> int:
    """Return the disk usage of a folder in bytes; stops counting above `limit`. Raises `TreeTooLarge`.

    Links are not followed. A folder that its owner, who is this process's user, may not read is readable meanwhile.
    Everything is counted again if a folder was renamed or removed before it could be opened.
    """
    moved: set[int] | None = None
    for _ in range(MAX_WALKS):
        total, lost = _walk(str(folder), limit)
        moved = lost if moved is None else moved & lost  # a tmpfs uses no inode twice
        if total > limit or not moved:
            return total
    raise TreeTooLarge("guests keep renaming folders while their files are counted")


def _walk(path: str, limit: int) -> tuple[int, set[int]]:
    """Return the disk usage, and the inodes of folders that were listed and then not there."""
    total = entries = 0
    lost: set[int] = set()
    opened: list[tuple[int, int | None, list[tuple[str, int]]]] = []
    """From the top down: descriptor, mode to restore, names and inodes of folders that were not counted yet."""
    todo: list[tuple[str, int]] = [(path, 0)]
    above: int | None = None
    try:
        while todo or opened:
            if not todo:
                descriptor, mode, _ = opened.pop()
                _close(descriptor, mode)
                above, todo = (opened[-1][0], opened[-1][2]) if opened else (None, [])
                continue
            name, inode = todo.pop()
            try:
                descriptor, mode = _open_readable(name, above)
            except FileNotFoundError:
                lost.add(inode)
                continue
            except OSError:
                continue
            folders: list[tuple[str, int]] = []
            opened.append((descriptor, mode, folders))
            above, todo = descriptor, folders
            if len(opened) > MAX_DEPTH:
                raise TreeTooLarge(f"guests nested folders more than {MAX_DEPTH} deep")
            with contextlib.suppress(OSError), os.scandir(descriptor) as found:
                for entry in found:
                    entries += 1
                    if entries > MAX_ENTRIES:
                        raise TreeTooLarge(f"guests created more than {MAX_ENTRIES} files")
                    with contextlib.suppress(OSError):  # the file may be gone
                        if entry.is_dir(follow_symlinks=False):
                            folders.append((entry.name, entry.inode()))
                        total += max(entry.stat(follow_symlinks=False).st_blocks * 512, 1024)
            if total > limit:
                break
    finally:
        for descriptor, mode, _ in reversed(opened):
            _close(descriptor, mode)
    return total, lost


def _open_readable(name: str, above: int | None) -> tuple[int, int | None]:
    """Return a descriptor of a folder, and the mode to restore if its owner had to get the rights to read it."""
    with contextlib.suppress(PermissionError):
        descriptor = os.open(name, _FOLDER, dir_fd=above)
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if os.geteuid() == 0 or mode & _OWNER_READS == _OWNER_READS:
            return descriptor, None
        with contextlib.suppress(PermissionError):
            os.fchmod(descriptor, mode | _OWNER_READS)
        return descriptor, mode
    mode = _grant(name, above, _OWNER_READS)
    return os.open(name, _FOLDER, dir_fd=above), mode


def _grant(name: str, above: int | None, rights: int) -> int:
    """Give the owner of a folder these rights; return its mode before."""
    found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        mode = stat.S_IMODE(os.fstat(found).st_mode)
        os.chmod(f"/proc/self/fd/{found}", mode | rights)
        return mode
    finally:
        os.close(found)


def _close(descriptor: int, mode: int | None) -> None:
    """Close a folder and restore its mode, unless somebody changed that meanwhile."""
    with contextlib.suppress(OSError):
        if mode is not None and stat.S_IMODE(os.fstat(descriptor).st_mode) == mode | _OWNER_READS:
            os.fchmod(descriptor, mode)
    os.close(descriptor)


def remove_tree(folder: Path) -> bool:
    """Remove a folder with everything on its file system, whatever guests made of it; return whether it is gone.

    Blocks, for at most `MAX_REMOVAL_CPU_S`. Never raises: what cannot be removed is logged.
    """
    is_gone = False
    try:
        is_gone = _remove(str(folder))
    except FileNotFoundError:
        is_gone = True
    except OSError as error:
        _warn(folder, error.strerror)
    else:
        if not is_gone:
            _warn(folder, "not empty")
    return is_gone


def _warn(folder: Path, error: str | None) -> None:
    with contextlib.suppress(ImportError):  # the reaper has no site packages, and nobody reads what it writes
        import structlog

        structlog.get_logger().warning("file_tree.not_removed", folder=str(folder), error=error)


def _remove(path: str) -> bool:
    """Empty one folder after the other. Those in it are moved to the top, so that none is ever deep."""
    top, deadline = _open_owned(path, None), time.thread_time() + MAX_REMOVAL_CPU_S
    new_names = (f"{secrets.token_hex(8)}-{number}" for number in itertools.count())
    try:
        device, kept = os.fstat(top).st_dev, set[str]()
        for entry in _entries(top, kept, deadline):
            try:
                if entry.is_dir(follow_symlinks=False):
                    _remove_folder(entry.name, top, device, new_names, deadline)
                else:
                    os.unlink(entry.name, dir_fd=top)
            except OSError:
                kept.add(entry.name)
    finally:
        os.close(top)
    with contextlib.suppress(OSError):
        os.rmdir(path)
    return not os.path.lexists(path)


def _remove_folder(name: str, top: int, device: int, new_names: Iterator[str], deadline: float) -> None:
    """Remove a folder of the top; what is in its folders is in the top afterwards."""
    folder, kept = _open_owned(name, top), set[str]()
    try:
        if os.fstat(folder).st_dev != device:  # another file system is mounted there
            raise PermissionError(name)
        for entry in _entries(folder, kept, deadline):
            try:
                if entry.is_dir(follow_symlinks=False):
                    _remove_or_move(entry.name, folder, top, new_names)
                else:
                    os.unlink(entry.name, dir_fd=folder)
            except OSError:
                kept.add(entry.name)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)


def _remove_or_move(name: str, folder: int, top: int, new_names: Iterator[str]) -> None:
    """Remove a folder if it is empty; otherwise move it to the top."""
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError:
        _grant(name, folder, stat.S_IRWXU)  # a folder that moves must be writable
        os.rename(name, next(new_names), src_dir_fd=folder, dst_dir_fd=top)


def _entries(folder: int, kept: set[str], deadline: float) -> Iterator[os.DirEntry[str]]:
    """Yield what is in a folder, which changes meanwhile, until there is nothing but `kept`."""
    while time.thread_time() < deadline:
        with os.scandir(folder) as found:
            batch = list(itertools.islice((entry for entry in found if entry.name not in kept), _BATCH))
        if not batch:
            return
        yield from batch


def _open_owned(name: str, above: int | None) -> int:
    """Open a folder in which its owner may do everything."""
    with contextlib.suppress(PermissionError):  # of another user: perhaps that is not needed
        _grant(name, above, stat.S_IRWXU)
    return os.open(name, _FOLDER, dir_fd=above)
