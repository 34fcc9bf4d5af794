"""`deskhand` commands in processes of their own, which can be interrupted, or prepared otherwise, at their start.

The processes are forked from a server that has imported torch and transformers, so that each takes a second or two.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from patience import limit

PRELOADED = ["torch", "transformers.models.qwen3_vl.modeling_qwen3_vl", "deskhand.recipes.train"]


class Interrupt:
    """Sends Ctrl-C to the whole process group, as a terminal does, at the n-th call of a function of a file.

    `<module>` is the import of the file.
    """

    def __init__(self, file: str, function: str, number: int = 1) -> None:
        self.file, self.function, self.left = file, function, number

    def install(self) -> None:
        """Watch the calls of this process's threads."""
        threading.setprofile(self._watch)
        sys.setprofile(self._watch)

    def _watch(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_qualname != self.function or not code.co_filename.endswith(self.file):
            return
        self.left -= 1
        if self.left == 0:
            threading.setprofile(None)
            sys.setprofile(None)
            self._interrupt()

    def _interrupt(self) -> None:
        os.killpg(0, signal.SIGINT)


@dataclass(frozen=True)
class Ended:
    """How a command ended. `left` are the processes of its session that still run."""

    code: int | None
    out: str
    err: str
    left: list[str]


def nothing() -> None:
    """Prepare nothing."""


def _main(arguments: list[str], folder: Path, prepare: Callable[[], None]) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["deskhand", *arguments]
    prepare()
    from deskhand.__main__ import main

    main()


def command(folder: Path, *arguments: str, prepare: Callable[[], None] = nothing) -> Ended:
    """Run a command to its end; what it prints goes to files in `folder`. `prepare` is called in its process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_main, args=(list(arguments), folder, prepare))
    process.start()
    assert process.pid is not None
    process.join(limit(120))
    left = [] if process.exitcode is not None else [f"the command itself, after {limit(120)} s"]
    for each in psutil.process_iter():
        try:
            if each.pid != process.pid and os.getsid(each.pid) == process.pid:
                left.append(" ".join(each.cmdline()))
                each.kill()
        except (psutil.Error, OSError):
            continue
    if process.exitcode is None:
        process.kill()
        process.join()
    return Ended(process.exitcode, (folder / "out").read_text(), (folder / "err").read_text(), left)
