"""Charts of the report as inline SVG, without scripts.

Used by `reporting.html_report`. Pure functions of the view model; text is escaped, colors are CSS classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from deskhand.reporting.view_model import EvaluationView, Interval, TrainStepView

WIDTH, HEIGHT = 560, 262
LEFT, RIGHT, TOP, BOTTOM = 44, 16, 14, 34
ROW, LABEL = 46, 148
SMOOTHING = 0.3
"""Weight of the newest step in the smoothed lines."""


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def smoothed(values: Sequence[float]) -> list[float]:
    """Return the exponential moving average, starting at the first value."""
    out: list[float] = []
    for value in values:
        out.append(value if not out else out[-1] + SMOOTHING * (value - out[-1]))
    return out


def learning_curve(steps: Sequence[TrainStepView], evaluations: Sequence[EvaluationView]) -> str:
    """Return the chart of success and reward by step, with held-out success and its 95 % interval."""
    last = max([step.step for step in steps] + [evaluation.step for evaluation in evaluations] + [1])

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
    found = [
        (step.step, step.reward, step.success) for step in steps if step.reward is not None and step.success is not None
    ]
    for name, values in (
        ("reward", [reward for _, reward, _ in found]),
        ("success", [success for _, _, success in found]),
    ):
        positions = zip((x(step) for step, _, _ in found), smoothed(values), strict=True)
        points = " ".join(f"{at:.1f},{y(value):.1f}" for at, value in positions)
        if name == "success":
            parts += [
                f'<circle class="dot success" cx="{x(step):.1f}" cy="{y(success):.1f}" r="2.2">'
                f"<title>step {step}: success {percent(success)}, reward {reward:.2f}</title></circle>"
                for step, reward, success in found
            ]
        parts.append(f'<polyline class="line {name}" points="{points}"/>')
    for evaluation in evaluations:
        parts.append(_whisker(x(evaluation.step), y, evaluation))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Learning curve: success and reward by step">'
        f"{''.join(parts)}</svg>"
    )


def _whisker(at: float, y: Callable[[float], float], evaluation: EvaluationView) -> str:
    score = evaluation.overall
    kind = "after" if evaluation.label == "after" else "before"
    return (
        f'<g class="whisker {kind}"><title>{escape(evaluation.label)}: {escape(described(score))}</title>'
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{y(score.low):.1f}" y2="{y(score.high):.1f}"/>'
        f'<line x1="{at - 5:.1f}" x2="{at + 5:.1f}" y1="{y(score.low):.1f}" y2="{y(score.low):.1f}"/>'
        f'<line x1="{at - 5:.1f}" x2="{at + 5:.1f}" y1="{y(score.high):.1f}" y2="{y(score.high):.1f}"/>'
        f'<circle cx="{at:.1f}" cy="{y(score.rate):.1f}" r="5"/></g>'
    )


def step_ticks(last: int) -> list[int]:
    """Return at most nine round numbers from 0 to `last`."""
    for size in (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2500, 10000):
        if last / size <= 8:
            return list(range(0, last + 1, size))
    return [0, last]


def described(score: Interval) -> str:
    interval = f"{percent(score.low)} to {percent(score.high)}"
    return f"{percent(score.rate)} ({score.successes}/{score.trials}, 95 % interval {interval})"


def before_and_after(before: EvaluationView | None, after: EvaluationView | None) -> str:
    """Return the bar chart of success before and after, by family, and of first clicks on target."""
    rows: list[tuple[str, Interval | None, Interval | None, str]] = [
        ("All families", before.overall if before else None, after.overall if after else None, "strong")
    ]
    names = sorted({*(before.families if before else ()), *(after.families if after else ())})
    rows += [
        (name, before.families.get(name) if before else None, after.families.get(name) if after else None, "")
        for name in names
    ]
    clicks = (before.first_click if before else None), (after.first_click if after else None)
    if any(clicks):
        rows.append(("First click on target", *clicks, "other"))
    height = 22 + ROW * len(rows)
    width = WIDTH - LABEL - 112

    def x(value: float) -> float:
        return LABEL + width * value

    parts = [
        f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="4" y2="{height - 20}"/>'
        f'<text class="tick" x="{x(tick):.1f}" y="{height - 4}" text-anchor="middle">{percent(tick)}</text>'
        for tick in (0, 0.25, 0.5, 0.75, 1)
    ]
    for index, (name, first, second, style) in enumerate(rows):
        top = 6 + index * ROW
        if style == "other":
            parts.append(f'<line class="rule" x1="0" x2="{WIDTH}" y1="{top - 3}" y2="{top - 3}"/>')
        parts.append(
            f'<text class="label {style}" x="{LABEL - 12}" y="{top + 23}" text-anchor="end">{escape(name)}</text>'
        )
        for offset, kind, score in ((4, "before", first), (20, "after", second)):
            if score is None or not score.trials:
                continue
            middle = top + offset + 6.5
            parts.append(
                f"<g><title>{kind}: {escape(described(score))}</title>"
                f'<rect class="bar {kind}" x="{x(0):.1f}" y="{top + offset}" height="13" rx="2" '
                f'width="{max(width * score.rate, 1):.1f}"/>'
                f'<path class="interval" d="M{x(score.low):.1f} {middle}H{x(score.high):.1f}'
                f'M{x(score.low):.1f} {middle - 3.5}v7M{x(score.high):.1f} {middle - 3.5}v7"/>'
                f'<text class="value {kind}" x="{x(1) + 16:.1f}" y="{middle + 4}">{percent(score.rate)}'
                f'<tspan class="tick" dx="6">{score.successes}/{score.trials}</tspan></text></g>'
            )
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Held-out success before and after training">'
        f"{''.join(parts)}</svg>"
    )
