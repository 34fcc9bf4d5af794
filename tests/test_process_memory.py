"""Arenas of the C library are bounded, in a process of its own."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import weakref
from pathlib import Path

from deskhand.recipes.process_memory import return_freed_memory

PROGRAM = """
import ctypes, os, threading
from deskhand.recipes.process_memory import limit_arenas
limited = limit_arenas(3) if {limit} else True
malloc, gate = ctypes.CDLL(None).malloc, threading.Barrier(12)
def work():
    gate.wait()
    malloc(64)
    gate.wait()
threads = [threading.Thread(target=work) for _ in range(12)]
for thread in threads: thread.start()
for thread in threads: thread.join()
name = "{path}".encode()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = libc.fopen(name, b"w")
libc.malloc_info(0, ctypes.c_void_p(file))
libc.fclose(ctypes.c_void_p(file))
print(limited)
"""


def arenas(path: Path, *, limit: bool) -> int:
    """How many arenas twelve threads that allocate make."""
    program = PROGRAM.format(limit=limit, path=path)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr
    return len(re.findall(r"<heap nr=", path.read_text()))


def test_threads_share_few_arenas(tmp_path: Path) -> None:
    assert arenas(tmp_path / "limited", limit=True) <= 3 < arenas(tmp_path / "unlimited", limit=False)


class Episode:
    """A cycle with a screenshot."""

    def __init__(self) -> None:
        self.own, self.screen = self, bytearray(1 << 20)


def test_ended_episodes_are_freed_although_they_are_cycles() -> None:
    gc.collect()
    gc.disable()
    try:
        ended = weakref.ref(Episode())
        assert ended() is not None
        return_freed_memory()
        assert ended() is None
    finally:
        gc.enable()
