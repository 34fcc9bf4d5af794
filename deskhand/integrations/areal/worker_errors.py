"""Errors in AReaL's workers that end the run, and the thread of the launcher that notices them.

AReaL 1.0.4 logs whatever a workflow raises, counts its task as rejected and draws another one
(`WorkflowExecutor._create_workflow_task`), so a variable that is not set on one node would cost that node for good, and
on all nodes the run would go on for ever without a step. Workflows and plain agents therefore report what they raise:
a file of one line in `worker_errors/` of the run directory, which every node shares with the launcher.

What is wrong with one episode (an outage, a mistake of the code, a task that its start state solves) ends the run only
when it happens again and again: `ErrorLimits` counts it, for workflows and plain agents alike.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import structlog

from deskhand.errors import CodeError, ConfigError
from deskhand.rollout.scheduler import MAX_BUGS
from deskhand.rollout.scored_workflow import EPISODE_ERRORS
from deskhand.tasks.outcome import Cause, Errored

FOLDER = "worker_errors"
POLL_S = 0.5
MAX_TEXT = 1000
LOST: tuple[Cause, ...] = ("infrastructure", "evaluator", "already_solved")
"""Causes of a group without a score that count toward `max_errored`."""
log = structlog.get_logger()


@dataclass
class _Counts:
    """Failures of one process in one run."""

    bugs: int = 0
    """Episodes that ended in a mistake of the code."""
    errored: int = 0
    """Consecutive groups without a score."""


_counts: dict[str | None, _Counts] = {}
"""By run directory: the processes of AReaL's subproc mode end worker resources with each episode."""


@dataclass(frozen=True)
class ErrorLimits:
    """What ends the run of a workflow or a plain agent."""

    folder: str | None
    """The run directory."""
    max_errored: int
    """Consecutive groups without a score."""
    unit: str = "groups"
    """Or "episodes": those of a plain agent are counted one by one, because its groups are AReaL's."""

    @contextmanager
    def report_errors(self) -> Iterator[None]:
        """Report what is raised inside, except cancellation; what is wrong with one episode is counted."""
        try:
            yield
        except Exception as error:
            causes: list[Cause] = [cause for cause, kind in EPISODE_ERRORS.items() if isinstance(error, kind)]
            if causes:
                self.count([Errored(causes[0], str(error))])
            else:
                report(self.folder, error)
            raise

    def count(self, errors: Sequence[Errored], *, is_scored: bool = False) -> int:
        """Count a finished group (or episode) and return the consecutive ones without a score.

        Reports `max_errored` of these, and `MAX_BUGS` episodes of this process that ended in a mistake of the code.
        """
        counts = _counts.setdefault(self.folder, _Counts())
        if is_scored:
            counts.errored = 0
        elif lost := [error for error in errors if error.cause in LOST]:
            counts.errored += 1
            if counts.errored == self.max_errored:
                text = f"{counts.errored} consecutive {self.unit} without a score; last error: {lost[-1].message}"
                report(self.folder, ConfigError(text))
        bugs = [error for error in errors if error.cause == "bug"]
        before, counts.bugs = counts.bugs, counts.bugs + len(bugs)
        if before < MAX_BUGS <= counts.bugs:
            text = f"{counts.bugs} episodes ended in a mistake of the code; last: {bugs[-1].message}"
            report(self.folder, CodeError(text))
        return counts.errored


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
