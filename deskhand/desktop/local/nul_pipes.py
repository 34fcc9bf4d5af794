"""Two pipes to a program in the box. Invariant: what a guest says there is data that ends in time, and no guest chooses which file
the host reads.

The program reads its descriptor 3 and writes its descriptor 4, as Chromium does with `--remote-debugging-pipe`: messages that end
with a NUL. It works without any network.
"""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

from deskhand.errors import InfrastructureError

LONGEST_MESSAGE_BYTES = 32 * 1024 * 1024
_CHUNK = 1 << 16
_LOOK_AGAIN_S = 0.005


class NulPipes:
    """The host's ends of `PATH.in` and `PATH.out`, which are made here; `uid` owns them."""

    def __init__(self, path: Path, uid: int | None = None) -> None:
        self._paths = [path.with_name(f"{path.name}.{end}") for end in ("in", "out")]
        self._ends: list[int] = []
        for place, flags in zip(self._paths, (os.O_RDWR, os.O_RDONLY), strict=True):
            os.mkfifo(place, 0o600)
            if uid is not None:
                os.chown(place, uid, uid)
            self._ends.append(os.open(place, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC))
            if not stat.S_ISFIFO(os.fstat(self._ends[-1]).st_mode):
                self.close()
                raise InfrastructureError(f"{place.name} is no pipe")
        self._pending = bytearray()
        self._heard = False

    async def send(self, message: bytes, timeout_s: float = 10.0) -> None:
        """Raises `InfrastructureError` when the program does not take it in time."""
        view = memoryview(message + b"\0")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while view:
            try:
                view = view[os.write(self._end(0), view) :]
            except BlockingIOError:
                if loop.time() > deadline:
                    raise InfrastructureError(f"the program took nothing for {timeout_s:g} s") from None
                await asyncio.sleep(_LOOK_AGAIN_S)
            except OSError as error:
                raise InfrastructureError(f"the program's pipe broke: {error.strerror}") from None

    async def receive(self, timeout_s: float = 10.0) -> bytes:
        """The next message. Raises `InfrastructureError` when the program has ended, says too much, or says nothing in time (also
        because it ended without a word)."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    end = self._pending.find(b"\0")
                    if end >= 0:
                        message = bytes(self._pending[:end])
                        del self._pending[: end + 1]
                        return message
                    if len(self._pending) > LONGEST_MESSAGE_BYTES:
                        raise InfrastructureError(
                            f"the program sent a message of more than {LONGEST_MESSAGE_BYTES} bytes"
                        )
                    self._pending += await self._chunk()
        except TimeoutError:
            raise InfrastructureError(f"the program said nothing for {timeout_s:g} s") from None

    async def _chunk(self) -> bytes:
        loop = asyncio.get_running_loop()
        while True:
            descriptor = self._end(1)
            try:
                data = os.read(descriptor, _CHUNK)
            except BlockingIOError:
                ready = loop.create_future()
                loop.add_reader(descriptor, _set, ready)
                try:
                    await ready
                finally:
                    loop.remove_reader(descriptor)
                continue
            except OSError as error:
                raise InfrastructureError(f"the program's pipe broke: {error.strerror}") from None
            if data:
                self._heard = True
                return data
            if self._heard:
                raise InfrastructureError("the program has closed its pipe; it has ended")
            await asyncio.sleep(_LOOK_AGAIN_S)  # it has not opened it yet

    def _end(self, index: int) -> int:
        if not self._ends:
            raise InfrastructureError("the pipes are closed")
        return self._ends[index]

    def close(self) -> None:
        """Idempotent."""
        ends, self._ends = self._ends, []
        for descriptor in ends:
            os.close(descriptor)
        for place in self._paths:
            place.unlink(missing_ok=True)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
