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
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from deskhand.errors import ConfigError
from deskhand.reporting import charts, time_charts
from deskhand.reporting.charts import EvaluationView

QUOTA_WAIT = "time/quota_wait"
_MODULES = ("dom.js", "outcome.js", "screen.js")
"""What report.js imports from."""
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "step": ("step", str),
    "version": ("version", str),
    "time/elapsed": ("time", lambda seconds: duration(seconds)),
    "train/num_episodes": ("trained", "{:.0f}".format),
    "perf/episodes_per_minute": ("episodes/min", "{:.1f}".format),
    "reward/mean": ("reward", "{:.3f}".format),
    "reward/success_rate": ("success", charts.percent),
    "episodes/errored_frac_total": ("errored", charts.percent),
    "reward/first_click_accuracy": ("first click", "{:.4g}".format),
    "policy/staleness": ("staleness", "{:.4g}".format),
    "groups/zero_variance": ("zero-variance groups", "{:.4g}".format),
    "episodes/zero_variance_frac": ("episodes in them", charts.percent),
    "episodes/stopped_early": ("not started", lambda count: f"{count:.0f}" if count else ""),
    "episodes/replayed": ("replayed", lambda count: f"{count:.0f}" if count else ""),
    "time/rollout_wait": ("rollout wait, s", "{:.4g}".format),
    QUOTA_WAIT: ("quota wait, s", lambda seconds: f"{seconds:.4g}" if seconds else ""),
    "train/approx_kl": ("KL", "{:.4g}".format),
    "train/entropy": ("entropy", "{:.4g}".format),
    "train/clip_frac": ("clip fraction", "{:.4g}".format),
    "train/grad_norm": ("grad norm", "{:.4g}".format),
    "train/num_tokens": ("tokens", "{:.4g}".format),
    "train/num_images": ("images", "{:.4g}".format),
    "time/train_step": ("train step, s", "{:.4g}".format),
    "perf/busy_slots_frac": ("busy slots", charts.percent),
    "perf/engine_busy_frac": ("engine busy", charts.percent),
    "perf/engine_tokens_per_s": ("sampled tokens/s", "{:.4g}".format),
    "perf/trainer_tokens_per_s": ("trained tokens/s", "{:.4g}".format),
    "memory/peak_mib_total": ("peak memory, MiB", "{:.0f}".format),
}
"""Table of steps: metric -> heading and format. Columns without any value are left out."""


@dataclass(frozen=True)
class ReportView:
    """A report. Text of models and guests is unescaped; `frames` maps SHA-256 hashes of screenshots to PNG bytes."""

    title: str
    facts: dict[str, str] = field(default_factory=dict)
    """Facts of the run: command, machine, model, duration..."""
    steps: tuple[dict[str, Any], ...] = ()
    """Metrics of the training steps."""
    evaluations: tuple[EvaluationView, ...] = ()
    episodes: tuple[dict[str, Any], ...] = ()
    """Episodes as static/report.js reads them."""
    frames: dict[str, bytes] = field(default_factory=dict)
    episode_counts: dict[str, int] = field(default_factory=dict)
    """Episodes by state, errored ones by cause."""
    num_hidden_episodes: int = 0
    """Stored episodes that the report does not show."""
    updates: tuple[dict[str, float], ...] = ()
    """Metrics of each logged update of supervised training."""
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Groups of shown episodes by id: members with rewards and advantages, and how those are computed."""
    alerts: tuple[dict[str, Any], ...] = ()
    """Alerts by metric, as `run_view.find_alerts` returns them."""
    failures: tuple[dict[str, Any], ...] = ()
    """The most frequent reasons of failure by family, of all episodes."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings by key."""


def write(view: ReportView, path: Path) -> Path:
    """Write the report atomically to `path` and return it. Raises `ConfigError` if it cannot be written."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(render(view), encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise ConfigError(f"{path}: the report cannot be written ({error.strerror}); choose another path") from error
    return path


def render(view: ReportView) -> str:
    script, style = _script(), _static("base.css") + _static("report.css")
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
{_warnings(view.evaluations)}
{_alerts(view.alerts)}
{_curves(view, before, after)}
{_failures(view.failures)}
<section id="replay" tabindex="-1"><h2>Episodes</h2>
<noscript>Replaying episodes needs JavaScript.</noscript>{_hidden_note(view)}</section>
{_others(view.evaluations)}
<section><h2>Steps</h2>{_steps_table(view)}</section>
<section><h2>This run</h2><div class="pair">{_facts(view.facts)}{_episode_counts(view.episode_counts)}</div>
{_settings(view.settings)}</section>
</main>
<script type="application/json" id="data">{_data(view)}</script>
<script>{script}</script>
</body>
</html>
"""


