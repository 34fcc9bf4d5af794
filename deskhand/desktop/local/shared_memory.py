"""A segment of System V shared memory. Invariant: nobody but this user and the one that is named can attach it, and
once `remove` was called it is gone when the last one lets go of it, however they end.
"""

from __future__ import annotations

import contextlib

import numpy as np
import sysv_ipc


class Segment:
    """`size` bytes, attached here; `id` is for whoever else attaches them, user `uid` (None: this one). Raises
    `OSError`."""

    def __init__(self, size: int, uid: int | None) -> None:
        try:
            self._memory = sysv_ipc.SharedMemory(sysv_ipc.IPC_PRIVATE, sysv_ipc.IPC_CREX, mode=0o600, size=size)
        except (sysv_ipc.Error, MemoryError, ValueError) as error:
            raise OSError(f"no shared memory of {size} bytes: {error}") from error
        self.id = self._memory.id
        try:
            if uid is not None:
                self._memory.uid = self._memory.gid = uid
        except sysv_ipc.Error as error:
            self.remove()
            raise OSError(f"the shared memory cannot be given to user {uid}: {error}") from error
        self.bytes: np.ndarray = np.frombuffer(self._memory, np.uint8)
        """`uint8[size]`; what is read of it after `close` ends the process."""

    def remove(self) -> None:
        """Nobody can attach it from now on; it is gone with the last who did."""
        with contextlib.suppress(sysv_ipc.Error):
            self._memory.remove()

    def close(self) -> None:
        """Let go of it. Idempotent."""
        if self._memory.attached:
            del self.bytes
            self._memory.detach()
