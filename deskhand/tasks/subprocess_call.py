"""Reading hostile files in a process of its own. Invariant: what a file makes a parser do ends in time, in bounded memory and
output, without the caller's environment, and its worst is an `EvaluatorError`.

A function is named as "module:function" and takes bytes and JSON values; what it returns is JSON too. `NotOfItsFormat` passes
through, since a broken file is the agent's doing. The last answers are remembered by the bytes, as a judge looks at one file
several times.
"""

from __future__ import annotations

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
MATCH_S = 5.0
MEMORY_MIB = 1536
OUTPUT_MIB = 16
REMEMBERED = 32
_PROGRAM = "import sys; sys.path.insert(0, {root!r}); from deskhand.tasks.subprocess_call import main; main()"
_lock = threading.Lock()
_answers: OrderedDict[tuple[str, ...], str] = OrderedDict()


def call_in_subprocess(
    function: str,
    data: bytes,
    *arguments: Any,
    timeout_s: float = TIMEOUT_S,
    memory_mib: int = MEMORY_MIB,
    output_mib: int = OUTPUT_MIB,
) -> Any:
    """What `function(data, *arguments)` returns in a process of its own. Blocks; call it in a thread.

    Raises `NotOfItsFormat` as it does, and `EvaluatorError` when it raises something else, hangs, ends, or takes or says too much.
    """
    key = (function, hashlib.sha256(data).hexdigest(), json.dumps(arguments), f"{timeout_s} {memory_mib} {output_mib}")
    with _lock:
        known = _answers.get(key)
    if known is None:
        known = _run(function, data, key[2], timeout_s, memory_mib, output_mib)
        with _lock:
            _answers[key] = known
            while len(_answers) > REMEMBERED:
                _answers.popitem(last=False)
    answer = json.loads(known)
    if "wrong" in answer:
        raise InvalidDocument(answer["wrong"])
    if "raised" in answer:
        raise EvaluatorError(f"{function} raised {answer['raised']}")
    return answer["value"]


def matches(pattern: str, text: str, *, ignore_case: bool = False, whole: bool = True) -> bool:
    """Whether a regular expression fits a guest's text. In this process a text that is made for it could stop everything, since
    Python's search neither ends early nor lets other threads run. Blocks; raises `EvaluatorError` past `MATCH_S`."""
    data = text.encode("utf-8", errors="surrogatepass")
    return bool(
        call_in_subprocess(f"{document_readers.__name__}:matches", data, pattern, ignore_case, whole, timeout_s=MATCH_S)
    )


def text_similarity(text: str, wanted: str) -> float:
    """How alike a guest's text is to another, from 0 to 1. Blocks; raises `EvaluatorError` past `MATCH_S`, as for `matches`."""
    data = text.encode("utf-8", errors="surrogatepass")
    return float(call_in_subprocess(f"{document_readers.__name__}:likeness", data, wanted, timeout_s=MATCH_S))


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
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"code {done.returncode}"
        raise EvaluatorError(
            f"{function} ended with {how} and gave no answer; it may have {memory_mib} MiB of memory and {output_mib} MiB of output"
        )
    return text.decode()


def main() -> None:
    """The process's side: `argv` is the function, its arguments as JSON, the descriptor for the answer, and the limits."""
    function, arguments, descriptor, memory_mib, output_mib, timeout_s = sys.argv[1:7]
    for kind, most in (
        (resource.RLIMIT_AS, int(memory_mib) * 2**20),
        (resource.RLIMIT_FSIZE, int(output_mib) * 2**20),
        (resource.RLIMIT_CPU, int(float(timeout_s)) + 1),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))
    module, name = function.split(":")
    data = sys.stdin.buffer.read()
    try:
        value = getattr(importlib.import_module(module), name)(data, *json.loads(arguments))
        answer = json.dumps({"value": value})
    except InvalidDocument as error:
        answer = json.dumps({"wrong": str(error)[:2000]})
    except Exception as error:
        answer = json.dumps({"raised": " ".join(f"{type(error).__name__}: {error}".split())[:500]})
    with os.fdopen(int(descriptor), "wb") as file:
        file.write(answer.encode() + b"\n")
