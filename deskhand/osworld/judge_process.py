"""The process in which OSWorld's own metrics judge. Invariant: it gets files and values and gives numbers; one judgement cannot
change another, since each runs in a process of its own, forked from one that has only imported the metrics.

Run by the Python of the evaluators' environment, on Python's standard library alone, behind walls without a network
(`evaluators.py` starts it): `judge_process.py SOCKET METRICS [GETTERS]`. Each connection is one judgement:

    request  8 bytes of length, JSON {"clauses", "conj", "seconds", "output_bytes", "memory_mib", "blobs": [sizes]}, the blobs
    reply    JSON {"value", "scores"} or {"error", "clause"}

A clause is {"metric", "options", "result", "expected"?}, and what is read {"value"}, {"files": [[name, blob or null], ...],
"single"} or {"getter", "config", "files": {path in the guest: blob or null}}. A getter of OSWorld is given these files and
nothing else.
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
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
import types
from pathlib import Path
from typing import Any

STAND_INS = ("easyocr", "playwright", "pydrive", "torch")
"""Libraries that `desktop-env` imports and that cannot work without a network or are not installed; they raise when they are
used.
"""
LARGEST_REPLY = 1 << 20
LARGEST_FILE = 256 << 20
GUEST_HOME = "/home/user"


_in_vain: list[str] = []
"""What a judgement wanted and could not have. A metric may take the failure for a wrong answer; the judgement has failed all the
same.
"""


class Unavailable:
    """Anything of a library that is not here."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        _in_vain.append(f"{self._name} is not installed")
        raise ModuleNotFoundError(f"{self._name} is not in the evaluators' environment")

    def __getattr__(self, name: str) -> Unavailable:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unavailable(f"{self._name}.{name}")


class AbsentModule(types.ModuleType):
    """A library that is not here; whatever is taken from it is `NotHere`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unavailable(f"{self.__name__}.{name}")


class StubImporter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `STAND_INS` when nobody else does."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in STAND_INS else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return AbsentModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing in it."""


class ReplayController:
    """What a getter may ask of the guest: the files that were sent along, and where they are."""

    def __init__(self, files: dict[str, bytes | None]) -> None:
        self._files = files

    def get_file(self, path: str) -> bytes | None:
        if path not in self._files:
            raise LookupError(f"the getter asks for {path}, which was not read")
        return self._files[path]

    def get_vm_platform(self) -> str:
        return "Linux"

    def execute_python_command(self, command: str) -> dict[str, str]:
        """The path that a command would print: `os.path.join(os.getenv('HOME'), ...)` or `os.path.expanduser('~...')`."""
        texts = [ast.literal_eval(text) for text in re.findall(r"'[^']*'|\"[^\"]*\"", command)]
        if "os.getenv" in command and texts[:1] == ["HOME"]:
            return {"output": "/".join([GUEST_HOME, *texts[1:]]) + "\n"}
        if "expanduser" in command and len(texts) == 1 and texts[0].startswith("~"):
            return {"output": GUEST_HOME + texts[0][1:] + "\n"}
        raise LookupError(f"the getter wants to run {command!r} in the guest")


class ReplayEnv:
    """What a getter of OSWorld takes for its environment."""

    vm_platform = "Linux"

    def __init__(self, folder: Path, files: dict[str, bytes | None]) -> None:
        self.cache_dir = str(folder)
        self.controller = ReplayController(files)


