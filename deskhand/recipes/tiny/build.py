"""Build of the bundled policy from scratch.

Used by the CLI; start with `build`.

1. *scenes*: screenshots of real desktops, each with all grounding questions about it.
2. *demonstrations*: whole episodes on real desktops, some with a wrong first click.
3. *grounding*: train a new model on where targets are, with several questions per screenshot, and on the steps after
   the first click.
4. *sharpening*: the same, almost only with questions about windows of a certain color, which are learned last.
5. *imitation*: train on the noisy first clicks too. The policy then succeeds often but not always, which leaves room
   for RL.

Each stage saves its result in the working folder, as weights and as a checkpoint folder that can be evaluated:
`sharpening` is the policy before it imitates noisy clicks. A restarted build resumes after the last complete stage.

Invariant: only training seeds are used, no instruction of the split `test_instructions` is in the data, and the data
are drawn from the seed.
"""

from __future__ import annotations

import asyncio
import pickle
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.models.fast_layers import embed_patches_by_product, replace_linear_with_onednn
from deskhand.models.tiny import architecture
from deskhand.models.tiny.tokenizer import build_tokenizer
from deskhand.recipes.tiny import demonstrations, pretrain
from deskhand.recipes.tiny.data_parallel import DataParallelGroup, run_data_parallel
from deskhand.tasks.suites import basics
from deskhand.tasks.task import Task, seed_for
from deskhand.trainer.supervised import Schedule, run_sft

SCENE_START, DEMONSTRATION_START = 100_000_000, 200_000_000
"""First seeds of scenes and demonstrations in the training split. RL uses the seeds from 0."""
SEEDS_PER_BUILD = 10_000


@dataclass(frozen=True)
class BuildStage:
    """One run of `trainer.supervised.run_sft`, starting from the weights of the previous stage.

    Each batch contains one kind of row, drawn with the probabilities `episodes`, `questions` and `dictation`.
    """

    name: str
    seconds: float
    """Processor time of each process, so that a busy machine builds an equal policy."""
    episodes: float
    """Share of batches with whole demonstrations."""
    questions: float
    """Share of batches with grounding questions."""
    dictation: float
    """Share of batches with dictation rows, which are small: such a batch has four times as many rows."""
    scenes: tuple[tuple[str, float], ...]
    """(family, share) of the batches with grounding questions."""
    matrix_rate: float
    other_rate: float
    noisy: bool = False
    """Whether to train the first clicks of the noisy demonstrations, and to begin question rows with a random click.

    About a third of the first clicks are then random, and a share of `BuildPlan.noise` of the rest hits a wrong target;
    RL corrects them. If false, first clicks are trained only by grounding questions, without noise.
    """


STAGES = (
    BuildStage(
        "grounding", 1800.0, 0.15, 0.75, 0.10, (("terminal_run", 0.73), ("calculator_number", 0.27)), 4e-3, 3e-3
    ),
    BuildStage("sharpening", 1100.0, 0.04, 0.92, 0.04, (("terminal_run", 0.9), ("calculator_number", 0.1)), 3e-3, 2e-3),
    BuildStage(
        "imitation",
        600.0,
        0.5,
        0.25,
        0.25,
        (("terminal_run", 0.85), ("calculator_number", 0.15)),
        2e-3,
        1.5e-3,
        noisy=True,
    ),
)
"""Training stages of the bundled weights."""


@dataclass(frozen=True)
class BuildPlan:
    """Sizes and durations of a build. The defaults built the bundled weights."""

    families: tuple[str, ...] = ("terminal_run", "terminal_close", "calculator_number")
    seed: int = 0
    scenes: tuple[tuple[str, int, int], ...] = (("terminal_run", 120, 16), ("calculator_number", 6, 120))
    """(family, number of desktops to set up, number of window arrangements per desktop)."""
    demonstrations: int = 300
    """Number of demonstrations per family."""
    noise: float = 0.45
    """Share of demonstrations whose first click hits a wrong window, button or key."""
    questions: int = 6
    """Maximum number of grounding questions per row; a row has one screenshot."""
    stages: tuple[BuildStage, ...] = STAGES
    processes: int = 2
    rows: int = 12
    """Number of rows per process and step."""
    workers: int = 3
    """Number of concurrent desktops."""


