"""Whether the demo learns, and uses images: `python -m benchmarks.learning [--full] [--seeds N] [--folder DIR]`.

Runs `deskhand demo` once per seed, plus with --full once on noise images, and reads the metrics from the run
directories. Then the first and the last version play the same test tasks greedily, and tasks of the split
`test_instructions`, whose instructions neither the pretraining nor the training has used, sampled and greedily.
`--warm-start DIR` also evaluates another checkpoint, such as `sharpening` of `deskhand dev build-tiny`, the bundled
policy before it imitates noisy clicks. Rates have Wilson 95 % intervals; the interval of a gain is Newcombe's hybrid
score interval (Statistics in Medicine 17, 1998, method 10). Without --full the runs take two steps and gains are not
judged.
"""

from __future__ import annotations

import argparse
import copy
import math
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.thresholds import ROOT, Thresholds, parser_of, print_head
from deskhand.recipes.assemble import result_label, version_label
from deskhand.rollout.eval_loop import EvalReport, build_eval_report
from deskhand.rollout.success_rates import Proportion
from deskhand.store.run import TRAIN, Run

MAX_MIB = 1536
"""Peak memory of a demo."""
SHORT = (
    "max_minutes=30",
    "loop.total_steps=2",
    "loop.groups_per_step=2",
    "loop.group_size=4",
    "loop.max_concurrent_episodes=4",
    "evaluation.num_episodes=12",
)
SHORTEST = (*SHORT, "loop.total_steps=1", "loop.max_concurrent_episodes=2", "evaluation.num_episodes=3")
SIZES: dict[str, tuple[str, ...]] = {"smoke": SHORTEST, "small": SHORT, "full": ()}


@dataclass(frozen=True)
class Outcome:
    """Result of one demo run; `before` and `after` are on test tasks, sampled at temperature 1."""

    name: str
    before: EvalReport
    after: EvalReport
    steps: int
    episodes: int
    """Training episodes that were scored."""
    first_update_s: float
    """From the start of the command until the first update was stored; infinite when none was made."""
    training_s: float
    """From the start of the command until the last checkpoint was stored."""
    total_s: float
    peak_mib: float
    """Peak memory of the training process, at its last step."""
    more: dict[str, tuple[EvalReport, EvalReport]] = field(default_factory=dict)
    """Reports before and after of `EVALUATIONS`, by their names."""


EVALUATIONS: dict[str, dict[str, str | float]] = {
    "greedy": {"temperature": 0.0},
    "new instructions": {"split": "test_instructions"},
    "new instructions, greedy": {"split": "test_instructions", "temperature": 0.0},
}
"""Changes of `evaluation.*` for the evaluations beside the demo's own."""


@dataclass(frozen=True)
class Gain:
    """Difference of two rates with its 95 % interval."""

    before: Proportion
    after: Proportion

    @property
    def value(self) -> float:
        return self.after.value - self.before.value

    @property
    def interval(self) -> tuple[float, float]:
        (low_before, high_before), (low_after, high_after) = self.before.interval, self.after.interval
        down = math.hypot(self.after.value - low_after, high_before - self.before.value)
        up = math.hypot(high_after - self.after.value, self.before.value - low_before)
        return self.value - down, self.value + up

    @property
    def apart(self) -> bool:
        """Whether the intervals of the two rates do not touch, the later one being higher."""
        return self.after.interval[0] > self.before.interval[1]

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.value:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}]"


def run_demo(name: str, folder: Path, settings: Sequence[str]) -> Outcome:
    """Run the demo in a process, with output to `<folder>.log`. Raises `SystemExit` if it fails."""
    folder.with_name(folder.name + ".log").unlink(missing_ok=True)
    began, began_at = time.monotonic(), time.time()
    run_logged(["demo", str(folder), "--restart"], settings, folder)
    total_s = time.monotonic() - began
    with Run.open(folder, read_only=True) as run:
        return outcome_of(name, run, began_at, total_s)


def run_logged(words: Sequence[str], settings: Sequence[str], folder: Path) -> None:
    """Run a command of deskhand with these settings, and its output at the end of `<folder>.log`.

    Raises `SystemExit` if it fails.
    """
    command = [sys.executable, "-m", "deskhand", *words]
    for setting in settings:
        command += ["--set", setting]
    log = folder.with_name(folder.name + ".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as output:
        code = subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
        ).returncode
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {code}; {log} says why: {log.read_text().strip()[-300:]}")