def _static(name: str) -> str:
    return resources.files("deskhand.reporting").joinpath("static", name).read_text(encoding="utf-8")


def _script() -> str:
    """Return report.js with the modules that it imports as one script, because a file has no modules to load."""
    source = "".join(_static(name) for name in (*_MODULES, "report.js"))
    source = re.sub(r'^(import \{[^}]*\} from "[^"]+";|"use strict";)\n', "", source, flags=re.MULTILINE)
    source = re.sub(r"^export ", "", source, flags=re.MULTILINE)
    return f'(() => {{\n"use strict";\n{source}}})();\n'


def _data(view: ReportView) -> str:
    """Return episodes and screenshots as JSON that cannot close its script element."""
    frames = {name: "data:image/png;base64," + base64.b64encode(png).decode() for name, png in view.frames.items()}
    data = {"episodes": _finite(view.episodes), "groups": _finite(view.groups), "frames": frames}
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
        first, last = before.report.success.total, after.report.success.total
        counted = f"{last} episodes each" if first == last else f"{first} and {last} episodes"
        tiles.append(_change(after.title, before.report.success.value, after.report.success.value, counted))
        clicks = before.report.first_click, after.report.first_click
        if clicks[0].total and clicks[1].total:
            tiles.append(_change("First click on target", clicks[0].value, clicks[1].value, ""))
    elif only := before or after:
        score = only.report.success
        tiles.append((only.title, charts.percent(score.value), charts.described(score)))
    if view.steps:
        trained, end = sum(int(step.get("train/num_episodes", 0)) for step in view.steps), view.steps[-1]
        started = view.episode_counts.get("started", trained)
        rate = f"{trained} trained, {end['perf/episodes_per_minute']:.0f} per minute at the end"
        tiles.append(("Training episodes", f"{started}", rate))
        note = f"{len(view.steps)} steps, policy version {end['version']}"
        tiles.append(("Training", duration(end["time/elapsed"]), note))
        if wait_s := max(step.get(QUOTA_WAIT) or 0.0 for step in view.steps):
            tiles.append(("Quota wait", duration(wait_s), "summed over episodes; excluded from all other metrics"))
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{value}</dd><dd class='note'>{escape(note)}</dd></div>"
        for name, value, note in tiles
    )
    return f'<dl class="tiles">{cells}</dl>' if cells else ""


def _warnings(evaluations: Iterable[EvaluationView]) -> str:
    """Return lines on evaluations whose success may not be that of the policy."""
    lines = [line for evaluation in evaluations for line in evaluation.report.warnings]
    return "".join(f"<p class='note'>Warning: {escape(line)}</p>" for line in lines)


def _change(name: str, before: float, after: float, note: str) -> tuple[str, str, str]:
    points = 100 * (after - before)
    value = f"<span class='was'>{charts.percent(before)}</span> → {charts.percent(after)}"
    change = "" if math.isnan(points) else f"{points:+.0f} points"
    return name, value, ", ".join(part for part in (change, note) if part)


