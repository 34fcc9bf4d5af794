"""OSWorld's own evaluators behind a wall. Invariant: they get files and values, never a guest or a network; whatever they do, a
judgement ends within its bounds, with a score or with an `EvaluatorError` that says why.

`scripts/environment osworld-evaluators` makes their environment. One process of it (`judge_process.py`) is kept and forks for each
judgement, so that importing the metrics is paid for once and siblings that are judged at once cannot disturb each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import secrets
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deskhand.desktop.local import isolation, processes
from deskhand.desktop.local.runtime_dir import runtime
from deskhand.errors import ConfigError, EvaluatorError
from deskhand.osworld import judge_process
from deskhand.venvs import newest_venv

ENVIRONMENT = "osworld-evaluators"
MODULES = ("desktop_env.evaluators.metrics", "desktop_env.evaluators.getters")
START_S = 180.0
_MARGIN_S = 30.0
_LARGEST_BLOBS = 512 << 20


@dataclass(frozen=True)
class JudgeLimits:
    """Of one judgement."""

    seconds: float = 60.0
    memory_mib: int = 4096
    output_bytes: int = 8 << 20


@dataclass(frozen=True)
class Value:
    """Something that JSON can say."""

    value: Any


@dataclass(frozen=True)
class Files:
    """Files by the names that the metric sees; None for one that there is not. `single`: the metric gets one path, not a list."""

    files: tuple[tuple[str, bytes | None], ...]
    single: bool = True


@dataclass(frozen=True)
class GetterRequest:
    """What OSWorld's own getter makes of files of the guest, by their paths there."""

    getter: str
    config: dict[str, Any]
    files: Mapping[str, bytes | None] = field(default_factory=dict)


Read = Value | Files | GetterRequest


@dataclass(frozen=True)
class MetricRequest:
    """One metric with what it gets; `expected` None: the metric is not given any."""

    metric: str
    result: Read
    expected: Read | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MetricResult:
    """The joined score and those of the metrics that were asked, in their order."""

    value: float
    scores: tuple[float, ...]


