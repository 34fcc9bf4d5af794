"""A `deskhand` command that gets Ctrl-C, with its whole process group, when it calls a function for the n-th time.

As a program: `python interrupted.py FILE:FUNCTION N ARGUMENTS...`; `FILE:<module>` is the import of the file. Start it
in a session of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any


class Interrupt:
    """A profile function for all threads."""

    def __init__(self, place: str, number: int) -> None:
        self.file, _, self.function = place.rpartition(":")
        self.left = number

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_qualname != self.function or not code.co_filename.endswith(self.file):
            return
        self.left -= 1
        if self.left == 0:
            threading.setprofile(None)
            sys.setprofile(None)
            print(f"interrupted at {time.time()}", flush=True)
            os.killpg(0, signal.SIGINT)


def main() -> None:
    place, number = sys.argv[1], int(sys.argv[2])
    sys.argv = ["deskhand", *sys.argv[3:]]
    interrupt = Interrupt(place, number)
    threading.setprofile(interrupt)
    sys.setprofile(interrupt)
    import runpy

    runpy.run_module("deskhand", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
