"""Processes of tests: whether they still run, and those that end with the tests.

Invariant: what `start` and `run_to_end` began ends with `all_ended`, and if the process of the tests is killed.
Programs get SIGTERM, so that they can end what they began themselves.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from patience import limit

_lock = threading.Lock()
_running: set[subprocess.Popen[Any]] = set()
_is_over = False


def is_alive(process: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def start(words: Sequence[str], **named: Any) -> subprocess.Popen[Any]:
    """As `subprocess.Popen`. The kernel ends the process, too, when the calling thread ends."""
    with _lock:
        if _is_over:
            raise RuntimeError(f"{words[0]}: the tests are over")
        _running.difference_update([process for process in _running if process.poll() is not None])
        own = [str(shutil.which("setpriv")), "--pdeathsig", "TERM", *words]
        process = subprocess.Popen(own, **named)
        _running.add(process)
    return process


def run_to_end(
    words: Sequence[str],
    *,
    timeout: float | None = None,
    check: bool = False,
    capture_output: bool = False,
    **named: Any,
) -> subprocess.CompletedProcess[Any]:
    """As `subprocess.run`, but what is late gets SIGTERM first."""
    pipe = subprocess.PIPE
    process = start(words, **named, **({"stdout": pipe, "stderr": pipe} if capture_output else {}))
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        end(process)
    done = subprocess.CompletedProcess(words, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def end(process: subprocess.Popen[Any]) -> None:
    """Ends a process that still runs."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(limit(120))
    if process.poll() is None:
        process.kill()
        process.wait()


@contextmanager
def all_ended() -> Iterator[None]:
    """Ends all that run; inside of it none can be started."""
    global _is_over
    with _lock:
        _is_over = True
        left = [process for process in _running if process.poll() is None]
    try:
        for process in left:
            process.terminate()
        for process in left:
            end(process)
        yield
    finally:
        _is_over = False
