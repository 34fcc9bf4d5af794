"""A guest's home folder seen from the host. Invariant: no path that a guest made leads the host out of the home.

Every step of a path is opened without following links, relative to the folder before it, so that nothing can be swapped
in between. Where guests have a user id of their own, the host's hand has no more rights on the files than they have.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from deskhand.errors import InfrastructureError

LIMIT_BYTES = 64 * 1024 * 1024
_USUAL_HOME = PurePosixPath("/home/user")
_GUEST_MADE = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
_LIBC = ctypes.CDLL(None)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class Home:
    """`root` on the host is `guest_root` for the guest (and `/home/user` always means it); `uid` owns it, or this process does.

    Reading follows a symbolic link that stays in the home; writing follows none.
    """

    def __init__(self, root: Path, guest_root: str, uid: int | None = None) -> None:
        self.root = root
        self._uid = uid
        self._guest_root = PurePosixPath(guest_root)

    def _parts(self, path: str) -> list[str]:
        pure = PurePosixPath(path)
        if pure.is_absolute():
            root = next((root for root in (self._guest_root, _USUAL_HOME) if pure.is_relative_to(root)), None)
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
            raise FileNotFoundError(errno.ENOENT, "not a path", path)
        return parts

    @contextmanager
    def _rights(self) -> Iterator[None]:
        """This thread opens and makes files as the guest's user."""
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
        descriptor = os.open(self.root, _FOLDER)
        try:
            for part in parts:
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=descriptor)
                deeper = os.open(part, _FOLDER, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = deeper
            yield descriptor
        finally:
            os.close(descriptor)

    def _resolved(self, path: str) -> list[str]:
        """Parts of `path` with the links that stay inside the home followed. Raises `PermissionError` for one that leaves it."""
        pending, done = self._parts(path), []
        for _ in range(64):
            if not pending:
                return done
            part = pending.pop(0)
            with self._folder(done, create=False) as folder:
                try:
                    target = os.readlink(part, dir_fd=folder)
                except OSError:
                    done.append(part)
                    continue
            try:
                base = self._parts(str(PurePosixPath(*done, target)) if not target.startswith("/") else target)
            except FileNotFoundError:
                raise PermissionError(errno.EPERM, "a link that leaves the home", path) from None
            pending, done = base + pending, []
        raise PermissionError(errno.ELOOP, "too many links", path)

    def read(self, path: str, limit: int = LIMIT_BYTES) -> bytes:
        """A regular file's bytes. Raises `FileNotFoundError`; `PermissionError` for a link out of the home, what is no
        regular file, and more than `limit` bytes.
        """
        try:
            with self._rights():
                parts = self._resolved(path)
                if not parts:
                    raise IsADirectoryError(errno.EISDIR, "is a folder", path)
                with self._folder(parts[:-1], create=False) as folder:
                    descriptor = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ENOENT):
                raise FileNotFoundError(errno.ENOENT, "no such file in the guest's home", path) from None
            raise PermissionError(error.errno, "not a regular file of the guest's home", path) from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise PermissionError(errno.EPERM, "not a regular file", path)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise PermissionError(errno.EFBIG, f"larger than {limit} bytes", path)
        return data

    def write(self, path: str, data: bytes) -> None:
        """Write a file, creating folders. Raises `PermissionError` when a link or a special file is in the way, and
        `InfrastructureError` when there is no room."""
        parts = self._parts(path)
        if not parts:
            raise IsADirectoryError(errno.EISDIR, "is a folder", path)
        try:
            with self._rights(), self._folder(parts[:-1], create=True) as folder:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
                descriptor = os.open(parts[-1], flags, 0o644, dir_fd=folder)
        except OSError as error:
            if error.errno in _GUEST_MADE:
                raise PermissionError(error.errno, "cannot be written in the guest's home", path) from None
            raise InfrastructureError(f"{path} cannot be written in the guest's home: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise PermissionError(errno.EPERM, "not a regular file", path)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
        except OSError as error:
            raise InfrastructureError(f"{path} cannot be written in the guest's home: {error.strerror}") from error

    def names(self, path: str) -> list[str]:
        """Sorted names in a folder. Raises `FileNotFoundError` when there is no such folder."""
        try:
            with self._rights(), self._folder(self._resolved(path), create=False) as folder:
                return sorted(os.listdir(folder))
        except (NotADirectoryError, FileNotFoundError):
            raise FileNotFoundError(errno.ENOENT, "no such folder in the guest's home", path) from None
