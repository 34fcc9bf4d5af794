"""Several runs next to each other: success before and after, what it cost, and the settings that differ.

Used by `deskhand compare` and `benchmarks.learning_methods`; start with `compare_runs`. The viewer shows the same runs
as curves. Reading does not change a run.

Episodes to a threshold are counted on evaluations during training (`loop.eval_every`), because the tasks of an
evaluation are the same in every run, whereas a curriculum changes those of training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deskhand.reporting.run_view import evaluation_views, flat_settings
from deskhand.rollout.success_rates import NOTHING, Proportion
from deskhand.store.run import TRAIN, Run

DEFAULT_THRESHOLD = 0.5


@dataclass(frozen=True)
class EvaluatedStep:
    """Success of the weights after a training step, and the scored training episodes until then."""

    step: int
    episodes: int
    success: Proportion


@dataclass(frozen=True)
class RunSummary:
    """A run in a comparison."""

    folder: str
    steps: int
    episodes: int
    """Training episodes that were scored; errored ones do not count."""
    zero_variance: int
    """Those in groups with equal rewards."""
    replayed: int
    """Replays of episodes, summed over the steps."""
    before: Proportion
    after: Proportion
    evaluations: tuple[EvaluatedStep, ...]
    """Evaluations during training, in order."""
    to_threshold: int | None
    """Training episodes until the first of these evaluations that reached the threshold; None if none did."""

    @property
    def zero_variance_fraction(self) -> float | None:
        return self.zero_variance / self.episodes if self.episodes else None


def compare_runs(runs: Sequence[Run], threshold: float = DEFAULT_THRESHOLD) -> list[RunSummary]:
    """Return a summary of each run, in order. `threshold`: success of an evaluation, in (0, 1]."""
    return [_summary(run, threshold) for run in runs]


def differing_settings(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return the settings that are not equal in all runs, with the value of each run; None if a run lacks one."""
    settings = [flat_settings(run) for run in runs]
    names = dict.fromkeys(name for each in settings for name in each)
    values = {name: [each.get(name) for each in settings] for name in names}
    return {name: each for name, each in values.items() if any(one != each[0] for one in each)}


def evaluated_steps(run: Run) -> list[EvaluatedStep]:
    """Return the evaluations of a run's own weights on the split of most of them, in the order of the steps."""
    splits: dict[str, list[EvaluatedStep]] = {}
    points = {each.version: each for each in run.checkpoints()}
    scored = [row for row in run.episodes(TRAIN) if row.reward is not None]
    for name, view in evaluation_views(run).items():
        point = points.get(view.version)
        if point is None or not name.startswith(f"version-{view.version}"):
            continue
        episodes = sum((row.finished_at or 0.0) <= point.created_at for row in scored) if point.step else 0
        suffix = name.removeprefix(f"version-{view.version}")
        splits.setdefault(suffix, []).append(EvaluatedStep(point.step, episodes, view.report.success))
    most = max(splits.values(), key=len, default=[])
    return sorted(most, key=lambda each: each.step)


def _summary(run: Run, threshold: float) -> RunSummary:
    rows = run.episodes(TRAIN)
    own = {view.label: view.report.success for view in evaluation_views(run).values() if view.own}
    evaluated = evaluated_steps(run)
    reached = (each.episodes for each in evaluated if each.success.value >= threshold)
    last = run.checkpoint()
    return RunSummary(
        folder=str(run.folder),
        steps=last.step if last else 0,
        episodes=sum(row.reward is not None for row in rows),
        zero_variance=sum(row.state == "zero_variance" for row in rows),
        replayed=sum(int(entry.get("episodes/replayed", 0)) for entry in run.metrics()),
        before=own.get("before", NOTHING),
        after=own.get("after", NOTHING),
        evaluations=tuple(evaluated),
        to_threshold=next(reached, None),
    )
