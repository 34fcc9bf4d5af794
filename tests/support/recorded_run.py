"""A run of one training step on painted desktops, its checkpoint, and the gradients that the trainer computes on it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import fake_desktop
from training_fixture import assembled, small

from deskhand.agents.desktop_agent import AgentConfig
from deskhand.algorithms.base import get_algorithm
from deskhand.integrations.recordings.rows import RecordedRow, recorded_rows
from deskhand.recipes.assemble import open_scripted_policy
from deskhand.recipes.evaluate import SCRIPTED_POLICIES, run_evaluation
from deskhand.recipes.samples import group_to_samples
from deskhand.recorder.images import ImageCache
from deskhand.recorder.renderer import ChatRenderer
from deskhand.rollout.groups import Group
from deskhand.rollout.run_writer import load_result
from deskhand.store.run import DEMONSTRATIONS, TRAIN, Run
from deskhand.tasks.outcome import Scored
from deskhand.tasks.task import seed_for

ALGORITHM = get_algorithm("grpo")


@dataclass(frozen=True)
class RecordedRun:
    folder: Path
    checkpoint: str
    """The weights that sampled."""


def record(folder: Path, groups: int = 6, demonstrations: int = 3) -> RecordedRun:
    """Train one step, and store demonstrations of the tasks' oracle."""

    async def run() -> None:
        async with assembled(folder, small(total_steps=1, groups_per_step=groups)) as parts:
            await parts.loop.run()
            source = str(folder.parent / f"{folder.name}-checkpoint")
            agent, script, pool = AgentConfig(), SCRIPTED_POLICIES["oracle"], cast(Any, parts.pool)
            opening = open_scripted_policy(script, agent, pool, parts.run.frames, model=source, history="error")
            tasks = [fake_desktop.square_task(seed_for("train", 1000 + number)) for number in range(demonstrations)]
            async with opening as runner:
                await run_evaluation(parts.run, DEMONSTRATIONS, tasks, runner, 1, lambda *_: None)

    asyncio.run(run())
    return RecordedRun(folder, str(folder.parent / f"{folder.name}-checkpoint"))


def rows_of(run: Run, form: Any = "rl") -> list[RecordedRow]:
    return list(recorded_rows(run, form, ALGORITHM))


def open_policy(recorded: RecordedRun, run: Run) -> tuple[Any, ImageCache]:
    from deskhand.models.load import load
    from deskhand.trainer.policy import Policy

    loaded = load(recorded.checkpoint)
    banned = ChatRenderer(loaded.tokenizer).banned_ids
    return Policy(loaded.model, None, banned), ImageCache(loaded.image_processor, fetch=run.frames.png)


def trainer_gradient(recorded: RecordedRun) -> dict[str, Any]:
    """The gradient of one GRPO step on all rows, as the optimizer receives it."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from deskhand.config.trainer import TrainerConfig
    from deskhand.trainer.trainer import Trainer

    with Run.open(recorded.folder, read_only=True) as run:
        policy, images = open_policy(recorded, run)
        names = {id(parameter): name for name, parameter in policy.parameters().items()}
        found: dict[str, Any] = {}

        def keep(optimizer: Any, *_: Any) -> None:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        found[names[id(parameter)]] = parameter.grad.detach().clone()

        samples: list[Any] = []
        for row in run.groups():
            found_results = [load_result(run, each.id) for each in run.episodes(TRAIN, group_id=row.id)]
            scored = [result for result in found_results if isinstance(result.outcome, Scored)]
            group = Group(row.id, row.number, cast(Any, None), len(scored), 0, scored=scored)
            samples += [each for each in group_to_samples(group, ALGORITHM) if any(each.sequence.loss_mask)]
        handle = register_optimizer_step_pre_hook(keep)
        try:
            Trainer(policy, TrainerConfig(algorithm="grpo", learning_rate=1e-4)).step(samples, images)
        finally:
            handle.remove()
    return found


def supervised_gradient(recorded: RecordedRun, sequences: list[Any]) -> dict[str, Any]:
    """The gradient of the cross-entropy of the sampled tokens of sequences, in nats per token."""
    from deskhand.trainer.supervised import SupervisedRow, gradient

    with Run.open(recorded.folder, read_only=True) as run:
        policy, images = open_policy(recorded, run)
        gradient(policy, [SupervisedRow.of(sequence) for sequence in sequences], images)
        return {name: p.grad.detach().clone() for name, p in policy.parameters().items() if p.grad is not None}
