"""Builds the in-the-box policy from nothing: `deskhand tiny build`. Invariant: seeded, resumable stage by stage, training seeds only.

1. *scenes*: real desktops are staged and photographed, with every question that each screen admits;
2. *grounding*: a fresh model learns where things are, many questions a screenshot;
3. *demonstrations*: whole episodes are played on real desktops, a share of them with a wrong first click;
4. *imitation*: the model learns the episodes, so that it succeeds often but far from always: what is left is for RL.
"""

from __future__ import annotations

import asyncio
import pickle
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deskhand.desktop.base import Template
from deskhand.desktop.embedded.desktop import EmbeddedDesktop
from deskhand.models.tiny import architecture, scenes, warm_start
from deskhand.models.tiny.tokenizer import build_tokenizer
from deskhand.tasks.suites import basics
from deskhand.tasks.task import Task, seed_for

SCENE_START, DEMONSTRATION_START = 100_000_000, 200_000_000
"""Where in the training split the seeds of scenes and demonstrations begin; RL takes its seeds from 0 on."""


@dataclass(frozen=True)
class BuildPlan:
    """Sizes and times of a build; the defaults are those of the shipped weights."""

    families: tuple[str, ...] = ("terminal_run", "terminal_close", "dialog_choice", "calculator_number")
    seed: int = 0
    scenes: tuple[tuple[str, int, int], ...] = (
        ("terminal_run", 110, 16),
        ("dialog_choice", 130, 12),
        ("calculator_number", 6, 120),
    )
    """(family, stagings, placements of its windows per staging)."""
    questions: int = 6
    grounding_seconds: float = 3600.0
    demonstrations: int = 300
    imitation_seconds: float = 600.0
    noise: float = 0.55
    rows: int = 24
    workers: int = 3
    threads: int = 2


def corpus(families: tuple[str, ...]) -> list[str]:
    """Sentences that the families say, for the tokeniser."""
    return [basics.make_task(family, seed).instruction for family in families for seed in range(400)] + [
        "error: the text is not an action"
    ]


async def fresh_desktop(task: Task) -> EmbeddedDesktop:
    """A desktop of the task's size, reset."""
    desktop = EmbeddedDesktop()
    await desktop.reset(Template(task.template, task.width, task.height))
    return desktop


def collect(plan: BuildPlan, work: Path, say: Callable[[str], None]) -> tuple[list[scenes.Scene], list[scenes.Demonstration]]:
    """Scenes and demonstrations, from `work` where they were collected before."""
    found: list[Any] = []
    for name, gather in (("scenes", _gather_scenes), ("demonstrations", _gather_demonstrations)):
        path = work / f"{name}.pickle"
        if not path.exists():
            started = time.monotonic()
            data = asyncio.run(gather(plan))
            partial = path.with_suffix(".partial")
            partial.write_bytes(pickle.dumps(data))
            partial.rename(path)
            say(f"{len(data)} {name} in {time.monotonic() - started:.0f} s")
        found.append(pickle.loads(path.read_bytes()))
    return found[0], found[1]


async def _gather_scenes(plan: BuildPlan) -> list[scenes.Scene]:
    tasks, placements = [], {}
    for family, stagings, count in plan.scenes:
        placements[family] = count
        tasks += [basics.make_task(family, seed_for("train", SCENE_START + plan.seed * 10_000 + k)) for k in range(stagings)]

    async def play(desktop: EmbeddedDesktop, task: Task) -> list[scenes.Scene]:
        return await scenes.collect_scenes(desktop, task, placements[task.family])

    nested = await scenes.gather(fresh_desktop, tasks, play, plan.workers)
    return [scene for group in nested for scene in group]


async def _gather_demonstrations(plan: BuildPlan) -> list[scenes.Demonstration]:
    tasks = [
        basics.make_task(family, seed_for("train", DEMONSTRATION_START + plan.seed * 10_000 + k))
        for k in range(plan.demonstrations)
        for family in plan.families
    ]

    async def play(desktop: EmbeddedDesktop, task: Task) -> scenes.Demonstration:
        return await scenes.demonstrate(desktop, task, random.Random(f"{plan.seed}:{task.id}"), plan.noise)

    return await scenes.gather(fresh_desktop, tasks, play, plan.workers)


def by_size(items: list[Any], pixels: Callable[[Any], Any]) -> list[list[Any]]:
    """Items in lists of equal screen size."""
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(pixels(item).shape, []).append(item)
    return list(groups.values())


def row_batches(
    groups: list[list[Any]], write: Callable[[Any], warm_start.Row], rows: int, rng: random.Random
) -> Iterator[list[warm_start.Row]]:
    """Endless batches, each of one screen size, sizes drawn by how many items they have."""
    weights = [len(group) for group in groups]
    while True:
        group = rng.choices(groups, weights)[0]
        yield [write(item) for item in rng.sample(group, min(rows, len(group)))]


def build(plan: BuildPlan, work: Path, target: Path, say: Callable[[str], None] = print) -> None:
    """Run all stages that `work` does not hold yet and write the checkpoint folder `target`."""
    work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(plan.threads)
    tokenizer = build_tokenizer(corpus(plan.families))
    scene_list, demonstrations = collect(plan, work, say)
    model = architecture.build_model(tokenizer, plan.seed)
    writer = warm_start.Writer(tokenizer)
    shared: dict[str, Any] = {"pad_id": tokenizer.pad_token_id, "image_pad": writer.image_pad, "steps": 10**9}
    rng = random.Random(plan.seed)

    grounded = work / "grounded.pt"
    if grounded.exists():
        model.load_state_dict(torch.load(grounded))
    else:
        batches = row_batches(
            by_size(scene_list, lambda scene: scene.pixels),
            lambda scene: writer.grounding(scene, plan.questions, rng),
            plan.rows,
            rng,
        )
        warm_start.fit(
            model,
            batches,
            seconds=plan.grounding_seconds,
            matrix_rate=4e-3,
            other_rate=3e-3,
            report=lambda step, loss, seconds: say(f"grounding step {step}: loss {loss:.3f}, {seconds:.0f} s"),
            **shared,
        )
        torch.save(model.state_dict(), grounded)

    batches = row_batches(
        by_size(demonstrations, lambda demonstration: demonstration.frames[0]), writer.demonstration, plan.rows // 2, rng
    )
    warm_start.fit(
        model,
        batches,
        seconds=plan.imitation_seconds,
        matrix_rate=1e-3,
        other_rate=1e-3,
        report=lambda step, loss, seconds: say(f"imitation step {step}: loss {loss:.3f}, {seconds:.0f} s"),
        **shared,
    )
    architecture.save(target, model, tokenizer)
    say(f"wrote {target}")