class Judgement:
    """One request, in the process of its own."""

    def __init__(self, metrics: Any, getters: Any, asked: dict[str, Any], blobs: list[bytes], folder: Path) -> None:
        self._metrics, self._getters, self._blobs, self._folder = metrics, getters, blobs, folder
        self.asked = asked
        self.clause = 0

    def value(self) -> dict[str, Any]:
        """The joined score, as OSWorld joins: "and" ends at a 0 and is the mean, "or" ends at a 1 and is the best."""
        joined_by_or = self.asked["conj"] == "or"
        scores: list[float] = []
        for index, clause in enumerate(self.asked["clauses"]):
            self.clause = index
            score = self._score(clause)
            scores.append(score)
            if len(self.asked["clauses"]) > 1 and score == (1.0 if joined_by_or else 0.0):
                return {"value": score, "scores": scores}
        return {"value": max(scores) if joined_by_or else sum(scores) / len(scores), "scores": scores}

    def _score(self, clause: dict[str, Any]) -> float:
        metric = getattr(self._metrics, clause["metric"], None)
        if not callable(metric):
            raise LookupError("there is no such metric")
        random.seed(0)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(0)
        arguments = [self._given("result", clause["result"])]
        if "expected" in clause:
            arguments.append(self._given("expected", clause["expected"]))
        said: Any = metric(*arguments, **clause["options"])
        score = float(said)
        if not math.isfinite(score):
            raise ValueError(f"it gave {score}, which is no score")
        if not 0.0 <= score <= 1.0:
            raise ValueError(f"it gave {score:g}, which is not from 0 to 1")
        return score

    def _given(self, role: str, read: dict[str, Any]) -> Any:
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


def run(judgement: Judgement, answers: int) -> None:
    """Judge and write the answer; in the forked process."""
    sys.addaudithook(_notice)
    try:
        answer = judgement.value()
        if _in_vain:
            answer = {
                "error": f"it wanted what there is not: {', '.join(dict.fromkeys(_in_vain))}",
                "clause": judgement.clause,
            }
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}, line {where.lineno})"
        answer = {"error": text[:2000], "clause": judgement.clause}
    data = json.dumps(answer).encode()[:LARGEST_REPLY]
    while data:
        data = data[os.write(answers, data) :]


def _notice(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        _in_vain.append("the network")


def bound(asked: dict[str, Any]) -> None:
    """Limits of this process and what it starts: memory, processor time, size of a file, and no core."""
    seconds = math.ceil(asked["seconds"])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    memory = asked["memory_mib"] << 20
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def keep(judgement: Judgement, connection: socket.socket) -> dict[str, Any]:
    """Have the judgement made in a process of its own; what it says within its time and with no more output than it may have."""
    asked = judgement.asked
    said_out, said_in = os.pipe()
    answer_out, answer_in = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for number, place in ((null, 0), (said_in, 1), (said_in, 2)):
            os.dup2(number, place)
        bound(asked)
        run(judgement, answer_in)
        os._exit(0)
    os.close(said_in)
    os.close(answer_in)
    try:
        return _listen(asked, said_out, answer_out, connection)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _listen(asked: dict[str, Any], said: int, answers: int, connection: socket.socket) -> dict[str, Any]:
    deadline = time.monotonic() + asked["seconds"]
    printed, answer = 0, b""
    watched: list[Any] = [said, answers, connection]
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return {"error": f"it took longer than {asked['seconds']:g} s"}
        ready = select.select(watched, [], [], left)[0]
        if connection in ready:
            return {"error": "nobody waits for the answer"}
        if said in ready:
            data = os.read(said, 1 << 16)
            printed += len(data)
            if printed > asked["output_bytes"]:
                return {"error": f"it printed more than {asked['output_bytes']} bytes"}
            if not data:
                watched.remove(said)
        if answers in ready:
            data = os.read(answers, 1 << 16)
            answer += data
            if not data:
                return (
                    json.loads(answer)
                    if answer
                    else {"error": "it ended without a score; memory or time may have run out"}
                )


def received(connection: socket.socket) -> tuple[dict[str, Any], list[bytes]]:
    with connection.makefile("rb") as stream:
        (length,) = struct.unpack("!Q", stream.read(8))
        asked = json.loads(stream.read(length))
        return asked, [stream.read(size) for size in asked["blobs"]]


def serve(connection: socket.socket, metrics: Any, getters: Any) -> None:
    """One connection, in a process of its own."""
    folder = Path(tempfile.mkdtemp(prefix="judgement-"))
    try:
        asked, blobs = received(connection)
        answer = keep(Judgement(metrics, getters, asked, blobs, folder), connection)
        connection.sendall(json.dumps(answer).encode())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    place, names = sys.argv[1], sys.argv[2:]
    sys.meta_path.append(StubImporter())
    metrics, getters = (importlib.import_module(name) for name in (names * 2)[:2])
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen(64)
    os.chmod(place, 0o666)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready = select.select([listener, 0], [], [])[0]
        if 0 in ready:
            return  # whoever started this has gone
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
