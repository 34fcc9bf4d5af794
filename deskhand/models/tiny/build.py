"""Builds the in-the-box policy from nothing: `deskhand tiny build`. Invariant: seeded, resumable by stage, training seeds only.

1. *scenes*: real desktops are staged and photographed, with every question that each screen admits;
2. *demonstrations*: whole episodes are played on real desktops, a share of them with a wrong first click;
3. *grounding*: a fresh model learns where things are, many questions a screenshot, and what follows a first click;
4. *imitation*: the model learns the noisy first clicks as well, so that it succeeds often but far from always: the rest is for RL.

What a stage made is kept in the working folder; a build that is started again goes on after the last whole stage.
"""

from __future__ import annotations

import asyncio
import pickle
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from deskhand.desktop.base import Template
from deskhand.desktop.embedded.desktop import EmbeddedDesktop
from deskhand.models.patches import embed_patches_by_product
from deskhand.models.tiny import architecture, scenes, warm_start
from deskhand.models.tiny.team import Team, run_team
from deskhand.models.tiny.tokenizer import build_tokenizer
from deskhand.tasks.suites import basics
from deskhand.tasks.task import Task, seed_for

SCENE_START, DEMONSTRATION_START = 100_000_000, 200_000_000
"""Where in the training split the seeds of scenes and demonstrations begin; RL takes its seeds from 0 on."""
SEEDS_PER_BUILD = 10_000
Say = Callable[[str], None]


@dataclass(frozen=True)
class BuildPlan:
    """Sizes and times of a build; the defaults are those of the shipped weights."""

    families: tuple[str, ...] = ("terminal_run", "terminal_close", "calculator_number")
    seed: int = 0
    scenes: tuple[tuple[str, int, int], ...] = (
        ("terminal_run", 120, 16),
        ("calculator_number", 6, 120),
    )
    """(family, stagings, placements of its windows per staging)."""
    demonstrations: int = 300
    """Per family."""
    noise: float = 0.5
    """Share of demonstrations whose first click is wrong."""
    questions: int = 6
    """Asked of one screenshot in a row."""
    grounding_seconds: float = 1800.0
    imitation_seconds: float = 900.0
    grounding_mixture: tuple[float, float, float] = (0.15, 0.75, 0.10)
    """Shares of the batches of episodes, questions and dictation; the episodes' first clicks are not taught."""
    imitation_mixture: tuple[float, float, float] = (0.50, 0.25, 0.25)
    """The same in the last stage; here the questions' first answers are not taught, so that the noise stays as it was played."""
    processes: int = 2
    rows: int = 12
    """Per process and step."""
    workers: int = 3
    """Desktops at a time."""


def build(plan: BuildPlan, work: Path, target: Path, say: Say = print) -> None:
    """Run all stages that `work` does not hold yet and write the checkpoint folder `target`."""
    work.mkdir(parents=True, exist_ok=True)
    _collect(work / "scenes.pickle", lambda: _gather_scenes(plan), say)
    _collect(work / "demonstrations.pickle", lambda: _gather_demonstrations(plan), say)
    for stage in ("grounding", "imitation"):
        if not (work / f"{stage}.pt").exists():
            run_team(plan.processes, _train_stage, plan, work, stage)
    tokenizer = build_tokenizer(corpus(plan.families))
    model = architecture.build_model(tokenizer, plan.seed)
    model.load_state_dict(torch.load(work / "imitation.pt"))
    architecture.save(target, model, tokenizer)
    say(f"wrote {target}")


def corpus(families: tuple[str, ...]) -> list[str]:
    """Sentences that the families say, for the tokeniser."""
    said = [basics.make_task(family, seed).instruction for family in families for seed in range(400)]
    return [*said, "error: the text is not an action"]


async def fresh_desktop(task: Task) -> EmbeddedDesktop:
    """A desktop of the task's size, reset."""
    desktop = EmbeddedDesktop()
    await desktop.reset(Template(task.template, task.width, task.height))
    return desktop


def _collect(path: Path, gather: Callable[[], Any], say: Say) -> None:
    """Keep what `gather` finds in `path`, whole or not at all."""
    if path.exists():
        return
    started = time.monotonic()
    data = asyncio.run(gather())
    partial = path.with_suffix(".partial")
    partial.write_bytes(pickle.dumps(data))
    partial.rename(path)
    say(f"{len(data)} {path.stem} in {time.monotonic() - started:.0f} s")


async def _gather_scenes(plan: BuildPlan) -> list[scenes.Scene]:
    placements = {family: count for family, _, count in plan.scenes}
    tasks = [task for family, stagings, _ in plan.scenes for task in _tasks(plan, family, SCENE_START, stagings)]

    async def play(desktop: EmbeddedDesktop, task: Task) -> list[scenes.Scene]:
        return await scenes.collect_scenes(desktop, task, placements[task.family])

    nested = await scenes.gather(fresh_desktop, tasks, play, plan.workers)
    return [scene for group in nested for scene in group]


