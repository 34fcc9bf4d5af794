"""`deskhand train` on painted desktops: what a config file names, and a config file that names it.

An episode takes milliseconds, so that the whole command can be run again and again: interrupted, on a full disk, in a
damaged folder, for thousands of episodes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import fake_desktop
from training_fixture import BabblingAgent, ChanceFormat, checkpoint

from deskhand.agents.desktop_agent import AgentConfig
from deskhand.tasks.task import Task, task_family

ROOT = Path(__file__).parents[2]
SETTINGS = """
model: {checkpoint}
desktop: {{backend: "painted_run:open_desktops"}}
suite: {{name: "painted_run:square"}}
agent: {{class: "painted_run:Agent"}}
engine: {{max_model_len: 1024}}
loop: {{total_steps: {steps}, groups_per_step: 2, group_size: 4, max_concurrent_episodes: 3, eval_every: {eval_every}}}
trainer: {{learning_rate: 1.0e-4, torch_threads: 1}}
evaluation: {{num_episodes: {evaluations}}}
"""


@task_family("square", suite="painted")
def square(seed: int) -> Task:
    """Click one of two squares."""
    return fake_desktop.square_task(seed)


class Agent(BabblingAgent):
    """What it says is at most three tokens, each of which is understood."""

    def __init__(self) -> None:
        super().__init__(AgentConfig(max_new_tokens=3), action_format=ChanceFormat())


@asynccontextmanager
async def open_desktops(request: Any) -> AsyncIterator[fake_desktop.PaintedPool]:
    """A pool that keeps its leases in the run folder, as pools of real desktops do."""
    store = request.lease_store()
    try:
        yield fake_desktop.PaintedPool(request.size)
    finally:
        store.close()


def config_file(folder: Path, *, steps: int = 3, evaluations: int = 2, eval_every: int = 2) -> Path:
    """A config file in `folder`, which also holds the checkpoint."""
    path = folder / "painted.yaml"
    path.write_text(
        SETTINGS.format(
            checkpoint=checkpoint(folder / "checkpoint"), steps=steps, evaluations=evaluations, eval_every=eval_every
        )
    )
    return path


def environment() -> dict[str, str]:
    """Where the command finds what the config file names."""
    paths = [str(Path(__file__).parent), str(ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "deskhand", *arguments]
