"""The part of `benchmarks.areal_leases` that runs in AReaL's environment: its executor plays groups of our workflow.

`python -m benchmarks.areal.executor BRIDGE SERVER DESKTOPS GROUPS` prints one JSON object: seconds, episodes, waits for a lease.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Mapping
from typing import Any

from deskhand.actions.ops import Done, Op
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.remote.server_desktop import ServerPool
from deskhand.tasks.task import CheckResult, Rect, Task

GROUP, STEPS, WIDTH, HEIGHT = 8, 3, 96, 64
ADDRESS = "DESKHAND_BENCH_SERVER"


class TimedPool(ServerPool):
    """Keeps how long each lease was waited for, in seconds."""

    waits: list[float] = []  # noqa: RUF012 one for all

    async def lease(self, template: DesktopSpec | None = None) -> Any:
        began = time.monotonic()
        found = await super().lease(template)
        TimedPool.waits.append(time.monotonic() - began)
        return found


def timed_pool() -> TimedPool:
    return TimedPool(os.environ[ADDRESS])


def task_of(data: Mapping[str, Any]) -> Task:
    """A task that asks nothing of its desktop; its outcome is chance."""

    async def nothing(desktop: Any) -> None:
        return

    async def check(desktop: Any) -> CheckResult:
        return CheckResult(float(random.random() < 0.5))

    async def oracle(desktop: Any) -> Any:
        ops: list[Op] = [Done()]
        yield ops

    async def targets(desktop: Any) -> tuple[Rect | None, list[Rect]]:
        return None, []

    number = int(data["seed"])
    return Task(
        f"lease/{number}", "lease", "benchmark", number, "Click.", WIDTH, HEIGHT, STEPS, nothing, check, oracle, targets
    )


def main(bridge: str, server: str, desktops: int, groups: int) -> None:
    from areal.api.cli_args import InferenceEngineConfig
    from areal.engine.sglang_remote import RemoteSGLangEngine

    os.environ[ADDRESS] = bridge
    from benchmarks.areal import (
        executor,
    )  # the workflow makes its pool by this name, and this program is another module
    from deskhand.integrations.areal.workflow import OSWorldWorkflow
    from deskhand.models.load import TINY_FOLDER

    config = InferenceEngineConfig(
        experiment_name="leases", trial_name="one", backend="sglang:d1p1t1", max_concurrent_rollouts=desktops // GROUP,
        consumer_batch_size=groups, max_head_offpolicyness=100, tokenizer_path=str(TINY_FOLDER), setup_timeout=60,
        request_timeout=900,
    )  # fmt: skip
    engine = RemoteSGLangEngine(config)
    engine.initialize(addr=server)
    settings = {
        "desktops": {"make": "benchmarks.areal.executor.timed_pool"}, "tasks": "benchmarks.areal.executor.task_of",
        "group_size": GROUP, "equal_groups": "keep", "context_tokens": 1024, "group_timeout_s": 800,
    }  # fmt: skip
    began = time.monotonic()
    for number in range(groups):
        engine.submit({"seed": number}, workflow=OSWorldWorkflow(settings))
    done = [one for one in engine.wait(groups, timeout=850) if one is not None]
    seconds = time.monotonic() - began
    rows = sum(len(one["rewards"]) for one in done)
    print(json.dumps({"seconds": seconds, "groups": len(done), "rows": rows, "waits": executor.TimedPool.waits}))
    sys.stdout.flush()
    engine.destroy()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