async def _gather_demonstrations(plan: BuildPlan) -> list[scenes.Demonstration]:
    tasks = [task for family in plan.families for task in _tasks(plan, family, DEMONSTRATION_START, plan.demonstrations)]

    async def play(desktop: EmbeddedDesktop, task: Task) -> scenes.Demonstration:
        return await scenes.demonstrate(desktop, task, random.Random(f"{plan.seed}:{task.id}"), plan.noise)

    played = await scenes.gather(fresh_desktop, tasks, play, plan.workers)
    return [one for one in played if one.noise or one.value == 1.0]


def _tasks(plan: BuildPlan, family: str, start: int, count: int) -> list[Task]:
    first = start + plan.seed * SEEDS_PER_BUILD
    return [basics.make_task(family, seed_for("train", first + k)) for k in range(count)]


def _train_stage(team: Team, plan: BuildPlan, work: Path, stage: Literal["grounding", "imitation"]) -> None:
    """One member's part of a stage; rank 0 writes `<stage>.pt`."""
    tokenizer: Any = build_tokenizer(corpus(plan.families))
    model, writer = architecture.build_model(tokenizer, plan.seed), warm_start.Writer(tokenizer)
    embed_patches_by_product(model)
    rng, common = random.Random(f"{plan.seed}:{stage}:{team.rank}"), random.Random(f"{plan.seed}:{stage}")
    screens = _by_size(pickle.loads((work / "scenes.pickle").read_bytes()), lambda scene: scene.pixels)
    played = _by_size(pickle.loads((work / "demonstrations.pickle").read_bytes()), lambda one: one.frames[0])

    def question(scene: scenes.Scene) -> warm_start.Row:
        row = writer.grounding(scene, plan.questions, rng)
        return row if stage == "grounding" else warm_start.first_untaught(row)

    def episode(one: scenes.Demonstration) -> warm_start.Row:
        row = writer.demonstration(one)
        return row if stage == "imitation" else warm_start.first_untaught(row)

    if stage == "imitation":
        model.load_state_dict(torch.load(work / "grounding.pt"))
    sources = [
        _row_batches(played, episode, plan.rows, rng, common),
        _row_batches(screens, question, plan.rows, rng, common),
        _dictations([one for group in played for one in group], writer, 4 * plan.rows, rng),
    ]
    if stage == "grounding":
        shares, seconds, rates = plan.grounding_mixture, plan.grounding_seconds, (4e-3, 3e-3)
    else:
        shares, seconds, rates = plan.imitation_mixture, plan.imitation_seconds, (2e-3, 1.5e-3)

    def report(step: int, loss: float, elapsed: float) -> None:
        print(f"{stage} step {step}: loss {loss:.3f}, {elapsed:.0f} s", flush=True)

    warm_start.fit(
        model,
        _mixed(sources, shares, common),
        team,
        seconds=seconds,
        pad_id=tokenizer.pad_token_id,
        image_pad=writer.image_pad,
        matrix_rate=rates[0],
        other_rate=rates[1],
        report=report,
    )
    if team.rank == 0:
        partial = work / f"{stage}.partial"
        torch.save(model.state_dict(), partial)
        partial.rename(work / f"{stage}.pt")


def _by_size(items: list[Any], pixels: Callable[[Any], Any]) -> list[list[Any]]:
    """Items in lists of equal screen size."""
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(pixels(item).shape, []).append(item)
    return list(groups.values())


def _row_batches(
    groups: list[list[Any]], write: Callable[[Any], warm_start.Row], rows: int, rng: random.Random, common: random.Random
) -> Iterator[list[warm_start.Row]]:
    """Endless batches, each of one screen size, sizes drawn by how many items they have.

    `common` draws alike in every process, so that all have equal work in a step.
    """
    weights = [len(group) for group in groups]
    while True:
        group = common.choices(groups, weights)[0]
        yield [write(item) for item in rng.sample(group, min(rows, len(group)))]


def _dictations(
    played: list[scenes.Demonstration], writer: warm_start.Writer, rows: int, rng: random.Random
) -> Iterator[list[warm_start.Row]]:
    """Endless batches of dictation rows: demonstrations that type, each with the instruction of another training task."""
    typing = [one for one in played if one.typed]
    while True:
        batch = []
        for one in rng.choices(typing, k=rows):
            task = basics.make_task(one.family, seed_for("train", DEMONSTRATION_START + rng.randrange(10**7)))
            batch.append(writer.dictation(one, task.instruction, task.metadata["types"], rng))
        yield batch


def _mixed(
    sources: list[Iterator[list[warm_start.Row]]], shares: tuple[float, ...], rng: random.Random
) -> Iterator[list[warm_start.Row]]:
    """The next batch of a source that is drawn by its share, alike in every process."""
    while True:
        yield next(rng.choices(sources, shares)[0])
