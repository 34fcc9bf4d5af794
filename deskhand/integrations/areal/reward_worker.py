"""Runs one reward call in its own process, started by `reward_process` with this file's path. Standard library only.

stdin has two pickles: `sys.path`, and the function with its arguments. stdout gets one line of JSON: {"value":
number} or {"error": text}; the function's own prints go to stderr.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pickle
import sys
from typing import Any


def evaluate(reward: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Return the function's value or error. A coroutine function is awaited."""
    try:
        value = reward(*arguments, **named)
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
        if value is None or isinstance(value, str | bytes):
            return {"error": f"returned {value!r}, expected a number"}
        return {"value": float(value)}
    except Exception as error:
        return {"error": f"raised {type(error).__name__}: {' '.join(str(error).split())[:400]}"}


async def _awaited(value: Any) -> Any:
    return await value


def main() -> None:
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # prints of the function go to stderr
    sys.path[:] = pickle.load(sys.stdin.buffer)
    try:
        reward, arguments, named = pickle.load(sys.stdin.buffer)
    except Exception as error:
        found: dict[str, Any] = {"error": f"cannot be imported: {type(error).__name__}: {error}"}
    else:
        found = evaluate(reward, arguments, named)
    answer.write(json.dumps(found) + "\n")
    answer.close()


if __name__ == "__main__":
    main()