def build(plan: BuildPlan, work: Path, target: Path, log: Callable[[str], None] = print) -> None:
    """Run all stages without a result in `work` and write the checkpoint folder `target`."""
    work.mkdir(parents=True, exist_ok=True)
    _collect(work / "scenes.pickle", lambda: _gather_scenes(plan), log)
    _collect(work / "demonstrations.pickle", lambda: _gather_demonstrations(plan), log)
    for index, stage in enumerate(plan.stages):
        if not (work / f"{stage.name}.pt").exists():
            run_data_parallel(plan.processes, _train_stage, plan, work, index)
    tokenizer = build_tokenizer(corpus(plan.families))
    model = architecture.build_model(tokenizer, plan.seed)
    folders = {stage.name: work / stage.name for stage in plan.stages[:-1]} | {plan.stages[-1].name: target}
    for name, folder in folders.items():
        model.load_state_dict(torch.load(work / f"{name}.pt"))
        architecture.save(folder, model, tokenizer)
        log(f"wrote {folder}")


def corpus(families: tuple[str, ...]) -> list[str]:
    """Return instructions of the families and an error message, to build the tokenizer from."""
    instructions = [basics.make_task(family, seed).instruction for family in families for seed in range(400)]
    return [*instructions, "error: the text is not an action"]


async def fresh_desktop(task: Task) -> LocalDesktop:
    """Return a new local desktop, reset to the task's theme and screen size."""
    desktop = LocalDesktop()
    await desktop.reset(DesktopSpec(task.theme, task.width, task.height))
    return desktop


def _collect(path: Path, gather: Callable[[], Any], log: Callable[[str], None]) -> None:
    """Save the result of `gather` to `path` atomically, unless the file exists."""
    if path.exists():
        return
    started = time.monotonic()
    data = asyncio.run(gather())
    partial = path.with_suffix(".partial")
    partial.write_bytes(pickle.dumps(data))
    partial.rename(path)
    log(f"{len(data)} {path.stem} in {time.monotonic() - started:.0f} s")


async def _gather_scenes(plan: BuildPlan) -> list[demonstrations.LabeledScreen]:
    placements = {family: count for family, _, count in plan.scenes}
    tasks = [task for family, stagings, _ in plan.scenes for task in _tasks(plan, family, SCENE_START, stagings)]

    async def play(desktop: LocalDesktop, task: Task) -> list[demonstrations.LabeledScreen]:
        return await demonstrations.collect_scenes(desktop, task, placements[task.family])

    nested = await demonstrations.gather(fresh_desktop, tasks, play, plan.workers)
    return [scene for group in nested for scene in group]


async def _gather_demonstrations(plan: BuildPlan) -> list[demonstrations.RecordedDemonstration]:
    tasks = [
        task for family in plan.families for task in _tasks(plan, family, DEMONSTRATION_START, plan.demonstrations)
    ]

    async def play(desktop: LocalDesktop, task: Task) -> demonstrations.RecordedDemonstration:
        return await demonstrations.demonstrate(desktop, task, random.Random(f"{plan.seed}:{task.id}"), plan.noise)

    played = await demonstrations.gather(fresh_desktop, tasks, play, plan.workers)
    return [one for one in played if one.noise or one.value == 1.0]


def _tasks(plan: BuildPlan, family: str, start: int, count: int) -> list[Task]:
    first = start + plan.seed * SEEDS_PER_BUILD
    return [basics.make_task(family, seed_for("train", first + k)) for k in range(count)]


