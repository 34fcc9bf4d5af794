"""Charts of where the time of a run is spent, as inline SVG. Used by `reporting.html_report`.

`step_times` shows each step; `mean_times` what engine, desktops and episodes did meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from deskhand.reporting.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, percent

PHASES = {
    "wait": ("waiting for episodes", ("rollout_wait",)),
    "train": ("training", ("train_step", "vision_probe")),
    "publish": ("publishing", ("publish", "publish_probe")),
    "other": ("evaluation, rest", ("checkpoint", "evaluation", "other")),
}
"""Parts of a step's time in the chart: CSS class -> name and `time/` metrics."""
MAX_COLUMNS = 60
ENGINE = {"vision": ("engine_vision",), "prefill": ("engine_prefill",), "decode": ("engine_decode",)}
"""What an engine in this process does: name and `time/` metrics."""
EPISODE = ("reset", "setup", "model", "acting", "judge", "quota_wait")
"""Parts of an episode; `acting` is the solving without the time of the model."""
_BAR, _ROW = 15, 58


def step_times(steps: Sequence[Mapping[str, Any]]) -> str:
    """Return the chart of the seconds of each step by part, from bottom to top; many steps are averaged in groups."""
    size = -(-len(steps) // MAX_COLUMNS)
    groups = [steps[start : start + size] for start in range(0, len(steps), size)]
    columns = [
        {part: sum(_seconds(step, names) for step in group) / len(group) for part, (_, names) in PHASES.items()}
        for group in groups
    ]
    longest = max(sum(column.values()) for column in columns) or 1.0
    width, height = (WIDTH - LEFT - RIGHT) / len(columns), HEIGHT - TOP - BOTTOM
    parts = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{TOP + height * (1 - share):.1f}" '
        f'y2="{TOP + height * (1 - share):.1f}"/><text class="tick" x="{LEFT - 8}" '
        f'y="{TOP + height * (1 - share) + 4:.1f}" text-anchor="end">{longest * share:.3g} s</text>'
        for share in (0, 0.5, 1)
    ]
    for number, (group, column) in enumerate(zip(groups, columns, strict=True)):
        bottom = TOP + height
        first, last = group[0]["step"], group[-1]["step"]
        for part, seconds in column.items():
            high = height * seconds / longest
            bottom -= high
            which = f"step {first}" if first == last else f"steps {first} to {last}, mean"
            parts.append(
                f'<rect class="part {part}" x="{LEFT + number * width:.1f}" y="{bottom:.1f}" '
                f'width="{max(width - 1, 1):.1f}" height="{high:.1f}"><title>{which}: {PHASES[part][0]} '
                f"{seconds:.3g} s</title></rect>"
            )
    parts.append(f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 1}" text-anchor="end">training step</text>')
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Seconds of each step by part">'
        f"{''.join(parts)}</svg>"
    )


def mean_times(steps: Sequence[Mapping[str, Any]]) -> str:
    """Return the chart of means over the steps: the parts of a step, the work of the engine and the busy slots within
    it, all on one scale, and the parts of an episode on a scale of its own. What was not measured is left out."""
    step = {name: _mean(steps, names) for name, names in PHASES.values()}
    whole = sum(step.values()) or 1.0
    rows = [(f"a step, {whole:.3g} s", step, whole)]
    engine = {name: _mean(steps, names) for name, names in ENGINE.items()}
    if any(engine.values()):
        busy = sum(engine.values())
        rows.append((f"engine, busy {percent(busy / whole)}", engine, whole))
    slots = [value for step in steps if (value := step.get("perf/busy_slots_frac")) is not None]
    if slots:
        share = sum(slots) / len(slots)
        rows.append((f"episode slots, busy {percent(share)}", {"in use": share * whole}, whole))
    episode = {name: _mean(steps, [f"episode_{name}"]) for name in EPISODE if name != "acting"}
    episode["acting"] = max(0.0, _mean(steps, ["episode_solve"]) - episode["model"])
    total = sum(episode.values())
    if total:
        parts = {name.replace("_", " "): episode[name] for name in EPISODE if episode[name] >= total / 200}
        rows.append((f"an episode, {total:.3g} s", parts, total))
    height = TOP + _ROW * len(rows)
    drawn = "".join(_bar(TOP + _ROW * place, *row) for place, row in enumerate(rows))
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Mean seconds by part">{drawn}</svg>'


def _bar(top: float, title: str, parts: Mapping[str, float], whole: float) -> str:
    """Return a row: its title, a bar of parts of which `whole` fills the width, and their seconds."""
    left, width = 4.0, WIDTH - RIGHT - 4.0
    drawn = [
        f'<text class="label" x="{left}" y="{top + 8}">{escape(title)}</text>'
        f'<rect class="track" x="{left}" y="{top + 15}" width="{width}" height="{_BAR}" rx="2"/>'
    ]
    shown, end = [], left
    for place, (name, seconds) in enumerate(parts.items()):
        wide = width * min(1.0, seconds / whole)
        hint = f"{name} {seconds:.2g} s"
        drawn.append(
            f'<rect class="share share-{place}" x="{end:.1f}" y="{top + 15}" width="{max(wide - 1, 0.5):.1f}" '
            f'height="{_BAR}"><title>{escape(hint)}</title></rect>'
        )
        shown.append(f'<tspan class="share-{place}">■</tspan> {escape(hint)}')
        end += wide
    drawn.append(f'<text class="tick" x="{left}" y="{top + _BAR + 28}">{"&#160;&#160; ".join(shown)}</text>')
    return "".join(drawn)


def _mean(steps: Sequence[Mapping[str, Any]], names: Sequence[str]) -> float:
    return sum(_seconds(step, names) for step in steps) / len(steps)


def _seconds(step: Mapping[str, Any], names: Sequence[str]) -> float:
    return sum(max(0.0, step.get(f"time/{name}") or 0.0) for name in names)