class OfficialEvaluators:
    """Judges with the metrics of `modules` in the environment whose Python is `python`; `seen` are further folders that it may
    read.

    May be used from any thread and event loop.
    """

    def __init__(
        self,
        python: Path,
        modules: tuple[str, ...] = MODULES,
        *,
        seen: tuple[Path, ...] = (),
        bounds: JudgeLimits | None = None,
        at_once: int | None = None,
    ) -> None:
        self._python, self._modules, self._seen = python, modules, seen
        self.bounds = bounds or JudgeLimits()
        self._threads = ThreadPoolExecutor(at_once or os.cpu_count() or 1, thread_name_prefix="deskhand-judge")
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None

    async def judge(self, questions: list[MetricRequest], conj: str = "and") -> MetricResult:
        """The score of `questions`, joined by "and" (mean, 0 as soon as one is 0) or "or" (best). Raises `EvaluatorError`."""
        work = functools.partial(self._judge, questions, conj)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _judge(self, questions: list[MetricRequest], conj: str) -> MetricResult:
        data = self._request(questions, conj)
        address = self._address()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(self.bounds.seconds + _MARGIN_S)
            try:
                connection.connect(str(address))
                connection.sendall(data)
                reply = _all_of(connection)
            except OSError as error:
                raise EvaluatorError(f"the evaluators' process gave no answer: {error}") from error
        try:
            answer = json.loads(reply)
        except ValueError:
            raise EvaluatorError("the evaluators' process ended without an answer") from None
        if "error" in answer:
            metric = questions[answer.get("clause", 0)].metric if questions else ""
            raise EvaluatorError(f"metric {metric!r}: {' '.join(str(answer['error']).split())}")
        return MetricResult(float(answer["value"]), tuple(map(float, answer["scores"])))

    def _request(self, questions: list[MetricRequest], conj: str) -> bytes:
        blobs: list[bytes] = []
        clauses = []
        for question in questions:
            clause = {
                "metric": question.metric,
                "options": dict(question.options),
                "result": _told(question.result, blobs),
            }
            if question.expected is not None:
                clause["expected"] = _told(question.expected, blobs)
            clauses.append(clause)
        if (size := sum(map(len, blobs))) > _LARGEST_BLOBS:
            raise EvaluatorError(f"{size} bytes of files are to be judged, more than {_LARGEST_BLOBS}")
        asked = {"clauses": clauses, "conj": conj, "blobs": [len(blob) for blob in blobs]}
        asked |= {name: getattr(self.bounds, name) for name in ("seconds", "memory_mib", "output_bytes")}
        try:
            head = json.dumps(asked, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise EvaluatorError(f"what was read cannot be passed on: {error}") from error
        return b"".join([struct.pack("!Q", len(head)), head, *blobs])

    def _address(self) -> Path:
        """Where the process listens; it is started when it does not run."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._end()
                self._start()
            assert self._folder is not None
            return self._folder / "control" / "judge"

    def _start(self) -> None:
        if not self._python.is_file():
            raise ConfigError(f"{self._python}: no such program; make it with scripts/environment {ENVIRONMENT}")
        folder = self._folder = runtime().folder / f"judge-{secrets.token_hex(6)}"
        home, control = folder / "home", folder / "control"
        for each in (folder, home, control, folder / "tmp"):
            each.mkdir(mode=0o700)
        level = isolation.available_isolation()[0]
        inside = Path("/run/box") if level == "namespaces" else control
        program = Path(judge_process.__file__)
        build = isolation.namespaces_command if level == "namespaces" else isolation.plain_command
        words = [str(self._python), "-B", "-P", str(program), str(inside / "judge"), *self._modules]
        command = build(
            folder, home, control, [program, *self._readable(), *self._seen], None, isolation.ResourceLimits(), words
        )
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": isolation.GUEST_HOME if level == "namespaces" else str(home),
            "TMPDIR": "/tmp" if level == "namespaces" else str(folder / "tmp"),
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": os.pathsep.join(map(str, self._seen)),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            processes.OWNER_LABEL: runtime().token,
        }
        with (folder / "log").open("wb") as log:
            self._process = processes.start(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, cwd="/"
            )
        deadline = time.monotonic() + START_S
        while not (control / "judge").exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                lines = (folder / "log").read_text(errors="replace").strip().splitlines() or ["no message"]
                self._end()
                raise EvaluatorError(f"the evaluators' process did not start: {lines[-1][:300]}")
            time.sleep(0.05)

    def _readable(self) -> Iterator[Path]:
        """The environment, and the Python that it was made from where that lies elsewhere than the system's."""
        yield self._python.parent.parent
        real = self._python.resolve()
        if not real.is_relative_to("/usr"):
            yield real.parent.parent

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            process.kill()
            process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def close(self) -> None:
        """End the process. Idempotent; a later judgement starts another."""
        with self._lock:
            self._end()


def installed(environment: Mapping[str, str]) -> Path | None:
    """The Python of the evaluators' environment, or None where there is none. `$DESKHAND_OSWORLD_PYTHON` names another one."""
    if named := environment.get("DESKHAND_OSWORLD_PYTHON"):
        return Path(named)
    try:
        return newest_venv(ENVIRONMENT, environment) / "bin" / "python"
    except ConfigError:
        return None


@functools.cache
def official(python: Path) -> OfficialEvaluators:
    """The evaluators of this process for an environment."""
    return OfficialEvaluators(python)


def _told(read: Read, blobs: list[bytes]) -> dict[str, Any]:
    """What was read, as the request says it; files go to `blobs`."""

    def numbered(data: bytes | None) -> int | None:
        if data is None:
            return None
        blobs.append(data)
        return len(blobs) - 1

    if isinstance(read, Value):
        return {"value": read.value}
    if isinstance(read, Files):
        return {"files": [[name, numbered(data)] for name, data in read.files], "single": read.single}
    return {
        "getter": read.getter,
        "config": read.config,
        "files": {path: numbered(data) for path, data in read.files.items()},
    }


def _all_of(connection: socket.socket) -> bytes:
    data = bytearray()
    while piece := connection.recv(1 << 16):
        data += piece
        if len(data) > 2 * judge_process.LARGEST_REPLY:
            raise EvaluatorError("the evaluators' process answers without end")
    return bytes(data)
