"""Process in which OSWorld's own metrics run: `judge_process.py SOCKET METRICS [GETTERS]`.

Started by `official_evaluators` in a sandbox without a network, with the Python of the evaluators' virtual environment.
Uses only the standard library. Each connection is one request, handled in a process forked from one that has only
imported the metrics, so requests cannot affect each other.

    request  8 bytes of length, JSON, the blobs;
             JSON: {"clauses", "conj", "seconds", "output_bytes", "memory_mib", "blobs": [sizes]}
    reply    JSON {"value", "scores"} or {"error", "clause", "exceeded"}; "exceeded": a limit, or a crash

A clause is {"metric", "options", "result", "expected"?}. An input is {"value"}, {"files": [[name, blob or null], ...],
"single"} or {"getter", "config", "files": {guest path: blob or null}}. A getter of OSWorld gets only these files.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import json
import math
import os
import random
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import types
from pathlib import Path
from typing import Any

STUBBED_LIBRARIES = ("easyocr", "playwright", "pydrive", "torch")
"""Libraries that `desktop-env` imports and that need a network or are not installed; they raise on use."""
MAX_REPLY_BYTES = 1 << 20
MAX_FILE_BYTES = 256 << 20
GUEST_HOME = "/home/user"


_missing: list[str] = []
"""Resources that the metric requested in vain. The request fails even if the metric handles the exception."""


class Unavailable:
    """Any attribute of a stubbed library."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        _missing.append(f"{self._name} is not installed")
        raise ModuleNotFoundError(f"{self._name} is not installed for the evaluators")

    def __getattr__(self, name: str) -> Unavailable:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unavailable(f"{self._name}.{name}")


