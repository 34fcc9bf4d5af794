"""Charts of the report as inline SVG, without scripts.

Used by `reporting.html_report`. Text is escaped, colors are CSS classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from deskhand.rollout.eval_loop import EvalReport
from deskhand.rollout.success_rates import NOTHING, Proportion

WIDTH, HEIGHT = 560, 262
LEFT, RIGHT, TOP, BOTTOM = 44, 16, 14, 34
ROW, LABEL = 46, 148
SMOOTHING = 0.3
"""Weight of the newest step in the smoothed lines."""


@dataclass(frozen=True, slots=True)
class EvaluationView:
    """Evaluation of one version of the policy, or of another policy."""

    label: str
    """"before", "after" or "version N"; for other policies or settings the name of the evaluation."""
    step: int
    version: int
    report: EvalReport
    own: bool = True
    """Whether it evaluates a version of the run with the run's settings."""
    held_out: bool = True
    """Whether its tasks are held out; with `evaluation.split: train` they are training tasks."""

    @property
    def title(self) -> str:
        """Name of its success rate."""
        return "Held-out success" if self.held_out else "Success on training tasks"


def percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.0f} %"


def smoothed(values: Sequence[float]) -> list[float]:
    """Return the exponential moving average, starting at the first value."""
    out: list[float] = []
    for value in values:
        out.append(value if not out else out[-1] + SMOOTHING * (value - out[-1]))
    return out


def learning_curve(steps: Sequence[Mapping[str, Any]], evaluations: Sequence[EvaluationView]) -> str:
    """Return the chart of success and reward by step, with evaluated success and its 95 % interval.

    `steps`: metrics of the steps; reward and success are None or missing if no episode ended.
    """
    last = max([step["step"] for step in steps] + [evaluation.step for evaluation in evaluations] + [1])

    def x(step: float) -> float:
        return LEFT + 14 + (WIDTH - LEFT - RIGHT - 28) * step / last

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(max(value, 0.0), 1.0))

    parts = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        f'<text class="tick" x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{percent(tick)}</text>'
        for tick in (0, 0.25, 0.5, 0.75, 1)
    ]
    parts += [
        f'<text class="tick" x="{x(tick):.1f}" y="{HEIGHT - 16}" text-anchor="middle">{tick}</text>'
        for tick in step_ticks(last)
    ]
    parts.append(f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 1}" text-anchor="end">training step</text>')
    keys = ("step", "reward/mean", "reward/success_rate")
    found: list[tuple[float, ...]] = [
        tuple(step[key] for key in keys) for step in steps if all(step.get(key) is not None for key in keys)
    ]
    for column, name in ((1, "reward"), (2, "success")):
        values = smoothed([row[column] for row in found])
        points = " ".join(f"{x(row[0]):.1f},{y(value):.1f}" for row, value in zip(found, values, strict=True))
        if name == "success":
            parts += [
                f'<circle class="dot success" cx="{x(step):.1f}" cy="{y(success):.1f}" r="2.2">'
                f"<title>step {step}: success {percent(success)}, reward {reward:.2f}</title></circle>"
                for step, reward, success in found
            ]
        parts.append(f'<polyline class="line {name}" points="{points}"/>')
    scored = (evaluation for evaluation in evaluations if evaluation.report.success.total)
    parts += [_whisker(x(evaluation.step), y, evaluation) for evaluation in scored]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Learning curve: success and reward by step">'
        f"{''.join(parts)}</svg>"
    )


def _whisker(at: float, y: Callable[[float], float], evaluation: EvaluationView) -> str:
    score, (low, high) = evaluation.report.success, evaluation.report.success.interval
    kind = "after" if evaluation.label == "after" else "before"
    return (
        f'<g class="whisker {kind}"><title>{escape(evaluation.label)}: {escape(described(score))}</title>'
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{y(low):.1f}" y2="{y(high):.1f}"/>'
        f'<line x1="{at - 5:.1f}" x2="{at + 5:.1f}" y1="{y(low):.1f}" y2="{y(low):.1f}"/>'
        f'<line x1="{at - 5:.1f}" x2="{at + 5:.1f}" y1="{y(high):.1f}" y2="{y(high):.1f}"/>'
        f'<circle cx="{at:.1f}" cy="{y(score.value):.1f}" r="5"/></g>'
    )


def step_ticks(last: int) -> list[int]:
    """Return at most nine round numbers from 0 to `last`."""
    for size in (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2500, 10000):
        if last / size <= 8:
            return list(range(0, last + 1, size))
    return [0, last]


def interval_text(score: Proportion) -> str:
    return " to ".join(map(percent, score.interval))


def described(score: Proportion) -> str:
    return f"{percent(score.value)} ({score.hits}/{score.total}, 95 % interval {interval_text(score)})"


def before_and_after(before: EvaluationView | None, after: EvaluationView | None) -> str:
    """Return the bar chart of success before and after, by family, and of first clicks on target. At least one of the
    two is given."""
    sides = [side.report if side else EvalReport("", NOTHING, {}, NOTHING, 0.0) for side in (before, after)]
    rows = [("All families", [side.success for side in sides], "strong")]
    names = sorted({name for side in sides for name in side.by_family})
    rows += [(name, [side.by_family.get(name, NOTHING) for side in sides], "") for name in names]
    if any(side.first_click.total for side in sides):
        rows.append(("First click on target", [side.first_click for side in sides], "other"))
    title = next(side.title for side in (before, after) if side)
    height = 22 + ROW * len(rows)
    width = WIDTH - LABEL - 112

    def x(value: float) -> float:
        return LABEL + width * value

    parts = [
        f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="4" y2="{height - 20}"/>'
        f'<text class="tick" x="{x(tick):.1f}" y="{height - 4}" text-anchor="middle">{percent(tick)}</text>'
        for tick in (0, 0.25, 0.5, 0.75, 1)
    ]
    for index, (name, (first, second), style) in enumerate(rows):
        top = 6 + index * ROW
        if style == "other":
            parts.append(f'<line class="rule" x1="0" x2="{WIDTH}" y1="{top - 3}" y2="{top - 3}"/>')
        parts.append(
            f'<text class="label {style}" x="{LABEL - 12}" y="{top + 23}" text-anchor="end">{escape(name)}</text>'
        )
        for offset, kind, score in ((4, "before", first), (20, "after", second)):
            if not score.total:
                continue
            middle, (low, high) = top + offset + 6.5, score.interval
            parts.append(
                f"<g><title>{kind}: {escape(described(score))}</title>"
                f'<rect class="bar {kind}" x="{x(0):.1f}" y="{top + offset}" height="13" rx="2" '
                f'width="{max(width * score.value, 1):.1f}"/>'
                f'<path class="interval" d="M{x(low):.1f} {middle}H{x(high):.1f}'
                f'M{x(low):.1f} {middle - 3.5}v7M{x(high):.1f} {middle - 3.5}v7"/>'
                f'<text class="value {kind}" x="{x(1) + 16:.1f}" y="{middle + 4}">{percent(score.value)}'
                f'<tspan class="tick" dx="6">{score.hits}/{score.total}</tspan></text></g>'
            )
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title} before and after training">'
        f"{''.join(parts)}</svg>"
    )
