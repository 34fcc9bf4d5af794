"""OSWorld's own evaluators, sandboxed.

`scripts/environment osworld-evaluators` installs them. One process (`judge_process.py`) imports the metrics once and
forks for each request, so concurrent requests cannot affect each other. Metrics get files and values, never a guest or
a network. Every request ends within its limits, with a score or an `EvaluatorError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import secrets
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deskhand.desktop.local import file_tree, isolation, processes
from deskhand.desktop.local.runtime_dir import runtime
from deskhand.errors import ConfigError, EvaluatorError
from deskhand.osworld import judge_process
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.venvs import install_command, newest_venv

VENV = "osworld-evaluators"
MODULES = ("desktop_env.evaluators.metrics", "desktop_env.evaluators.getters")
START_S = 180.0
_MARGIN_S = 30.0
_MAX_BLOB_BYTES = 512 << 20


@dataclass(frozen=True)
class JudgeLimits:
    """Limits of one request."""

    seconds: float = 60.0
    memory_mib: int = 4096
    output_bytes: int = 8 << 20


@dataclass(frozen=True)
class Value:
    """A JSON value."""

    value: Any


@dataclass(frozen=True)
class Files:
    """Files by the names that the metric sees; None: missing.

    `single`: the metric gets one path instead of a list.
    """

    files: tuple[tuple[str, bytes | None], ...]
    single: bool = True


@dataclass(frozen=True)
class GetterRequest:
    """Input that OSWorld's own getter computes from guest files, by guest path."""

    getter: str
    config: dict[str, Any]
    files: Mapping[str, bytes | None] = field(default_factory=dict)


Read = Value | Files | GetterRequest


@dataclass(frozen=True)
class MetricRequest:
    """One metric with its inputs. `expected` None: the metric takes no such argument."""

    metric: str
    result: Read
    expected: Read | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MetricResult:
    """The combined score and the scores of the metrics that were evaluated, in order."""

    value: float
    scores: tuple[float, ...]