def outcome_of(name: str, run: Run, began_at: float, total_s: float) -> Outcome:
    """Read a finished run; one that made no update (every group's rewards were equal) has gained nothing, and its
    version 0 stands for both sides. `began_at`: seconds since the epoch."""
    first, last = run.checkpoint(1), run.checkpoint()
    if last is None:
        raise SystemExit(f"{run.folder} holds no checkpoint")
    return Outcome(
        name=name,
        before=build_eval_report(run, "version-0"),
        after=build_eval_report(run, f"version-{last.version}"),
        steps=last.step,
        episodes=sum(row.reward is not None for row in run.episodes(TRAIN)),
        first_update_s=first.created_at - began_at if first else math.inf,
        training_s=last.created_at - began_at,
        total_s=total_s,
        peak_mib=max((entry.get("memory/peak_mib_total", 0.0) for entry in run.metrics()), default=0.0),
    )


def evaluate_more(found: Outcome, folder: Path, names: Sequence[str]) -> Outcome:
    """Play these `EVALUATIONS` with the first and the last version of a run; return the outcome with their reports."""
    more = {
        title: (evaluate_step(folder, 0, EVALUATIONS[title]), evaluate_step(folder, found.steps, EVALUATIONS[title]))
        for title in names
    }
    return replace(found, more=more)


def evaluate_step(folder: Path, step: int, changes: Mapping[str, str | float]) -> EvalReport:
    """Play the test tasks with a checkpoint of a run, with these changes of `evaluation.*`; return the report."""
    settings = [f"evaluation.{key}={value}" for key, value in changes.items()]
    run_logged(["eval", str(folder), "--step", str(step)], settings, folder)
    with Run.open(folder, read_only=True) as run:
        before = run.metadata["config"]
        now = copy.deepcopy(before)
        now["evaluation"] |= changes
        point = run.checkpoint(step)
        return build_eval_report(run, result_label(version_label(point.version if point else 0), before, now))


def print_warm_start(checkpoint: Path, folder: Path, settings: Sequence[str]) -> None:
    """Print the success of another checkpoint on the same tasks, sampled and greedily."""
    print(f"\n{checkpoint.name}, not trained")
    for title, changes in {"sampled": {}, **EVALUATIONS}.items():
        target = folder / title.replace(" ", "-").replace(",", "")
        own = [*settings, *(f"evaluation.{key}={value}" for key, value in changes.items())]
        print(f"  {title:24} {evaluate(target, 'tiny_cpu', checkpoint, own).success}")


def evaluate(folder: Path, config: str, policy: Path | str, settings: Sequence[str]) -> EvalReport:
    """Evaluate a policy on the test tasks of a config; return the report."""
    run_logged(["eval", str(folder), "--config", config, "--policy", str(policy)], settings, folder)
    with Run.open(folder, read_only=True) as run:
        (name,) = {row.phase for row in run.episodes()}
        return build_eval_report(run, name)


def print_outcome(found: Outcome) -> None:
    """Print the result of a run as a table."""
    print(f"\n{found.name}: {found.steps} steps, {found.episodes} training episodes")
    print(
        f"  first update {found.first_update_s:.0f} s, last {found.training_s:.0f} s, whole command "
        f"{found.total_s:.0f} s"
    )
    rows = [("success, sampled", found.before.success, found.after.success)]
    rows += [
        (f"  {name}", rate, found.after.by_family.get(name, Proportion(0, 0)))
        for name, rate in found.before.by_family.items()
    ]
    rows.append(("first click on target", found.before.first_click, found.after.first_click))
    for name, (before, after) in found.more.items():
        rows.append((name, before.success, after.success))
        rows += [
            (f"  {family}", rate, after.by_family.get(family, Proportion(0, 0)))
            for family, rate in before.by_family.items()
        ]
    for title, before, after in rows:
        print(f"  {title:24} {before}  ->  {after}   {Gain(before, after)}")
    unscored = sum(found.before.errored.values()), sum(found.after.errored.values())
    if any(unscored):
        print(f"  held-out tasks without a score: {unscored[0]} before, {unscored[1]} after")
    sys.stdout.flush()