def _train_stage(group: DataParallelGroup, plan: BuildPlan, work: Path, index: int) -> None:
    """Train one stage in one process. Rank 0 writes `<stage>.pt`."""
    stage = plan.stages[index]
    tokenizer: Any = build_tokenizer(corpus(plan.families))
    model, writer = architecture.build_model(tokenizer, plan.seed), pretrain.PretrainRowBuilder(tokenizer)
    if index:
        model.load_state_dict(torch.load(work / f"{plan.stages[index - 1].name}.pt"))
    embed_patches_by_product(model)
    replace_linear_with_onednn(model)
    rng, common = random.Random(f"{plan.seed}:{stage.name}:{group.rank}"), random.Random(f"{plan.seed}:{stage.name}")
    screens: list[demonstrations.LabeledScreen] = pickle.loads((work / "scenes.pickle").read_bytes())
    played: list[demonstrations.RecordedDemonstration] = pickle.loads((work / "demonstrations.pickle").read_bytes())

    def question(scene: demonstrations.LabeledScreen) -> pretrain.PretrainRow:
        return writer.grounding(scene, plan.questions, rng, stray=stage.noisy)

    def episode(one: demonstrations.RecordedDemonstration) -> pretrain.PretrainRow:
        row = writer.demonstration(one)
        return row if stage.noisy else pretrain.without_first_reply(row)

    sources = [
        _row_batches(_by_family(played), [(family, 1.0) for family in plan.families], episode, plan.rows, rng, common),
        _row_batches(_by_family(screens), stage.scenes, question, plan.rows, rng, common),
        _dictations([one for one in played if one.typed], writer, 4 * plan.rows, rng),
    ]

    def report(step: int, loss: float, elapsed: float) -> None:
        print(f"{stage.name} step {step}: loss {loss:.3f}, {elapsed:.0f} s", flush=True)

    learner = pretrain.PretrainLearner(
        model,
        group,
        pad_id=tokenizer.pad_token_id,
        image_pad=writer.image_pad,
        matrix_rate=stage.matrix_rate,
        other_rate=stage.other_rate,
    )
    batches = _mixed(sources, (stage.episodes, stage.questions, stage.dictation), common)
    model.train()
    run_sft(
        learner,
        batches,
        Schedule(seconds=stage.seconds),
        clock=group.seconds,
        report=report if group.rank == 0 else None,
    )
    model.eval()
    if group.rank == 0:
        partial = work / f"{stage.name}.partial"
        torch.save(model.state_dict(), partial)
        partial.rename(work / f"{stage.name}.pt")


def _by_family(items: list[Any]) -> dict[str, list[Any]]:
    """Group items by family. Screens of one family have the same size, so their patches can be stacked."""
    families: dict[str, list[Any]] = {}
    for item in items:
        families.setdefault(item.family, []).append(item)
    return families


def _row_batches(
    items: dict[str, list[Any]],
    shares: Sequence[tuple[str, float]],
    write: Callable[[Any], pretrain.PretrainRow],
    rows: int,
    rng: random.Random,
    common: random.Random,
) -> Iterator[list[pretrain.PretrainRow]]:
    """Yield batches without end, each of one family.

    `common` has the same state in every process, so that all processes have equal work in a step.
    """
    while True:
        family = common.choices([name for name, _ in shares], [share for _, share in shares])[0]
        yield [write(item) for item in rng.sample(items[family], min(rows, len(items[family])))]


def _dictations(
    typing: list[demonstrations.RecordedDemonstration],
    writer: pretrain.PretrainRowBuilder,
    rows: int,
    rng: random.Random,
) -> Iterator[list[pretrain.PretrainRow]]:
    """Yield batches of dictation rows without end.

    Each row is a demonstration that types text, with the instruction of another training task.
    """
    while True:
        batch = []
        for one in rng.choices(typing, k=rows):
            task = basics.make_task(one.family, seed_for("train", DEMONSTRATION_START + rng.randrange(10**7)))
            batch.append(writer.dictation(one, task.instruction, task.metadata["types"], rng))
        yield batch


def _mixed(
    sources: list[Iterator[list[pretrain.PretrainRow]]], shares: tuple[float, ...], rng: random.Random
) -> Iterator[list[pretrain.PretrainRow]]:
    """Yield the next batch of a random source. `rng` has the same state in every process, `shares` are the weights."""
    while True:
        yield next(rng.choices(sources, shares)[0])
