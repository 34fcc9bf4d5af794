"""Chart of validation success by training episodes, one panel per method, as an SVG file.

Used by `benchmarks.learning_methods`. The file needs no style sheet, so that a page can show it as an image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from deskhand.reporting.charts import percent

Curve = Sequence[tuple[int, float]]
"""Scored training episodes until an evaluation, and its success in [0, 1]."""
COLUMNS = 3
PANEL_WIDTH, PANEL_HEIGHT = 300, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 34, 28
BACKGROUND, TEXT, GRID, BASELINE_COLOR, METHOD_COLOR = "#ffffff", "#40434a", "#e3e5e8", "#b3b8c4", "#2f6fde"


def svg_of(curves: Mapping[str, Sequence[Curve]], baseline: str, threshold: float) -> str:
    """Return the chart of each method's seeds in blue, with those of the baseline in gray in every panel.

    A dashed line marks the threshold. All panels have the same axes. That of success starts at the quarter below the
    lowest value. That of episodes is logarithmic, so half the episodes is the same distance everywhere; it leaves out
    evaluations before any training.
    """
    curves = {name: [[each for each in curve if each[0] > 0] for curve in seeds] for name, seeds in curves.items()}
    lowest = min((point[1] for seeds in curves.values() for curve in seeds for point in curve), default=0.0)
    floor = math.floor(4 * lowest) / 4 if lowest < 1 else 0.75
    episodes = [point[0] for seeds in curves.values() for curve in seeds for point in curve] or [1]
    ends = (min(episodes), max(*episodes, min(episodes) + 1))
    rows = -(-len(curves) // COLUMNS)
    width, height = COLUMNS * PANEL_WIDTH, rows * PANEL_HEIGHT + 24
    panels = []
    for index, (name, seeds) in enumerate(curves.items()):
        behind = () if name == baseline else curves.get(baseline, ())
        left, top = index % COLUMNS * PANEL_WIDTH, index // COLUMNS * PANEL_HEIGHT
        panels.append(
            f'<g transform="translate({left} {top})">{_panel(name, seeds, behind, ends, floor, threshold)}</g>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="sans-serif" font-size="12" fill="{TEXT}">'
        f"<title>Success on the validation split by training episodes</title>"
        f'<rect width="{width}" height="{height}" fill="{BACKGROUND}"/>{"".join(panels)}'
        f'<text x="{width - RIGHT}" y="{height - 8}" text-anchor="end">scored training episodes, logarithmic; '
        f"blue: seeds of the method, gray: seeds of {escape(baseline)}, dashed: {percent(threshold)}</text></svg>\n"
    )


def _panel(
    name: str,
    seeds: Sequence[Curve],
    behind: Sequence[Curve],
    ends: tuple[int, int],
    floor: float,
    threshold: float,
) -> str:
    def x(episodes: int) -> float:
        first, last = ends
        return LEFT + (PANEL_WIDTH - LEFT - RIGHT) * math.log(episodes / first) / math.log(last / first)

    def y(success: float) -> float:
        return TOP + (PANEL_HEIGHT - TOP - BOTTOM) * (1 - success) / (1 - floor)

    def line(curve: Curve, color: str) -> str:
        points = [(round(x(episodes), 1), round(y(success), 1)) for episodes, success in curve]
        path = " ".join(f"{across},{down}" for across, down in points)
        # The dot shows where a run ended. A run that ended at its first evaluation has no line.
        end_x, end_y = points[-1]
        return (
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.6"/>'
            f'<circle cx="{end_x}" cy="{end_y}" r="2.5" fill="{color}"/>'
        )

    parts = [f'<text x="{LEFT}" y="20" font-weight="bold">{escape(name)}</text>']
    for tick in (each / 4 for each in range(round(4 * floor), 5)):
        parts.append(f'<path d="M{LEFT} {y(tick):.1f}H{PANEL_WIDTH - RIGHT}" stroke="{GRID}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{percent(tick)}</text>')
    parts.append(
        f'<path d="M{LEFT} {y(threshold):.1f}H{PANEL_WIDTH - RIGHT}" stroke="{TEXT}" stroke-dasharray="3 4" '
        'stroke-width="0.8"/>'
    )
    parts += [
        f'<text x="{x(tick):.1f}" y="{PANEL_HEIGHT - 10}" text-anchor="middle">{tick}</text>' for tick in _ticks(*ends)
    ]
    parts += [line(curve, BASELINE_COLOR) for curve in behind if curve]
    parts += [line(curve, METHOD_COLOR) for curve in seeds if curve]
    return "".join(parts)


def _ticks(first: int, last: int) -> list[int]:
    """Return the values 1, 2 and 5 times a power of ten from `first` to `last`."""
    powers = (10**power for power in range(len(str(last))))
    return [each * power for power in powers for each in (1, 2, 5) if first <= each * power <= last]
