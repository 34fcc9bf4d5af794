"""Read guest files in a subprocess with bounded processor time, memory and output.

Used by checks, task families and OSWorld's getters; start with `read_in_subprocess`. The function takes the bytes of
files and picklable arguments and returns JSON.

Invariants: guest files are parsed in this subprocess only. A file that exceeds a limit, or whose reader crashes, is
the agent's doing (`InvalidDocument`, score 0), provided that the function handles empty files. Exceptions, and what
the host is to blame for (a killed process, an overloaded machine), are an `EvaluatorError`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from deskhand import pausable_timeout
from deskhand.desktop.local import precedence
from deskhand.errors import EvaluatorError
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.reader_process import HEAD, OUT_OF_MEMORY, ReaderLimits

CPU_S = 4.0
MEMORY_MIB = 160
OUTPUT_MIB = 4
WALL_S = 30.0
"""Minimum limit of the wall time, for a busy machine; otherwise twice the processor time."""
MAX_FILES_SHARE = 0.2
"""Maximum size of the files, as a share of the memory."""
MAX_CACHED = 32
MAX_CACHED_CHARS = 1 << 18
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP)
_PROGRAM = "import sys; sys.path.insert(0, {root!r}); from deskhand.tasks.reader_process import main; main()"
_lock = threading.Lock()
_cache: OrderedDict[str, str] = OrderedDict()
_slots = threading.Semaphore(os.cpu_count() or 1)


async def read_in_subprocess(
    function: Callable[..., Any], files: bytes | Sequence[bytes], *arguments: Any, **limits: Any
) -> Any:
    """Return `call_in_subprocess(...)`. Enclosing timeouts pause, because the subprocess has limits of its own.

    Otherwise several files that each use up their limits would exceed the timeout of the check, which is an error.
    """
    with pausable_timeout.pause_timeouts(measured=False):
        return await asyncio.to_thread(call_in_subprocess, function, files, *arguments, **limits)


def call_in_subprocess(
    function: Callable[..., Any],
    files: bytes | Sequence[bytes],
    *arguments: Any,
    cpu_s: float | None = None,
    memory_mib: int = MEMORY_MIB,
    output_mib: int = OUTPUT_MIB,
) -> Any:
    """Return `function(*files, *arguments)`, computed in a subprocess. `function` is of an importable module. Blocks.

    Raises `InvalidDocument` if the function does, and for files that exceed a limit or crash their reader;
    `EvaluatorError` if the function raises anything else, or fails on empty files too.
    """
    limits = ReaderLimits(CPU_S if cpu_s is None else cpu_s, memory_mib, output_mib)
    parts = (files,) if isinstance(files, bytes) else tuple(files)
    name = f"{function.__module__}:{function.__qualname__}"
    max_bytes = int(memory_mib * 2**20 * MAX_FILES_SHARE)
    if (size := sum(map(len, parts))) > max_bytes:
        raise InvalidDocument(f"has {size} bytes; maximum: {max_bytes}")
    result = _answer(name, parts, arguments, limits)
    if (exceeded := result.get("exceeded")) is not None:
        if "exceeded" in _answer(name, (b"",) * len(parts), arguments, limits):
            raise EvaluatorError(f"{name} {exceeded}, with empty files too")
        raise InvalidDocument(exceeded)
    if "invalid" in result:
        raise InvalidDocument(result["invalid"])
    if "raised" in result:
        raise EvaluatorError(f"{name} raised {result['raised']}")
    return result["value"]


def _answer(name: str, parts: tuple[bytes, ...], arguments: tuple[Any, ...], limits: ReaderLimits) -> dict[str, Any]:
    """Return "value", "invalid", "raised" or "exceeded" with its text. Raises `EvaluatorError`."""
    header = pickle.dumps((name, [len(part) for part in parts], arguments, limits))
    digest = hashlib.sha256(header)
    for part in parts:
        digest.update(part)
    key = digest.hexdigest()
    with _lock:
        answer = _cache.get(key)
    if answer is None:
        with _slots:
            answer = _run(name, (HEAD.pack(len(header)), header, *parts), limits)
        if len(answer) <= MAX_CACHED_CHARS:
            with _lock:
                _cache[key] = answer  # the judge reads the same file several times
                while len(_cache) > MAX_CACHED:
                    _cache.popitem(last=False)
    return json.loads(answer)


def _run(name: str, request: Sequence[bytes], limits: ReaderLimits) -> str:
    program = _PROGRAM.format(root=str(Path(__file__).resolve().parents[2]))
    wall_s = max(WALL_S, 2 * limits.cpu_s)
    with (
        tempfile.TemporaryDirectory(prefix="deskhand-read-") as folder,
        tempfile.TemporaryFile() as sent,
        tempfile.TemporaryFile() as answer,
        precedence.precedence_if_overloaded(),  # this process must not wait for the reader, which always has it
    ):
        for part in request:
            sent.write(part)
        sent.seek(0)
        try:
            done = subprocess.run(
                precedence.with_precedence([sys.executable, "-I", "-c", program, str(answer.fileno())]),
                start_new_session=True,
                stdin=sent,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(answer.fileno(),),
                env={"OPENBLAS_NUM_THREADS": "1", "TMPDIR": folder},  # threads would take memory
                cwd=folder,
                timeout=wall_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise EvaluatorError(f"{name} took longer than {wall_s:g} s, waiting or on an overloaded machine") from None
        answer.seek(0)
        text = answer.read()
    if done.returncode == OUT_OF_MEMORY:
        return json.dumps({"exceeded": f"needs more than {limits.memory_mib} MiB of memory to read"})
    if done.returncode == -signal.SIGXCPU:
        return json.dumps({"exceeded": f"takes longer than {limits.cpu_s:g} s to read"})
    if -done.returncode in _CRASHES:
        return json.dumps({"exceeded": f"crashes its reader ({signal.Signals(-done.returncode).name})"})
    if done.returncode != 0 or not text.endswith(b"\n"):
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        raise EvaluatorError(f"{name} returned nothing ({how})")
    return text.decode()
