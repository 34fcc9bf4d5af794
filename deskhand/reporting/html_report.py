"""HTML report in one file.

Used by `deskhand report`; start with `write`. Charts and tables are HTML; a script renders the replay from JSON data.
The content security policy allows only that script by its hash, so no other script runs even if escaping had a bug.

Invariant: the page loads nothing from the network, and text of models and guests is never markup.
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
from deskhand.reporting import charts
from deskhand.reporting.view_model import QUOTA_WAIT, EvaluationView, ReportView


def write(view: ReportView, path: Path) -> Path:
    """Write the report atomically to `path` and return it. Raises `ConfigError` if it cannot be written."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(render(view), encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise ConfigError(f"{path}: the report cannot be written ({error.strerror}); choose another path") from error
    return path


def render(view: ReportView) -> str:
    """Return the page."""
    script, style = _static("report.js"), _static("report.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    )
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
{_curves(view, before, after)}
<section id="replay" tabindex="-1"><h2>Episodes</h2>
<noscript>Replaying episodes needs JavaScript.</noscript>{_hidden_note(view)}</section>
{_others(view.evaluations)}
<section><h2>Steps</h2>{_steps_table(view)}</section>
<section><h2>This run</h2><div class="pair">{_facts(view.facts)}{_episode_counts(view.episode_counts)}</div></section>
</main>
<script type="application/json" id="data">{_data(view)}</script>
<script>{script}</script>
</body>
</html>
"""


def _static(name: str) -> str:
    return resources.files("deskhand.reporting").joinpath("static", name).read_text(encoding="utf-8")


def _data(view: ReportView) -> str:
    """Return episodes and screenshots as JSON that cannot close its script element."""
    wanted = {
        name for episode in view.episodes for name in (*(step.frame for step in episode.steps), episode.last_frame)
    }
    frames = {
        name: "data:image/png;base64," + base64.b64encode(png).decode()
        for name, png in view.frames.items()
        if name in wanted
    }
    data = {"episodes": [_finite(asdict(episode)) for episode in view.episodes], "frames": frames}
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _finite(value: Any) -> Any:
    """Replace infinity and NaN, which JSON lacks, by None."""
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
        first, last = before.overall.trials, after.overall.trials
        counted = f"{last} episodes each" if first == last else f"{first} and {last} episodes"
        tiles.append(_change("Held-out success", before.overall.rate, after.overall.rate, counted))
        if before.first_click and after.first_click:
            tiles.append(_change("First click on target", before.first_click.rate, after.first_click.rate, ""))
    elif before or after:
        only = before or after
        assert only is not None
        tiles.append(("Held-out success", charts.percent(only.overall.rate), charts.described(only.overall)))
    if view.steps:
        trained, end = sum(step.episodes for step in view.steps), view.steps[-1]
        started = view.episode_counts.get("started", trained)
        tiles.append(
            (
                "Training episodes",
                f"{started}",
                f"{trained} trained, {end.episodes_per_minute:.0f} per minute at the end",
            )
        )
        tiles.append(("Training", duration(end.elapsed_s), f"{len(view.steps)} steps, policy version {end.version}"))
        if wait_s := max((step.metrics.get(QUOTA_WAIT, 0.0) for step in view.steps), default=0.0):
            tiles.append(("Quota wait", duration(wait_s), "summed over episodes; excluded from all other metrics"))
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{value}</dd><dd class='note'>{escape(note)}</dd></div>"
        for name, value, note in tiles
    )
    return f'<dl class="tiles">{cells}</dl>' if cells else ""


def _change(name: str, before: float, after: float, note: str) -> tuple[str, str, str]:
    points = 100 * (after - before)
    value = f"<span class='was'>{charts.percent(before)}</span> → {charts.percent(after)}"
    return name, value, f"{points:+.0f} points" + (f", {note}" if note else "")


def duration(seconds: float) -> str:
    """Format seconds, such as `1 min 35 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _curves(view: ReportView, before: EvaluationView | None, after: EvaluationView | None) -> str:
    """Return the two charts that have data."""
    own = [evaluation for evaluation in view.evaluations if evaluation.own]
    figures = []
    if view.steps or own:
        legend = '<i class="after"></i>success<i class="reward"></i>reward'
        legend += '<i class="ring"></i>held-out, 95&nbsp;%&nbsp;interval'
        figures.append(_figure("Learning curve", legend, charts.learning_curve(view.steps, own)))
    if before or after:
        legend = '<i class="before"></i>before<i class="after"></i>after'
        figures.append(_figure("Held-out success", legend, charts.before_and_after(before, after)))
    return f'<section class="pair">{"".join(figures)}</section>' if figures else ""


def _figure(title: str, legend: str, chart: str) -> str:
    return f'<figure><figcaption>{title}<span class="legend">{legend}</span></figcaption>\n{chart}</figure>\n'


def _others(evaluations: Iterable[EvaluationView]) -> str:
    """Return the table of other policies and settings, which are not in the charts."""
    head = ["policy", "tasks", "success", "95 % interval", "episodes", "first click on target", "errored"]
    rows = []
    for evaluation in evaluations:
        if evaluation.own:
            continue
        score, clicks = evaluation.overall, evaluation.first_click
        cells = [evaluation.label, "held out" if evaluation.held_out else "training", charts.percent(score.rate)]
        cells += [f"{charts.percent(score.low)} to {charts.percent(score.high)}", f"{score.trials}"]
        rows.append([*cells, charts.percent(clicks.rate) if clicks else "", f"{evaluation.errored}"])
    return f"<section><h2>Other results</h2>{_table(head, rows)}</section>" if rows else ""


def _steps_table(view: ReportView) -> str:
    if view.updates:
        names = list(dict.fromkeys(name for update in view.updates for name in update))
        rows = [[f"{update[name]:.5g}" if name in update else "" for name in names] for update in view.updates]
        return _table(names, rows)
    if not view.steps:
        return "<p class='note'>No training steps yet.</p>"
    more = list(dict.fromkeys(name for step in view.steps for name in step.metrics))
    head = ["step", "version", "time", "trained", "episodes/min", "reward", "success", "errored", *more]
    rows = [
        [
            f"{step.step}",
            f"{step.version}",
            duration(step.elapsed_s),
            f"{step.episodes}",
            f"{step.episodes_per_minute:.1f}",
            "" if step.reward is None else f"{step.reward:.3f}",
            "" if step.success is None else charts.percent(step.success),
            charts.percent(step.errored),
            *(f"{step.metrics[name]:.4g}" if name in step.metrics else "" for name in more),
        ]
        for step in view.steps
    ]
    return _table(head, rows)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table></div>'


def _facts(facts: dict[str, str]) -> str:
    return (
        "<dl class='facts'>"
        + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())
        + "</dl>"
    )


def _episode_counts(counts: dict[str, int]) -> str:
    if not counts:
        return ""
    rows = "".join(f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{count}</dd>" for name, count in counts.items())
    return f"<div><h3>Episodes by state</h3><dl class='facts counts'>{rows}</dl></div>"


def _hidden_note(view: ReportView) -> str:
    if not view.num_hidden_episodes:
        return ""
    return f"<p class='note'>{len(view.episodes)} episodes shown; {view.num_hidden_episodes} more in the run.</p>"
