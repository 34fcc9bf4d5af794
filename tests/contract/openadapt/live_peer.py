"""Runs in the environment `openadapt-live`: OpenAdapt's `WAALiveAdapter` does what it is told, a JSON line each.

`{"do": "make", "server", "evaluate"}`; `{"do": "reset", "task"}` with a task file's value; `{"do": "step", "action"}`
with fields of a `BenchmarkAction`; `{"do": "evaluate"}`; `{"do": "powershell", "script"}`. The answer is `{"value"}` or
`{"error", "message"}`.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    live: Any = importlib.import_module("openadapt_evals.adapters.waa.live")
    base: Any = importlib.import_module("openadapt_evals.adapters.base")
    adapter: Any = None
    task: Any = None
    for line in sys.stdin:
        told = json.loads(line)
        try:
            if told["do"] == "make":
                named = {
                    "server_url": told["server"],
                    "evaluate_url": told["evaluate"],
                    "action_delay": 0.0,
                    "evaluate_retries": 1,
                }
                adapter = live.WAALiveAdapter(live.WAALiveConfig(screen_width=320, screen_height=240, **named))
                value: Any = adapter.check_connection()
            elif told["do"] == "reset":
                task = adapter.load_task_from_json(told["task"]["id"], told["task"])
                value = len(adapter.reset(task).screenshot)
            elif told["do"] == "step":
                observation, done, info = adapter.step(base.BenchmarkAction(**told["action"]))
                value = {
                    "pixels": len(observation.screenshot),
                    "done": done,
                    "info": {str(key): str(info[key]) for key in info},
                }
            elif told["do"] == "evaluate":
                result = adapter.evaluate(task)
                value = {"score": result.score, "success": result.success, "reason": str(getattr(result, "reason", ""))}
            else:
                value = adapter.run_powershell(told["script"])
            answer = {"value": value}
        except Exception as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
