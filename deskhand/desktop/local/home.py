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
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

from deskhand.errors import InfrastructureError

MAX_FILE_BYTES = 64 * 1024 * 1024
_DEFAULT_HOME = PurePosixPath("/home/user")
_GUEST_ERRORS = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
_LIBC = ctypes.CDLL(None)
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


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
        if any("\0" in part for part in parts):
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
        descriptor = os.open(self.root, _DIRECTORY_FLAGS)
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

        Raises `FileNotFoundError`, or `PermissionError` if the path leaves the home, is not a regular file or exceeds
        `limit` bytes.
        """
        try:
            with self._as_guest():
                parts = self._resolve(path)
                if not parts:
                    raise IsADirectoryError(errno.EISDIR, "is a directory", path)
                with self._folder(parts[:-1], create=False) as folder:
                    descriptor = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ENOENT):
                raise FileNotFoundError(errno.ENOENT, "no such file in the guest's home", path) from None
            raise PermissionError(error.errno, "not a regular file in the guest's home", path) from None
        with _regular_file(descriptor, "rb", path) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise PermissionError(errno.EFBIG, f"larger than {limit} bytes", path)
        return data

    def write(self, path: str, data: bytes) -> None:
        """Write a file, creating its folders.

        Raises `PermissionError` if a link or special file is in the way, `InfrastructureError` if there is no space.
        """
        parts = self._parts(path)
        if not parts:
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        try:
            with self._as_guest(), self._folder(parts[:-1], create=True) as folder:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
                descriptor = os.open(parts[-1], flags, 0o644, dir_fd=folder)
        except OSError as error:
            if error.errno in _GUEST_ERRORS:
                raise PermissionError(error.errno, "cannot write in the guest's home", path) from None
            raise InfrastructureError(f"{path}: cannot write in the guest's home: {error.strerror}") from error
        file = _regular_file(descriptor, "wb", path)
        try:
            with file:
                file.write(data)
        except OSError as error:
            raise InfrastructureError(f"{path}: cannot write in the guest's home: {error.strerror}") from error

    def listdir(self, path: str) -> list[str]:
        """Return the sorted names in a folder. Raises `FileNotFoundError` if it does not exist."""
        try:
            with self._as_guest(), self._folder(self._resolve(path), create=False) as folder:
                return sorted(os.listdir(folder))
        except (NotADirectoryError, FileNotFoundError):
            raise FileNotFoundError(errno.ENOENT, "no such directory in the guest's home", path) from None


def _regular_file(descriptor: int, mode: Literal["rb", "wb"], path: str) -> BinaryIO:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "not a regular file", path)
    return os.fdopen(descriptor, mode)
