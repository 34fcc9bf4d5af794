"""System V shared memory, of which Python's standard library has none. Invariant: nobody but this user and the one that is named
can attach a segment, and once `remove` was called it is gone when the last one lets go of it, however they end.

Numbers and the structure are those of sys/ipc.h and sys/shm.h on Linux.
"""

from __future__ import annotations

import ctypes
import os
import struct

import numpy as np

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.shmat.restype = ctypes.c_void_p
_LIBC.shmat.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_LIBC.shmdt.argtypes = (ctypes.c_void_p,)
_PRIVATE, _CREATE, _REMOVE, _SET, _GET = 0, 0o1000, 0, 1, 2
_NO_ADDRESS = ctypes.c_void_p(-1).value
_OWNER_AT = struct.calcsize("=i")
_DESCRIPTION_BYTES = 256


class Segment:
    """`size` bytes, attached here; `id` is for whoever else attaches them, user `uid` (None: this one). Raises `OSError`."""

    def __init__(self, size: int, uid: int | None) -> None:
        self.id = _checked(_LIBC.shmget(_PRIVATE, ctypes.c_size_t(size), _CREATE | 0o600), "shmget")
        try:
            if uid is not None:
                about = ctypes.create_string_buffer(_DESCRIPTION_BYTES)
                _checked(_LIBC.shmctl(self.id, _GET, about), "shmctl")
                struct.pack_into("=II", about, _OWNER_AT, uid, uid)
                _checked(_LIBC.shmctl(self.id, _SET, about), "shmctl")
            address = _LIBC.shmat(self.id, None, 0)
            if address == _NO_ADDRESS:
                _checked(-1, "shmat")
        except BaseException:
            self.remove()
            raise
        self._address = address
        self.bytes: np.ndarray = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        """`uint8[size]`; what is read of it after `close` ends the process."""

    def remove(self) -> None:
        """Nobody can attach it from now on; it is gone with the last who did."""
        _LIBC.shmctl(self.id, _REMOVE, None)

    def close(self) -> None:
        """Let go of it. Idempotent."""
        address, self._address = self._address, None
        if address is not None:
            del self.bytes
            _LIBC.shmdt(address)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
