"""Runs a function of a task's author, in a process that `isolated` made. Invariant: the guest's bytes are its argument and never
its code.
"""

from __future__ import annotations

import base64
import json
from typing import Any


def judge(data: bytes) -> Any:
    """What the function says; `data` is JSON with its `source`, the `name` of its file, `function`, `files` (base64 by path, or
    null) and `arguments`. Raises what the function raises."""
    asked = json.loads(data)
    files = {path: None if text is None else base64.b64decode(text) for path, text in asked["files"].items()}
    names: dict[str, Any] = {"__name__": "task"}
    exec(compile(asked["source"], asked["name"], "exec"), names)
    return names[asked["function"]](files, asked["arguments"])
