"""The subprocess that reads guest files; `subprocess_call` starts it for each call. Keep the imports light.

A request is the length of its header (8 bytes), the header (pickled: function as "module:name", sizes of the files,
arguments, `ReaderLimits`) and the files. The answer is a line of JSON with one key: "value", "invalid" (the file is not
of its format), "exceeded" (a limit) or "raised" (another exception).
"""

from __future__ import annotations

import importlib
import json
import math
import os
import pickle
import resource
import struct
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from deskhand.tasks.document_readers import InvalidDocument

HEAD = struct.Struct("!Q")
OUT_OF_MEMORY = 90
"""Exit code, because an answer would need memory."""


class ReaderLimits(NamedTuple):
    """Limits of a call. `cpu_s` is processor time."""

    cpu_s: float
    memory_mib: int
    output_mib: int


def call_user_function(*values: Any) -> Any:
    """Return the result of the function of a `python` check; guest bytes are never code.

    `values` are the files, then their paths, the paths of missing files, the source, its name, the function's name and
    its arguments.
    """
    *files, paths, missing, source, name, function, arguments = values
    names: dict[str, Any] = {"__name__": "task"}
    exec(compile(source, name, "exec"), names)
    return names[function](dict(zip(paths, files, strict=True)) | dict.fromkeys(missing), arguments)


def main() -> None:
    """Read the request from stdin and write the answer to the file descriptor in `argv`."""
    stream = sys.stdin.buffer
    header = stream.read(HEAD.unpack(stream.read(HEAD.size))[0])
    name, sizes, arguments, limits = pickle.loads(header)
    seconds, output = math.ceil(limits.cpu_s), limits.output_mib * 2**20
    for kind, soft, hard in (
        (resource.RLIMIT_DATA, limits.memory_mib * 2**20, limits.memory_mib * 2**20),
        (resource.RLIMIT_FSIZE, max(output, *sizes, 0), max(output, *sizes, 0)),
        (resource.RLIMIT_CPU, seconds, seconds + 1),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        resource.setrlimit(kind, (soft, hard))
    try:
        answer = _encoded_result(name, lambda: [stream.read(size) for size in sizes], arguments, limits)
        with os.fdopen(int(sys.argv[1]), "wb") as file:
            file.write(answer.encode() + b"\n")
    except MemoryError:
        os._exit(OUT_OF_MEMORY)


def _encoded_result(name: str, files: Callable[[], list[bytes]], arguments: Any, limits: ReaderLimits) -> str:
    try:
        module, _, function = name.partition(":")
        value = getattr(importlib.import_module(module), function)(*files(), *arguments)
        answer = json.dumps({"value": value})
        if len(answer) > limits.output_mib * 2**20:
            answer = json.dumps({"exceeded": f"has more than {limits.output_mib} MiB of content"})
    except InvalidDocument as error:
        answer = json.dumps({"invalid": str(error)[:2000]})
    except MemoryError:
        raise
    except RecursionError:
        answer = json.dumps({"exceeded": "is nested too deeply"})
    except Exception as error:
        answer = json.dumps({"raised": " ".join(f"{type(error).__name__}: {error}".split())[:500]})
    return answer
