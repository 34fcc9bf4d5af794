"""Two pipes to a program in the jail, for NUL-terminated messages.

The program reads descriptor 3 and writes descriptor 4, like Chromium with `--remote-debugging-pipe`. Needs no network.
Messages are untrusted and bounded in size and time, and a guest cannot choose which file the host reads.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from deskhand.errors import InfrastructureError

Result = TypeVar("Result")
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""A guest's JSON of this size takes less than a second and 200 MB to parse."""
_CHUNK = 1 << 16
_RETRY_S = 0.005


class NulPipes:
    """The host's ends of `PATH.in` and `PATH.out`, which are created here and owned by `uid`."""

    explain: Callable[[InfrastructureError], None] | None = None
    """Called with an error, on another thread: raises `GuestFailure` if guests caused it."""

    def __init__(self, path: Path, uid: int | None = None) -> None:
        self._paths = [path.with_name(f"{path.name}.{end}") for end in ("in", "out")]
        self._descriptors: list[int] = []
        for path, flags in zip(self._paths, (os.O_RDWR, os.O_RDONLY), strict=True):
            os.mkfifo(path, 0o600)
            if uid is not None:
                os.chown(path, uid, uid)
            self._descriptors.append(os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC))
            if not stat.S_ISFIFO(os.fstat(self._descriptors[-1]).st_mode):
                self.close()
                raise InfrastructureError(f"{path.name} is not a pipe")
        self._pending = bytearray()
        self._has_data = False

    async def explained(self, work: Awaitable[Result]) -> Result:
        """Return the result of `work` with the program. Raises `GuestFailure` for its error if guests caused that."""
        try:
            return await work
        except InfrastructureError as error:
            if self.explain is not None and self._descriptors:
                await asyncio.to_thread(self.explain, error)
            raise

    async def send(self, message: bytes, timeout_s: float = 10.0) -> None:
        """Raise `InfrastructureError` if the program does not read in time."""
        await self.explained(self._send(message, timeout_s))

    async def _send(self, message: bytes, timeout_s: float) -> None:
        view = memoryview(message + b"\0")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while view:
            try:
                view = view[os.write(self._descriptor(0), view) :]
            except BlockingIOError:
                if loop.time() > deadline:
                    raise InfrastructureError(f"the program read nothing for {timeout_s:g} s") from None
                await asyncio.sleep(_RETRY_S)
            except OSError as error:
                raise InfrastructureError(f"the program's pipe broke: {error.strerror}") from None

    async def receive(self, timeout_s: float = 10.0) -> bytes:
        """Return the next message.

        Raises `InfrastructureError` if the program has exited, sends too much, or sends nothing in time.
        """
        return await self.explained(self._receive(timeout_s))

    async def _receive(self, timeout_s: float) -> bytes:
        searched = 0
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    # The program may write as fast as this reads, and the time limit and other episodes need a turn.
                    await asyncio.sleep(0)
                    end = self._pending.find(b"\0", searched)
                    if end >= 0:
                        message = bytes(self._pending[:end])
                        del self._pending[: end + 1]
                        return message
                    if len(self._pending) > MAX_MESSAGE_BYTES:
                        raise InfrastructureError(f"the program sent a message larger than {MAX_MESSAGE_BYTES} bytes")
                    searched = len(self._pending)
                    self._pending += await self._chunk()
        except TimeoutError:
            raise InfrastructureError(f"the program sent nothing for {timeout_s:g} s") from None

    async def _chunk(self) -> bytes:
        loop = asyncio.get_running_loop()
        while True:
            descriptor = self._descriptor(1)
            try:
                data = os.read(descriptor, _CHUNK)
            except BlockingIOError:
                ready = asyncio.Event()
                loop.add_reader(descriptor, ready.set)
                try:
                    await ready.wait()
                finally:
                    loop.remove_reader(descriptor)
                continue
            except OSError as error:
                raise InfrastructureError(f"the program's pipe broke: {error.strerror}") from None
            if data:
                self._has_data = True
                return data
            if self._has_data:
                raise InfrastructureError("the program closed its pipe")
            await asyncio.sleep(_RETRY_S)  # the program has not opened the pipe yet

    def _descriptor(self, index: int) -> int:
        if not self._descriptors:
            raise InfrastructureError("the pipes are closed")
        return self._descriptors[index]

    def close(self) -> None:
        """Idempotent."""
        ends, self._descriptors = self._descriptors, []
        for descriptor in ends:
            os.close(descriptor)
        for path in self._paths:
            path.unlink(missing_ok=True)