def judge_time(found: Outcome, thresholds: Thresholds) -> None:
    """Check the thresholds of every run."""
    thresholds.check(
        f"{found.name}: first update", found.first_update_s <= 60, f"{found.first_update_s:.0f} s", "<= 60 s"
    )
    thresholds.check(f"{found.name}: whole demo", found.total_s <= 600, f"{found.total_s:.0f} s", "<= 600 s")
    name, peak = f"{found.name}: memory", f"{found.peak_mib:.0f} MiB"
    thresholds.check(name, found.peak_mib <= MAX_MIB, peak, f"<= {MAX_MIB} MiB")


def judge_size(found: Outcome, thresholds: Thresholds) -> None:
    """Check that enough held-out episodes were scored."""
    smaller = min(found.before.success.total, found.after.success.total)
    thresholds.check(f"{found.name}: held-out episodes", smaller >= 200, f"{smaller} on the smaller side", ">= 200")


def judge_gain(found: Outcome, thresholds: Thresholds) -> None:
    """Check the thresholds of a run with images."""
    success, clicks = (
        Gain(found.before.success, found.after.success),
        Gain(found.before.first_click, found.after.first_click),
    )
    judge_size(found, thresholds)
    passed = success.value >= 0.2 and success.apart
    apart = "apart" if success.apart else "not apart"
    thresholds.check(f"{found.name}: success", passed, f"{success}, intervals {apart}", ">= 20 points, intervals apart")
    thresholds.check(f"{found.name}: first click on target", clicks.value >= 0.1, f"{clicks}", ">= 10 points")


def judge_greedy(found: Outcome, thresholds: Thresholds) -> None:
    """Check that decoding alone does not explain the gain."""
    before, after = found.more["greedy"]
    gain = Gain(before.success, after.success)
    thresholds.check(f"{found.name}: greedy success", gain.value >= 0.1, f"{gain}", ">= 10 points")


def judge_blind(blind: Outcome, seeing: Sequence[Outcome], thresholds: Thresholds) -> None:
    """Compare the noise-image run with every other run."""
    lost = Gain(blind.before.success, blind.after.success)
    for found in seeing:
        won = Gain(found.before.success, found.after.success)
        passed = lost.value <= won.value / 2 and lost.interval[1] < won.interval[0]
        figure = f"blind {lost}, seeing {won}"
        thresholds.check(f"blind against {found.name}", passed, figure, "at most half, intervals apart")


def options_of(description: str | None, folder: str) -> argparse.Namespace:
    """Parse the size, `--seeds` and `--folder` options."""
    parser = parser_of(description)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--warm-start", type=Path)
    parser.add_argument("--folder", type=Path, default=Path(folder))
    return parser.parse_args()


def run_seeds(options: argparse.Namespace, extra: Sequence[str], evaluations: Sequence[str]) -> list[Outcome]:
    """Run one demo per seed (default at full size: two) with `extra` settings, and these `EVALUATIONS` of each."""
    settings, found = [*extra, *SIZES[options.size]], []
    for seed in range(options.seeds or (2 if options.size == "full" else 1)):
        folder = options.folder / f"seed-{seed}"
        outcome = run_demo(f"seed {seed}", folder, [f"seed={seed}", *settings])
        found.append(evaluate_more(outcome, folder, evaluations))
        print_outcome(found[-1])
    return found


def main() -> None:
    options = options_of(__doc__, "runs/evidence/learning")
    print_head()
    thresholds = Thresholds()
    seeing = run_seeds(options, (), list(EVALUATIONS)[: 1 if options.size == "smoke" else None])
    blind = (
        run_demo("blind", options.folder / "blind", ["seed=0", "agent.noise_images=true"])
        if options.size == "full"
        else None
    )
    if blind is not None:
        print_outcome(blind)
    if options.warm_start is not None:
        print_warm_start(options.warm_start.resolve(), options.folder / "warm-start", SIZES[options.size])
    print()
    for found in seeing:
        judge_time(found, thresholds)
        if options.size == "full":
            judge_gain(found, thresholds)
            judge_greedy(found, thresholds)
    if blind is not None:
        judge_blind(blind, seeing, thresholds)
    thresholds.finish()


if __name__ == "__main__":
    main()
