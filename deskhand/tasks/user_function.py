"""Run the function of a `python` check; called in the subprocess of `subprocess_call`.

Invariant: guest bytes are arguments, never code.
"""

from __future__ import annotations

import base64
import json
from typing import Any


def judge(data: bytes) -> Any:
    """Return the function's result.

    `data` is JSON with `source`, `name` (of the file), `function`, `files` (base64 by path, or null) and `arguments`.
    """
    request = json.loads(data)
    files = {path: None if text is None else base64.b64decode(text) for path, text in request["files"].items()}
    names: dict[str, Any] = {"__name__": "task"}
    exec(compile(request["source"], request["name"], "exec"), names)
    return names[request["function"]](files, request["arguments"])