class OfficialEvaluators:
    """Scores with the metrics of `modules` in the virtual environment of `python`. Thread-safe.

    `readable` lists additional folders that the process may read.
    """

    def __init__(
        self,
        python: Path,
        modules: tuple[str, ...] = MODULES,
        *,
        readable: tuple[Path, ...] = (),
        limits: JudgeLimits | None = None,
        max_concurrent: int | None = None,
    ) -> None:
        self._python, self._modules, self._extra_readable = python, modules, readable
        self.limits = limits or JudgeLimits()
        self._threads = ThreadPoolExecutor(max_concurrent or os.cpu_count() or 1, thread_name_prefix="deskhand-judge")
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None

    async def judge(self, requests: list[MetricRequest], conj: str = "and") -> MetricResult:
        """Return the score of `requests` with `conj` "and" (mean, 0 once one is 0) or "or" (maximum).

        Raises `EvaluatorError`, and `InvalidDocument` if the guest's files or values make a metric exceed its limits,
        which empty ones do not.
        """
        work = functools.partial(self._judge, requests, conj)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _judge(self, requests: list[MetricRequest], conj: str) -> MetricResult:
        if conj == "or" and len(requests) > 1:
            return self._judge_any(requests)
        answer = self._ask(requests, conj)
        if "error" in answer:
            metric = requests[answer.get("clause", 0)].metric if requests else ""
            message = f"metric {metric!r}: {' '.join(str(answer['error']).split())}"
            emptied = [replace(each, result=_emptied(each.result)) for each in requests]
            if answer.get("exceeded") and not self._ask(emptied, conj).get("exceeded"):
                raise InvalidDocument(message)
            raise EvaluatorError(message)
        return MetricResult(float(answer["value"]), tuple(map(float, answer["scores"])))

    def _judge_any(self, requests: list[MetricRequest]) -> MetricResult:
        """Judge one metric after the other: one that exceeds its limits is 0, and others may still accept the files."""
        scores: list[float] = []
        for request in requests:
            try:
                scores.append(self._judge([request], "or").value)
            except InvalidDocument:
                scores.append(0.0)
            if scores[-1] == 1.0:
                break
        return MetricResult(max(scores), tuple(scores))

    def _ask(self, requests: list[MetricRequest], conj: str) -> dict[str, Any]:
        data = self._request(requests, conj)
        socket_path = self._socket_path()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(self.limits.seconds + _MARGIN_S)
            try:
                connection.connect(str(socket_path))
                connection.sendall(data)
                reply = _receive_all(connection)
            except OSError as error:
                raise EvaluatorError(f"the evaluator process did not respond: {error}") from error
        try:
            return json.loads(reply)
        except ValueError:
            raise EvaluatorError("the evaluator process exited without a response") from None

    def _request(self, requests: list[MetricRequest], conj: str) -> bytes:
        blobs: list[bytes] = []
        clauses = []
        for each in requests:
            clause: dict[str, Any] = {"metric": each.metric, "options": dict(each.options)}
            clause["result"] = _encode_input(each.result, blobs)
            if each.expected is not None:
                clause["expected"] = _encode_input(each.expected, blobs)
            clauses.append(clause)
        if (size := sum(map(len, blobs))) > _MAX_BLOB_BYTES:
            raise EvaluatorError(f"metric input files: at most {_MAX_BLOB_BYTES} bytes, got {size}")
        request = {"clauses": clauses, "conj": conj, "blobs": [len(blob) for blob in blobs]}
        request |= {name: getattr(self.limits, name) for name in ("seconds", "memory_mib", "output_bytes")}
        try:
            head = json.dumps(request, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise EvaluatorError(f"metric input is not JSON: {error}") from error
        return b"".join([struct.pack("!Q", len(head)), head, *blobs])

    def _socket_path(self) -> Path:
        """Return the socket of the process; start it if it is not running."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._stop()
                self._start()
            assert self._folder is not None
            return self._folder / "control" / "judge"

    def _start(self) -> None:
        if not self._python.is_file():
            raise ConfigError(f"{self._python}: not found; run {install_command(VENV)}")
        folder = self._folder = runtime().folder / f"judge-{secrets.token_hex(6)}"
        home, control = folder / "home", folder / "control"
        for each in (folder, home, control, folder / "tmp"):
            each.mkdir(mode=0o700)
        level = isolation.available_isolation()[0]
        inside = Path("/run/jail") if level == "namespaces" else control
        program = Path(judge_process.__file__)
        build = isolation.namespaces_command if level == "namespaces" else isolation.plain_command
        argv = [str(self._python), "-B", "-P", str(program), str(inside / "judge"), *self._modules]
        readable = [program, *self._readable(), *self._extra_readable]
        command = build(folder, home, readable, None, isolation.ResourceLimits(), argv)
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": isolation.GUEST_HOME if level == "namespaces" else str(home),
            "TMPDIR": "/tmp" if level == "namespaces" else str(folder / "tmp"),
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": os.pathsep.join(map(str, self._extra_readable)),
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
                self._stop()
                raise EvaluatorError(f"the evaluator process did not start: {lines[-1][:300]}")
            time.sleep(0.05)

    def _readable(self) -> Iterator[Path]:
        """Return the virtual environment, and the base Python if it is not the system's."""
        yield self._python.parent.parent
        real = self._python.resolve()
        if not real.is_relative_to("/usr"):
            yield real.parent.parent

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            process.kill()
            process.wait()
        if self._folder is not None:
            file_tree.remove_tree(self._folder)
            self._folder = None

    def close(self) -> None:
        """Stop the process. Idempotent; a later request starts another."""
        with self._lock:
            self._stop()


def find_python(environment: Mapping[str, str]) -> Path | None:
    """Return the Python of the evaluators' virtual environment, or None.

    `$DESKHAND_OSWORLD_PYTHON` overrides it.
    """
    if override := environment.get("DESKHAND_OSWORLD_PYTHON"):
        return Path(override)
    try:
        return newest_venv(VENV, environment) / "bin" / "python"
    except ConfigError:
        return None


@functools.cache
def evaluators_for(python: Path) -> OfficialEvaluators:
    """Return this process's evaluators for a Python."""
    return OfficialEvaluators(python)


def _encode_input(read: Read, blobs: list[bytes]) -> dict[str, Any]:
    """Return an input as JSON; files are appended to `blobs`."""

    def add_blob(data: bytes | None) -> int | None:
        if data is None:
            return None
        blobs.append(data)
        return len(blobs) - 1

    if isinstance(read, Value):
        return {"value": read.value}
    if isinstance(read, Files):
        return {"files": [[name, add_blob(data)] for name, data in read.files], "single": read.single}
    return {
        "getter": read.getter,
        "config": read.config,
        "files": {path: add_blob(data) for path, data in read.files.items()},
    }


def _emptied(read: Read) -> Read:
    """Return the same input without content."""
    if isinstance(read, Value):
        return Value(type(read.value)() if isinstance(read.value, (str, list, dict)) else read.value)
    if isinstance(read, Files):
        return Files(tuple((name, data and b"") for name, data in read.files), read.single)
    return GetterRequest(read.getter, read.config, {path: data and b"" for path, data in read.files.items()})


def _receive_all(connection: socket.socket) -> bytes:
    data = bytearray()
    while piece := connection.recv(1 << 16):
        data += piece
        if len(data) > 2 * judge_process.MAX_REPLY_BYTES:
            raise EvaluatorError("the evaluator process sent too large a response")
    return bytes(data)
