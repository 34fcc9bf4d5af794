"""A policy that learns MiniWoB++ from pixels, first from demonstrations, then from rewards: `python -m
benchmarks.miniwob [--full] [--seeds N] [--folder DIR]`.

Runs the two commands of `configs/miniwob_cpu.yaml`: `deskhand sft` teaches the bundled policy with the episodes of the
oracles and with questions about screenshots, `deskhand train` goes on from rewards alone, once per seed. Success before
and after is on test seeds of the trained tasks, and of `NEVER_TRAINED`, which neither phase has used. Chance is a
policy that clicks and types at random. With --full, the demonstrations must lift at least 20 tasks above chance, and RL
must add 15 points in an hour.

Interrupted, it goes on with the next command: each phase is a run in `--folder`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.learning import EVALUATIONS, Gain, Outcome, evaluate, evaluate_more, options_of, outcome_of, run_logged
from benchmarks.thresholds import Thresholds, print_head
from deskhand.rollout.eval_loop import EvalReport
from deskhand.rollout.success_rates import Proportion
from deskhand.store.run import TRAIN, Run
from deskhand.tasks.difficulty import load_measured

CONFIG = "configs/miniwob_cpu.yaml"
NEVER_TRAINED = (
    "miniwob/click-checkboxes-large",
    "miniwob/click-checkboxes-transfer",
    "miniwob/click-tab-2-easy",
    "miniwob/click-test-transfer",
    "miniwob/unicode-test",
)
SIZES: dict[str, tuple[str, ...]] = {"full": (), "small": ("max_minutes=5",), "smoke": ()}
EPISODES_PER_TASK = {"full": 15, "small": 4, "smoke": 2}
NONE = Proportion(0, 0)


def demonstrate(folder: Path, words: Sequence[str], settings: Sequence[str]) -> Path:
    """Fine-tune the bundled policy on demonstrations, or go on with it; return the last checkpoint."""
    if (folder / "run.sqlite").exists():
        run_logged(["sft", "--resume", str(folder)], (), folder)
    else:
        run_logged(["sft", CONFIG, str(folder), *words], settings, folder)
    with Run.open(folder, read_only=True) as run:
        last = run.checkpoint()
    assert last is not None
    return Path(last.path)


def train(name: str, folder: Path, words: Sequence[str], settings: Sequence[str]) -> Outcome:
    """Train from rewards, or go on with it; return the success before and after.

    The time is that from the first training episode to the last checkpoint, with every interruption.
    """
    if (folder / "run.sqlite").exists():
        run_logged(["train", "--resume", str(folder)], time_left(folder), folder)
    else:
        run_logged(["train", CONFIG, str(folder), *words], settings, folder)
    with Run.open(folder, read_only=True) as run:
        began_at = min(row.started_at for row in run.episodes(TRAIN))
        return outcome_of(name, run, began_at, time.time() - began_at)


def time_left(folder: Path) -> list[str]:
    """Return the settings with which an interrupted run trains for the rest of its time, or is only evaluated."""
    with Run.open(folder, read_only=True) as run:
        last, minutes = run.checkpoint(), run.metadata["config"]["max_minutes"]
        began_at = min((row.started_at for row in run.episodes(TRAIN)), default=time.time())
    minutes -= (time.time() - began_at) / 60
    if last is None or last.step == 0:
        return []
    return [f"max_minutes={minutes:.2f}"] if minutes > 0.01 else [f"loop.total_steps={last.step}"]


def chance(folder: Path, tasks: Sequence[str], variants: int) -> dict[str, Proportion]:
    """Return the success of random clicks and keys by task, on training seeds."""
    file = folder / "random.json"
    if left := [task for task in tasks if "random" not in load_measured(file).get(task, {})]:
        words = ["tasks", "measure", *left, "--policies", "random", "--variants", str(variants), "--concurrency", "8"]
        run_logged([*words, "--out", str(file)], [], folder / "random")
    counts = {task: found["random"] for task, found in load_measured(file).items()}
    return {task: Proportion(counts[task].solved, counts[task].episodes) for task in tasks}


def print_table(title: str, columns: Mapping[str, Mapping[str, Proportion]]) -> None:
    """Print the success of each task in percent, one column per policy."""
    print(f"\n{title}\n\n| task | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}")
    for task in next(iter(columns.values())):
        shown = (f"{100 * column.get(task, NONE).value:.0f}" for column in columns.values())
        print(f"| {task.removeprefix('miniwob/')} | {' | '.join(shown)} |")
    totals = [
        Proportion(sum(each.hits for each in column.values()), sum(each.total for each in column.values()))
        for column in columns.values()
    ]
    print(f"| all | {' | '.join(str(total) for total in totals)} |")
    sys.stdout.flush()


def judge(outcomes: Sequence[Outcome], random: Mapping[str, Proportion], thresholds: Thresholds) -> None:
    """Check the number of tasks above chance, and each seed's gain and time."""
    before = outcomes[0].before.by_family
    above = sum(rate.value > random[task].value for task, rate in before.items())
    thresholds.check("tasks above chance after demonstrations", above >= 20, f"{above} of {len(before)}", ">= 20")
    for found in outcomes:
        gain = Gain(found.before.success, found.after.success)
        apart = "apart" if gain.apart else "not apart"
        passed = gain.value >= 0.15 and gain.apart
        figure = f"{gain}, intervals {apart}"
        thresholds.check(f"{found.name}: gain from rewards", passed, figure, ">= 15 points, intervals apart")
        thresholds.check(f"{found.name}: RL", found.training_s <= 3600, f"{found.training_s:.0f} s", "<= 3600 s")