def duration(seconds: float) -> str:
    """Format seconds, such as `1 min 35 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _curves(view: ReportView, before: EvaluationView | None, after: EvaluationView | None) -> str:
    own = [evaluation for evaluation in view.evaluations if evaluation.own]
    figures = []
    if view.steps or own:
        legend = '<i class="after"></i>success<i class="reward"></i>reward'
        legend += '<i class="ring"></i>evaluation, 95&nbsp;%&nbsp;interval'
        figures.append(_figure("Learning curve", legend, charts.learning_curve(view.steps, own)))
    if only := before or after:
        legend = '<i class="before"></i>before<i class="after"></i>after'
        figures.append(_figure(only.title, legend, charts.before_and_after(before, after)))
    timed = [step for step in view.steps if "time/step" in step]
    if timed:
        legend = "".join(f'<i class="part {part}"></i>{name}' for part, (name, _) in time_charts.PHASES.items())
        both = f"<div>{time_charts.step_times(timed)}{time_charts.mean_times(timed)}</div>"
        figures.append(_figure("Time of a step", legend, both))
    return f'<section class="pair">{"".join(figures)}</section>' if figures else ""


def _figure(title: str, legend: str, chart: str) -> str:
    return f'<figure><figcaption>{title}<span class="legend">{legend}</span></figcaption>\n{chart}</figure>\n'


def _others(evaluations: Iterable[EvaluationView]) -> str:
    """Return the table of other policies and settings, which are not in the charts."""
    head = ["policy", "tasks", "success", "95 % interval", "episodes", "of all started", "first click on target"]
    head += ["untrusted scores", "errored"]
    rows = []
    for evaluation in evaluations:
        if evaluation.own:
            continue
        score, clicks = evaluation.report.success, evaluation.report.first_click
        cells = [evaluation.label, "held out" if evaluation.held_out else "training", charts.percent(score.value)]
        cells += [charts.interval_text(score), f"{score.total}"]
        cells.append(charts.percent(evaluation.report.success_of_started.value))
        cells += [charts.percent(clicks.value) if clicks.total else "", f"{evaluation.report.num_guest_trusted}"]
        cells.append(f"{sum(evaluation.report.errored.values())}")
        rows.append(cells)
    return f"<section><h2>Other results</h2>{_table(head, rows)}</section>" if rows else ""


def _steps_table(view: ReportView) -> str:
    if view.updates:
        names = list(dict.fromkeys(name for update in view.updates for name in update))
        rows = [[f"{update[name]:.5g}" if name in update else "" for name in names] for update in view.updates]
        return _table(names, rows)
    if not view.steps:
        return "<p class='note'>No training steps yet.</p>"
    columns = []
    for metric, (heading, form) in COLUMNS.items():
        values = [step.get(metric) for step in view.steps]
        columns.append((heading, ["" if value is None else form(value) for value in values]))
    columns = [(heading, cells) for heading, cells in columns if any(cells)]
    return _table([heading for heading, _ in columns], zip(*(cells for _, cells in columns), strict=True))


def _table(head: Iterable[str], rows: Iterable[Iterable[str]], style: str = "scroll") -> str:
    names = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="{style}"><table><thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table></div>'


def _facts(facts: dict[str, str]) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())
    return f"<dl class='facts'>{rows}</dl>"


def _episode_counts(counts: dict[str, int]) -> str:
    if not counts:
        return ""
    rows = "".join(f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{count}</dd>" for name, count in counts.items())
    return f"<div><h3>Episodes by state</h3><dl class='facts counts'>{rows}</dl></div>"


def _alerts(alerts: Iterable[dict[str, Any]]) -> str:
    rows = []
    for alert in alerts:
        value, steps = alert.get("value"), alert["steps"]
        shown = f"{value:.3g}" if isinstance(value, int | float) else str(value)
        raised = f"{len(steps)} times, last in step {steps[-1]}" if len(steps) > 1 else f"step {steps[-1]}"
        rows.append(
            [
                str(alert["metric"]),
                shown,
                *(str(alert.get(name) or "") for name in ("threshold", "cause", "hint")),
                raised,
            ]
        )
    head = ["metric", "value", "threshold", "likely cause", "what to change", "raised"]
    return f"<section><h2>Alerts</h2>{_table(head, rows, 'scroll words')}</section>" if rows else ""


def _failures(failures: Iterable[dict[str, Any]]) -> str:
    rows = [
        [each["family"], f"no score: {each['clause']}" if each["errored"] else each["clause"], f"{each['episodes']}"]
        for each in failures
    ]
    head = ["family", "clause that did not hold", "episodes"]
    return f"<section><h2>Why episodes failed</h2>{_table(head, rows, 'scroll words')}</section>" if rows else ""


def _settings(settings: dict[str, Any]) -> str:
    if not settings:
        return ""
    facts = _facts({name: json.dumps(value, ensure_ascii=False) for name, value in settings.items()})
    return f"<details><summary>Settings</summary>{facts}</details>"


def _hidden_note(view: ReportView) -> str:
    if not view.num_hidden_episodes:
        return ""
    return f"<p class='note'>{len(view.episodes)} episodes shown; {view.num_hidden_episodes} more in the run.</p>"