class AbsentModule(types.ModuleType):
    """A stubbed library; its attributes are `Unavailable`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unavailable(f"{self.__name__}.{name}")


class StubImporter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `STUBBED_LIBRARIES` when no other importer does."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        is_stubbed = name.split(".")[0] in STUBBED_LIBRARIES
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_stubbed else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return AbsentModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


class ReplayController:
    """The guest as seen by a getter: the files that were sent, and their paths."""

    def __init__(self, files: dict[str, bytes | None]) -> None:
        self._files = files

    def get_file(self, path: str) -> bytes | None:
        if path not in self._files:
            raise LookupError(f"the getter requested {path}, which was not read")
        return self._files[path]

    def get_vm_platform(self) -> str:
        return "Linux"

    def execute_python_command(self, command: str) -> dict[str, str]:
        """Return the path that `os.path.join(os.getenv('HOME'), ...)` or `os.path.expanduser('~...')` prints."""
        texts = [ast.literal_eval(text) for text in re.findall(r"'[^']*'|\"[^\"]*\"", command)]
        if "os.getenv" in command and texts[:1] == ["HOME"]:
            return {"output": "/".join([GUEST_HOME, *texts[1:]]) + "\n"}
        if "expanduser" in command and len(texts) == 1 and texts[0].startswith("~"):
            return {"output": GUEST_HOME + texts[0][1:] + "\n"}
        raise LookupError(f"the getter tried to run {command!r} in the guest")


class ReplayEnv:
    vm_platform = "Linux"

    def __init__(self, folder: Path, files: dict[str, bytes | None]) -> None:
        self.cache_dir = str(folder)
        self.controller = ReplayController(files)


class Evaluation:
    """One request, in its own process."""

    def __init__(self, metrics: Any, getters: Any, request: dict[str, Any], blobs: list[bytes], folder: Path) -> None:
        self._metrics, self._getters, self._blobs, self._folder = metrics, getters, blobs, folder
        self.request = request
        self.clause = 0

    def value(self) -> dict[str, Any]:
        """Return the combined score: "and" stops at 0 and is the mean, "or" stops at 1 and is the maximum."""
        is_or = self.request["conj"] == "or"
        scores: list[float] = []
        for index, clause in enumerate(self.request["clauses"]):
            self.clause = index
            score = self._score(clause)
            scores.append(score)
            if len(self.request["clauses"]) > 1 and score == (1.0 if is_or else 0.0):
                return {"value": score, "scores": scores}
        return {"value": max(scores) if is_or else sum(scores) / len(scores), "scores": scores}

    def _score(self, clause: dict[str, Any]) -> float:
        metric = getattr(self._metrics, clause["metric"], None)
        if not callable(metric):
            raise LookupError("unknown metric")
        random.seed(0)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(0)
        arguments = [self._load_input("result", clause["result"])]
        if "expected" in clause:
            arguments.append(self._load_input("expected", clause["expected"]))
        result: Any = metric(*arguments, **clause["options"])
        score = float(result)
        if not math.isfinite(score):
            raise ValueError(f"the score is not finite: {score}")
        if not 0.0 <= score <= 1.0:
            raise ValueError(f"the score is not in [0, 1]: {score:g}")
        return score

    def _load_input(self, role: str, read: dict[str, Any]) -> Any:
        folder = self._folder / f"{self.clause}" / role
        folder.mkdir(parents=True)
        if "value" in read:
            return read["value"]
        if "getter" in read:
            files = {path: None if blob is None else self._blobs[blob] for path, blob in read["files"].items()}
            return getattr(self._getters, f"get_{read['getter']}")(ReplayEnv(folder, files), read["config"])
        paths: list[str | None] = []
        for name, blob in read["files"]:
            if blob is not None:
                (folder / name).write_bytes(self._blobs[blob])
            paths.append(None if blob is None else str(folder / name))
        return paths[0] if read["single"] else paths


def run(evaluation: Evaluation, answers: int) -> None:
    """Evaluate and write the answer; in the forked process."""
    sys.addaudithook(_audit)
    try:
        answer = evaluation.value()
        if _missing:
            answer = {"error": f"unavailable: {', '.join(dict.fromkeys(_missing))}", "clause": evaluation.clause}
    except BaseException as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({os.path.basename(frame.filename)}, line {frame.lineno})"
        exceeded = isinstance(error, (MemoryError, RecursionError))
        answer = {"error": text[:2000], "clause": evaluation.clause, "exceeded": exceeded}
    data = json.dumps(answer).encode()[:MAX_REPLY_BYTES]
    while data:
        data = data[os.write(answers, data) :]


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        _missing.append("the network")


def apply_limits(request: dict[str, Any]) -> None:
    """Limit memory, CPU time and file size of this process and its children, and disable core dumps."""
    seconds = math.ceil(request["seconds"])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    memory = request["memory_mib"] << 20
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def judge_in_child(evaluation: Evaluation, connection: socket.socket) -> dict[str, Any]:
    """Evaluate in a forked process; return its answer within its time and output limits."""
    request = evaluation.request
    output_read, output_write = os.pipe()
    answer_read, answer_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for number, target in ((null, 0), (output_write, 1), (output_write, 2)):
            os.dup2(number, target)
        apply_limits(request)
        run(evaluation, answer_write)
        os._exit(0)
    os.close(output_write)
    os.close(answer_write)
    try:
        answer = _await_answer(request, output_read, answer_read, connection)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        _, status, used = os.wait4(child, 0)
    ended = answer.pop("ended", None)
    if ended == "timeout":  # of a metric that computed; otherwise it waited, or the machine is overloaded
        answer["exceeded"] = used.ru_utime + used.ru_stime >= request["seconds"] / 2
    elif ended == "exit":  # SIGKILL comes from the host
        answer["exceeded"] = os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL
    return answer


def _await_answer(request: dict[str, Any], output: int, answers: int, connection: socket.socket) -> dict[str, Any]:
    deadline = time.monotonic() + request["seconds"]
    printed, answer = 0, b""
    watched: list[Any] = [output, answers, connection]
    while True:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            return {"error": f"exceeded {request['seconds']:g} s", "ended": "timeout"}
        ready = select.select(watched, [], [], remaining_s)[0]
        if connection in ready:
            return {"error": "the client disconnected"}
        if output in ready:
            data = os.read(output, 1 << 16)
            printed += len(data)
            if printed > request["output_bytes"]:
                return {"error": f"printed more than {request['output_bytes']} bytes", "exceeded": True}
            if not data:
                watched.remove(output)
        if answers in ready:
            data = os.read(answers, 1 << 16)
            answer += data
            if not data:
                why = "exited without a score; it may have exceeded its memory or time limit"
                return json.loads(answer) if answer else {"error": why, "ended": "exit"}


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[bytes]]:
    with connection.makefile("rb") as stream:
        (length,) = struct.unpack("!Q", stream.read(8))
        request = json.loads(stream.read(length))
        return request, [stream.read(size) for size in request["blobs"]]


def serve(connection: socket.socket, metrics: Any, getters: Any) -> None:
    """Handle one connection, in its own process."""
    folder = Path(tempfile.mkdtemp(prefix="evaluation-"))
    try:
        request, blobs = receive(connection)
        answer = judge_in_child(Evaluation(metrics, getters, request, blobs, folder), connection)
        connection.sendall(json.dumps(answer).encode())
    finally:
        # An unpacked archive of a guest may have folders nested deeper than Python recurses.
        subprocess.run(["rm", "-rf", str(folder)], check=False)


def main() -> None:
    socket_path, modules = sys.argv[1], sys.argv[2:]
    sys.meta_path.append(StubImporter())
    metrics, getters = (importlib.import_module(name) for name in (modules * 2)[:2])
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(socket_path)
    listener.listen(64)
    os.chmod(socket_path, 0o666)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready = select.select([listener, 0], [], [])[0]
        if 0 in ready:
            return  # the parent has exited
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            try:
                serve(connection, metrics, getters)
            finally:
                os._exit(0)
        connection.close()


if __name__ == "__main__":
    main()
