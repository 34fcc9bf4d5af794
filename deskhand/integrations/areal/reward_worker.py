"""One call of a judge, in a process of its own that `areal.judging` started. Invariant: what the judge prints is never taken for
what it says, and what it says is a number.

It runs on Python's standard library alone, by its file's path. Standard input holds two pickles: the folders to import from, and
the judge with its arguments. Standard output gets one line of JSON: {"value": number} or {"error": text}.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pickle
import sys
from typing import Any


def said(judge: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """What the judge says, or what it raised. A judge that is a coroutine function is awaited."""
    try:
        value = judge(*arguments, **named)
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
        if value is None or isinstance(value, str | bytes):
            return {"error": f"it gave {value!r}, which is no number"}
        return {"value": float(value)}
    except Exception as error:
        return {"error": f"it raised {type(error).__name__}: {' '.join(str(error).split())[:400]}"}


async def _awaited(value: Any) -> Any:
    return await value


def main() -> None:
    """The program."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the judge prints goes where errors go
    sys.path[:] = pickle.load(sys.stdin.buffer)
    try:
        judge, arguments, named = pickle.load(sys.stdin.buffer)
    except Exception as error:
        found: dict[str, Any] = {"error": f"it cannot be imported: {type(error).__name__}: {error}"}
    else:
        found = said(judge, arguments, named)
    answer.write(json.dumps(found) + "\n")
    answer.close()


if __name__ == "__main__":
    main()
