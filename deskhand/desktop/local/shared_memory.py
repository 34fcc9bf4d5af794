"""System V shared memory segment that an X server can write and this process can read.

Used by `screen_reader`; start with `Segment`.

Invariant: only the owner (`uid`) and the creating user can attach the segment. After `remove`, the kernel frees it
when the last process detaches, even if that process is killed.
"""

from __future__ import annotations

import contextlib

import numpy as np
import sysv_ipc


class Segment:
    """Attached segment of `size` bytes that another process of user `uid` can attach by `id` (None: this user).

    Raises:
        OSError: The segment cannot be created or its owner cannot be set.
    """

    def __init__(self, size: int, uid: int | None) -> None:
        try:
            self._memory = sysv_ipc.SharedMemory(sysv_ipc.IPC_PRIVATE, sysv_ipc.IPC_CREX, mode=0o600, size=size)
        except (sysv_ipc.Error, MemoryError, ValueError) as error:
            raise OSError(f"cannot create a shared memory segment of {size} bytes: {error}") from error
        self.id = self._memory.id
        try:
            if uid is not None:
                self._memory.uid = self._memory.gid = uid
        except sysv_ipc.Error as error:
            self.remove()
            raise OSError(f"cannot change the owner of the shared memory segment to user {uid}: {error}") from error
        self.bytes: np.ndarray = np.frombuffer(self._memory, np.uint8)
        """Contents, `uint8[size]`. Access after `close` crashes the process."""

    def remove(self) -> None:
        """Mark the segment for removal: no new attachments, and freed after the last detach."""
        with contextlib.suppress(sysv_ipc.Error):
            self._memory.remove()

    def close(self) -> None:
        """Detach from the segment. Idempotent."""
        if self._memory.attached:
            del self.bytes
            self._memory.detach()
