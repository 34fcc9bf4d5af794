"""The one-file report. Invariant: it asks the network for nothing, and text of a model or a guest is never markup.

Charts and tables are in the HTML; the replay is drawn by a script of ours from JSON data. The page's content policy
allows that one script by its hash, so that no other script runs even if an escape were wrong.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from deskhand.errors import ConfigError
from deskhand.view import charts
from deskhand.view.model import EvaluationView, ReportView, TrainStepView


def write(view: ReportView, path: Path) -> Path:
    """Write the report to `path` (whole or not at all) and return it. Raises `ConfigError` when it cannot be written."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(render(view), encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise ConfigError(f"the report cannot be written to {path}: {error.strerror}; choose another path") from error
    return path


def render(view: ReportView) -> str:
    """The whole page as HTML."""
    script, style = _static("report.js"), _static("report.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    before, after = _ends(view.evaluations)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(view.title)}</title>
<style>{style}</style>
</head>
<body>
<header>
<div><p class="brand">Deskhand</p><h1>{escape(view.title)}</h1></div>
<button id="theme" type="button" title="Light or dark">◐</button>
</header>
<main>
{_tiles(view, before, after)}
<section class="pair">
<figure><figcaption>Learning curve<span class="legend"><i class="after"></i>success<i class="reward"></i>reward
<i class="ring"></i>held-out, 95&nbsp;%&nbsp;interval</span></figcaption>
{charts.learning_curve(view.steps, view.evaluations)}</figure>
<figure><figcaption>Held-out success<span class="legend"><i class="before"></i>before<i class="after"></i>after</span></figcaption>
{charts.before_and_after(before, after)}</figure>
</section>
<section id="replay" tabindex="-1"><h2>Episodes</h2>
<noscript>Replaying episodes needs JavaScript.</noscript>{_left_out(view)}</section>
<section><h2>Steps</h2>{_steps_table(view.steps)}</section>
<section><h2>This run</h2><div class="pair">{_facts(view.facts)}{_ledger(view.ledger)}</div></section>
</main>
<script type="application/json" id="data">{_data(view)}</script>
<script>{script}</script>
</body>
</html>
"""


def _static(name: str) -> str:
    return resources.files("deskhand.view").joinpath("static", name).read_text(encoding="utf-8")


def _data(view: ReportView) -> str:
    """Episodes and screens as JSON that cannot end the script element that it stands in."""
    wanted = {name for episode in view.episodes for name in (*(step.frame for step in episode.steps), episode.last_frame)}
    frames = {
        name: "data:image/png;base64," + base64.b64encode(png).decode() for name, png in view.frames.items() if name in wanted
    }
    data = {"episodes": [_finite(asdict(episode)) for episode in view.episodes], "frames": frames}
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: they become null."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _ends(evaluations: Iterable[EvaluationView]) -> tuple[EvaluationView | None, EvaluationView | None]:
    by_label = {evaluation.label: evaluation for evaluation in evaluations}
    return by_label.get("before"), by_label.get("after")


def _tiles(view: ReportView, before: EvaluationView | None, after: EvaluationView | None) -> str:
    tiles: list[tuple[str, str, str]] = []
    if before and after:
        tiles.append(_change("Held-out success", before.overall.rate, after.overall.rate, f"{after.overall.trials} episodes each"))
        if before.first_click and after.first_click:
            tiles.append(_change("First click on target", before.first_click.rate, after.first_click.rate, ""))
    elif before or after:
        only = before or after
        assert only is not None
        tiles.append(("Held-out success", charts.percent(only.overall.rate), charts.described(only.overall)))
    if view.steps:
        trained, last = sum(step.episodes for step in view.steps), view.steps[-1]
        played = view.ledger.get("started", trained)
        tiles.append(("Training episodes", f"{played}", f"{trained} trained, {last.episodes_per_minute:.0f} a minute at the end"))
        tiles.append(("Training", duration(last.elapsed_s), f"{len(view.steps)} steps, policy version {last.version}"))
        if parked_s := max((step.metrics.get("parked_s", 0.0) for step in view.steps), default=0.0):
            tiles.append(("Parked", duration(parked_s), "waiting for desktops' quotas, summed over episodes; in no other figure"))
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{value}</dd><dd class='note'>{escape(note)}</dd></div>" for name, value, note in tiles
    )
    return f'<dl class="tiles">{cells}</dl>' if cells else ""


def _change(name: str, before: float, after: float, note: str) -> tuple[str, str, str]:
    points = 100 * (after - before)
    value = f"<span class='was'>{charts.percent(before)}</span> → {charts.percent(after)}"
    return name, value, f"{points:+.0f} points" + (f", {note}" if note else "")


def duration(seconds: float) -> str:
    """`95` is `1 min 35 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _steps_table(steps: tuple[TrainStepView, ...]) -> str:
    if not steps:
        return "<p class='note'>No training step was taken.</p>"
    more = list(dict.fromkeys(name for step in steps for name in step.metrics))
    head = ["step", "version", "time", "trained", "episodes/min", "reward", "success", "unscored", *more]
    rows = []
    for step in steps:
        cells = [
            f"{step.step}",
            f"{step.version}",
            duration(step.elapsed_s),
            f"{step.episodes}",
            f"{step.episodes_per_minute:.1f}",
            f"{step.reward:.3f}",
            charts.percent(step.success),
            charts.percent(step.unscored),
            *(f"{step.metrics[name]:.4g}" if name in step.metrics else "" for name in more),
        ]
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    names = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in head)
    return f'<div class="scroll"><table><thead><tr>{names}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _facts(facts: dict[str, str]) -> str:
    return (
        "<dl class='facts'>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items()) + "</dl>"
    )


def _ledger(ledger: dict[str, int]) -> str:
    if not ledger:
        return ""
    rows = "".join(f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{count}</dd>" for name, count in ledger.items())
    return f"<div><h3>Books</h3><dl class='facts books'>{rows}</dl></div>"


def _left_out(view: ReportView) -> str:
    if not view.episodes_left_out:
        return ""
    return f"<p class='note'>{len(view.episodes)} episodes are shown; the run has {view.episodes_left_out} more.</p>"
