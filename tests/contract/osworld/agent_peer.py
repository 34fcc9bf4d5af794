"""Runs an agent of `mm_agents`, from PyPI, in an environment of its own, and asks it for actions, a JSON line each.

`{"do": "make", "module", "agent", "settings"}` imports it, `{"do": "reset"}` resets it, `{"do": "predict",
"instruction", "observation"}` gives `{"value": [response, actions]}`; bytes go as `{"base64"}`. An exception is
`{"error", "message"}`.

Clients of model services that the agents import and that nothing here asks are stood in for by modules that raise when
they are used.
"""

from __future__ import annotations

import base64
import importlib
import json
import sys
from pathlib import Path
from typing import Any

SERVICES = ("dashscope", "google", "groq", "tiktoken")


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "deskhand" / "osworld"))
    process: Any = importlib.import_module("judge_process")
    process.STUBBED_LIBRARIES = SERVICES
    sys.meta_path.append(process.StubImporter())
    agent: Any = None
    for line in sys.stdin:
        told = json.loads(line)
        try:
            if told["do"] == "make":
                agent = getattr(importlib.import_module(told["module"]), told["agent"])(**told["settings"])
                value = None
            elif told["do"] == "reset":
                value = agent.reset()
            else:
                seen = {
                    name: base64.b64decode(part["base64"]) if isinstance(part, dict) else part
                    for name, part in told["observation"].items()
                }
                value = agent.predict(told["instruction"], seen)
            answer: dict[str, Any] = {"value": value}
        except Exception as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
