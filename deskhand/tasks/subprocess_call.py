"""Run a parser of hostile files in a subprocess with bounded time, memory and output.

Used by checks; start with `call_in_subprocess`. A function is named "module:function", takes bytes and JSON values
and returns JSON. `InvalidDocument` passes through, because the agent made the file; any other failure is an
`EvaluatorError`.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from deskhand.errors import EvaluatorError
from deskhand.tasks import document_readers
from deskhand.tasks.document_readers import InvalidDocument

TIMEOUT_S = 15.0
REGEX_TIMEOUT_S = 5.0
MEMORY_MIB = 1536
OUTPUT_MIB = 16
MAX_CACHED = 32
_PROGRAM = "import sys; sys.path.insert(0, {root!r}); from deskhand.tasks.subprocess_call import main; main()"
_lock = threading.Lock()
_cache: OrderedDict[tuple[str, ...], str] = OrderedDict()


def call_in_subprocess(
    function: str,
    data: bytes,
    *arguments: Any,
    timeout_s: float = TIMEOUT_S,
    memory_mib: int = MEMORY_MIB,
    output_mib: int = OUTPUT_MIB,
) -> Any:
    """Return `function(data, *arguments)`, computed in a subprocess. Blocks; call it in a thread.

    Raises `InvalidDocument` if the function does, and `EvaluatorError` if it fails otherwise or exceeds a limit.
    """
    key = (function, hashlib.sha256(data).hexdigest(), json.dumps(arguments), f"{timeout_s} {memory_mib} {output_mib}")
    with _lock:
        answer = _cache.get(key)
    if answer is None:
        answer = _run(function, data, key[2], timeout_s, memory_mib, output_mib)
        with _lock:
            _cache[key] = answer  # the judge reads the same file several times
            while len(_cache) > MAX_CACHED:
                _cache.popitem(last=False)
    result = json.loads(answer)
    if "invalid" in result:
        raise InvalidDocument(result["invalid"])
    if "raised" in result:
        raise EvaluatorError(f"{function} raised {result['raised']}")
    return result["value"]


def matches(pattern: str, text: str, *, ignore_case: bool = False, whole: bool = True) -> bool:
    """Return whether a regular expression matches a guest's text.

    Blocks. Raises `EvaluatorError` after `REGEX_TIMEOUT_S`. In this process a crafted text could block every thread:
    Python's `re` neither times out nor releases the GIL.
    """
    data = text.encode("utf-8", errors="surrogatepass")
    name = f"{document_readers.__name__}:regex_matches"
    return bool(call_in_subprocess(name, data, pattern, ignore_case, whole, timeout_s=REGEX_TIMEOUT_S))


def text_similarity(text: str, wanted: str) -> float:
    """Return how similar a guest's text is to another, from 0 to 1. Blocks; same limit as `matches`."""
    data = text.encode("utf-8", errors="surrogatepass")
    name = f"{document_readers.__name__}:text_similarity"
    return float(call_in_subprocess(name, data, wanted, timeout_s=REGEX_TIMEOUT_S))


def call_user_function(data: bytes) -> Any:
    """Return the result of the function of a `python` check; runs in the subprocess. Guest bytes are never code.

    `data` is JSON with `source`, `name` (of the file), `function`, `files` (base64 by path, or null) and `arguments`.
    """
    request = json.loads(data)
    files = {path: None if text is None else base64.b64decode(text) for path, text in request["files"].items()}
    names: dict[str, Any] = {"__name__": "task"}
    exec(compile(request["source"], request["name"], "exec"), names)
    return names[request["function"]](files, request["arguments"])


def _run(function: str, data: bytes, arguments: str, timeout_s: float, memory_mib: int, output_mib: int) -> str:
    root = str(Path(__file__).resolve().parents[2])
    with tempfile.TemporaryFile() as answer:
        command = [sys.executable, "-I", "-c", _PROGRAM.format(root=root), function, arguments]
        limits = [str(answer.fileno()), str(memory_mib), str(output_mib), str(timeout_s)]
        try:
            done = subprocess.run(
                [*command, *limits],
                input=data,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(answer.fileno(),),
                env={"OPENBLAS_NUM_THREADS": "1"},  # threads would take address space
                cwd="/",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise EvaluatorError(f"{function} took longer than {timeout_s:g} s") from None
        answer.seek(0)
        text = answer.read(output_mib * 2**20 + 1)
    if done.returncode != 0 or not text.endswith(b"\n"):
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        bounds = f"limits: {memory_mib} MiB of memory, {output_mib} MiB of output"
        raise EvaluatorError(f"{function} returned nothing ({how}; {bounds})")
    return text.decode()


def main() -> None:
    """Run in the subprocess. `argv`: function, arguments as JSON, file descriptor of the answer, limits."""
    function, arguments, descriptor, memory_mib, output_mib, timeout_s = sys.argv[1:7]
    for kind, limit in (
        (resource.RLIMIT_AS, int(memory_mib) * 2**20),
        (resource.RLIMIT_FSIZE, int(output_mib) * 2**20),
        (resource.RLIMIT_CPU, int(float(timeout_s)) + 1),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))
    module, name = function.split(":")
    data = sys.stdin.buffer.read()
    try:
        value = getattr(importlib.import_module(module), name)(data, *json.loads(arguments))
        answer = json.dumps({"value": value})
    except InvalidDocument as error:
        answer = json.dumps({"invalid": str(error)[:2000]})
    except Exception as error:
        answer = json.dumps({"raised": " ".join(f"{type(error).__name__}: {error}".split())[:500]})
    with os.fdopen(int(descriptor), "wb") as file:
        file.write(answer.encode() + b"\n")