def main() -> None:
    options = options_of(__doc__, "runs/evidence/miniwob")
    folder, is_full = options.folder, options.size == "full"
    print_head()
    smoke = ["--profile", "smoke"] if options.size == "smoke" else []
    per_task, settings = EPISODES_PER_TASK[options.size], SIZES[options.size]
    checkpoint = demonstrate(folder / "demonstrations", smoke or ["--profile", "sft"], ())
    outcomes: list[Outcome] = []
    others: dict[str, EvalReport] = {}
    unseen = [f"suite.families=[{', '.join(NEVER_TRAINED)}]", f"evaluation.num_episodes={5 * per_task}"]
    others["after demonstrations"] = evaluate(folder / "never-trained", CONFIG, checkpoint, unseen)
    for seed in range(options.seeds or 1):
        place = folder / f"seed-{seed}"
        outcomes.append(train(f"seed {seed}", place, smoke, [f"model={checkpoint}", f"seed={seed}", *settings]))
        others[f"after RL, seed {seed}"] = evaluate(folder / f"never-trained-{seed}", CONFIG, place, unseen)
    before = outcomes[0].before.by_family
    tasks = [*before]
    random = chance(folder, [*tasks, *NEVER_TRAINED], per_task)
    greedy = list(EVALUATIONS)[:1]
    outcomes = [evaluate_more(each, folder / f"seed-{seed}", greedy) for seed, each in enumerate(outcomes)]
    columns = {
        "random": {task: random[task] for task in tasks},
        "after demonstrations": before,
        "the same, greedily": outcomes[0].more["greedy"][0].by_family,
    }
    for found in outcomes:
        columns |= {
            f"after RL, {found.name}": found.after.by_family,
            f"the same, greedily, {found.name}": found.more["greedy"][1].by_family,
        }
    print_table("success in % on test seeds of the trained tasks", columns)
    seen = {task: random[task] for task in NEVER_TRAINED}
    print_table("tasks never trained", {"random": seen} | {name: each.by_family for name, each in others.items()})
    for found in outcomes:
        print(f"{found.name}: {found.steps} steps, {found.episodes} training episodes, {found.training_s:.0f} s")
    gains = [100 * Gain(found.before.success, found.after.success).value for found in outcomes]
    print(f"mean gain from rewards: {statistics.fmean(gains):+.1f} points\n")
    thresholds = Thresholds()
    if is_full:
        judge(outcomes, random, thresholds)
    thresholds.finish()


if __name__ == "__main__":
    main()
