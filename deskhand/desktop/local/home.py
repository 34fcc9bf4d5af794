"""A guest's home folder, accessed from the host.

Each path component is opened relative to its parent without following links, so nothing can be swapped in between.
Where guests have their own user id, the host accesses files with that user's rights.

Invariant: no path that a guest created leads the host out of the home.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

from deskhand.errors import InfrastructureError

MAX_FILE_BYTES = 64 * 1024 * 1024
_DEFAULT_HOME = PurePosixPath("/home/user")
MAX_NAMES = 10_000
_HOST_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EIO, errno.ENOSPC, errno.EDQUOT)
"""Errors of this machine. Guests can cause every other one, by what they put in the place of a file or a folder."""
_MISSING = (errno.ENOENT, errno.ENOTDIR)
_LIBC = ctypes.CDLL(None)
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def _as_error(error: OSError, path: str, what: str, missing: tuple[int, ...]) -> Exception:
    """Return what to raise for an error of the system: a guest's doing never looks like an outage, and vice versa."""
    if error.errno in _HOST_ERRORS:
        return InfrastructureError(f"{path}: cannot be accessed in the guest's home: {error.strerror}")
    if error.errno in missing:
        return FileNotFoundError(errno.ENOENT, f"no such {what} in the guest's home", path)
    return PermissionError(error.errno, f"not an accessible {what} in the guest's home", path)


class Home:
    """The home at `root` on the host and `guest_root` in the guest (`/home/user` always refers to it).

    Owned by `uid`, or by this process if None. Reads follow symbolic links that stay in the home; writes follow none.
    """

    def __init__(self, root: Path, guest_root: str, uid: int | None = None) -> None:
        self.root = root
        self._uid = uid
        self._guest_root = PurePosixPath(guest_root)

    def _parts(self, path: str) -> list[str]:
        pure = PurePosixPath(path)
        if pure.is_absolute():
            root = next((root for root in (self._guest_root, _DEFAULT_HOME) if pure.is_relative_to(root)), None)
            if root is None:
                raise FileNotFoundError(errno.ENOENT, "not in the guest's home", path)
            pure = pure.relative_to(root)
        parts: list[str] = []
        for part in pure.parts:
            if part == "..":
                if not parts:
                    raise FileNotFoundError(errno.ENOENT, "not in the guest's home", path)
                parts.pop()
            else:
                parts.append(part)
        if "\0" in path or not _is_encodable(path):
            raise FileNotFoundError(errno.ENOENT, "invalid path", path)
        return parts

    @contextmanager
    def _as_guest(self) -> Iterator[None]:
        """Use the guest user's file-system rights in this thread."""
        if self._uid is None:
            yield
            return
        _LIBC.setfsgid(self._uid)
        _LIBC.setfsuid(self._uid)
        try:
            yield
        finally:
            _LIBC.setfsuid(os.getuid())
            _LIBC.setfsgid(os.getgid())

    @contextmanager
    def _folder(self, parts: list[str], create: bool) -> Iterator[int]:
        try:
            descriptor = os.open(self.root, _DIRECTORY_FLAGS)
        except FileNotFoundError as error:
            raise InfrastructureError(f"{self.root}: the guest's home is gone") from error
        try:
            for part in parts:
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=descriptor)
                deeper = os.open(part, _DIRECTORY_FLAGS, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = deeper
            yield descriptor
        finally:
            os.close(descriptor)

    def _resolve(self, path: str) -> list[str]:
        """Return the parts of `path` with links inside the home resolved. Raises `PermissionError` if one leaves it."""
        pending, resolved = self._parts(path), []
        for _ in range(64):
            if not pending:
                return resolved
            part = pending.pop(0)
            with self._folder(resolved, create=False) as folder:
                try:
                    target = os.readlink(part, dir_fd=folder)
                except OSError:
                    resolved.append(part)
                    continue
            try:
                base = self._parts(str(PurePosixPath(*resolved, target)) if not target.startswith("/") else target)
            except FileNotFoundError:
                raise PermissionError(errno.EPERM, "link leaves the home", path) from None
            pending, resolved = base + pending, []
        raise PermissionError(errno.ELOOP, "too many links", path)

    def read(self, path: str, limit: int = MAX_FILE_BYTES) -> bytes:
        """Return the bytes of a regular file.

        Raises `FileNotFoundError`; `PermissionError` if the path leaves the home, is not a regular file or exceeds
        `limit` bytes; `InfrastructureError` if this machine fails.
        """
        try:
            with self._as_guest():
                parts = self._resolve(path)
                if not parts:
                    raise IsADirectoryError(errno.EISDIR, "is a directory", path)
                with self._folder(parts[:-1], create=False) as folder:
                    descriptor = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            with _regular_file(descriptor, "rb", path) as file:
                data = file.read(limit + 1)
        except OSError as error:
            raise _as_error(error, path, "regular file", _MISSING) from error
        if len(data) > limit:
            raise PermissionError(errno.EFBIG, f"larger than {limit} bytes", path)
        return data

    def write(self, path: str, data: bytes) -> None:
        """Write a file, creating its folders.

        Raises `PermissionError` if a link or special file is in the way, `InfrastructureError` if this machine fails,
        for example because there is no space.
        """
        parts = self._parts(path)
        if not parts:
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        try:
            with self._as_guest(), self._folder(parts[:-1], create=True) as folder:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
                descriptor = os.open(parts[-1], flags, 0o644, dir_fd=folder)
            with _regular_file(descriptor, "wb", path) as file:
                file.write(data)
        except OSError as error:
            raise _as_error(error, path, "regular file", ()) from error

    def listdir(self, path: str) -> list[str]:
        """Return the sorted names in a folder, at most `MAX_NAMES` of them: guests can create millions.

        A byte of a name that is not UTF-8 becomes four characters such as `\\xff`, so that each name is a valid text
        everywhere; such a file cannot be read. Raises `FileNotFoundError` if there is no folder, `PermissionError` if
        the guest made it inaccessible, `InfrastructureError` if this machine fails.
        """
        try:
            with (
                self._as_guest(),
                self._folder(self._resolve(path), create=False) as folder,
                os.scandir(folder) as found,
            ):
                names = [os.fsencode(entry.name) for entry in islice(found, MAX_NAMES)]
        except OSError as error:
            raise _as_error(error, path, "folder", _MISSING) from error
        return sorted(name.decode("utf-8", "backslashreplace") for name in names)


def _is_encodable(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def _regular_file(descriptor: int, mode: Literal["rb", "wb"], path: str) -> BinaryIO:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "not a regular file", path)
    return os.fdopen(descriptor, mode)
