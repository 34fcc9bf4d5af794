"""Errors in AReaL's workers that end the run, and the thread of the launcher that notices them.

AReaL 1.0.4 logs whatever a workflow raises, counts its task as rejected and draws another one
(`WorkflowExecutor._create_workflow_task`), so a variable that is not set on one node would cost that node for good, and
on all nodes the run would go on for ever without a step. Workflows and plain agents therefore report what they raise:
a file of one line in `worker_errors/` of the run directory, which every node shares with the launcher.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import structlog

from deskhand.errors import ConfigError, EvaluatorError, InfrastructureError

FOLDER = "worker_errors"
POLL_S = 0.5
MAX_TEXT = 1000
_OUTAGES = (InfrastructureError, EvaluatorError)
"""Errors of one episode; another episode may succeed."""
log = structlog.get_logger()


def worker_name() -> str:
    """Return "rollout/0 on HOST (process N)": AReaL's name of this worker, as far as it is known here."""
    words, role, index = sys.argv, "", ""
    for name, value in pairwise(words):
        role = value if name == "--role" else role
        index = value if name == "--worker-index" else index
    name = f"{role}/{index}" if role and index else role
    if not name and "ray" in sys.modules:
        import ray  # pyright: ignore[reportMissingImports]

        name = (ray.get_runtime_context().get_actor_name() or "") if ray.is_initialized() else ""
    return f"{name or 'process'} on {socket.gethostname()} (process {os.getpid()})"


@contextmanager
def report_errors(folder: str | None) -> Iterator[None]:
    """Report what is raised inside, except outages of an episode and cancellation. `folder`: the run directory."""
    try:
        yield
    except _OUTAGES:
        raise
    except Exception as error:
        report(folder, error)
        raise


def report(folder: str | None, error: Exception) -> None:
    """Write an error, as one line that names this worker, for the launcher; without a folder it is only logged."""
    text = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
    line = f"worker {worker_name()}: {' '.join(text.split())[:MAX_TEXT]}"
    log.error("areal.worker_error", error=line)
    if folder is None:
        return
    try:
        place = Path(folder) / FOLDER
        place.mkdir(parents=True, exist_ok=True)
        name = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
        unfinished = place / f".{name}"
        unfinished.write_text(line + "\n", encoding="utf-8")
        unfinished.rename(place / f"{name}.txt")
    except OSError as failure:
        log.error("areal.worker_error_not_written", folder=folder, error=str(failure))


def first_error(folder: Path) -> str | None:
    """Return the line that was reported first."""
    found = sorted((folder / FOLDER).glob("*.txt"), key=lambda path: path.name.rsplit("-", 1)[1])
    return found[0].read_text(encoding="utf-8").strip() if found else None


def clear(folder: Path) -> None:
    """Remove what an earlier run in this directory reported."""
    for path in (folder / FOLDER).glob("*.txt"):
        path.unlink(missing_ok=True)


@contextmanager
def watch(folder: Path, on_error: Callable[[str], None]) -> Iterator[None]:
    """Call `on_error(line)` once, in another thread, when a worker reports an error."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(POLL_S):
            if (line := first_error(folder)) is not None:
                on_error(line)
                return

    thread = threading.Thread(target=look, name="worker-errors", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
