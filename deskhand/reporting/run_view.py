"""Results of a run as data: evaluations, alerts, success by weights version, tasks, episode counts.

Used by the report and the viewer, so that both show the same numbers. Reading does not change the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deskhand.errors import ConfigError
from deskhand.reporting.charts import EvaluationView
from deskhand.rollout.eval_loop import EvalReport, build_eval_report
from deskhand.rollout.success_rates import Proportion, effective_sample_size
from deskhand.store.run import TRAIN, EpisodeRow, Run

MAX_NAMED_TASKS = 20
"""Maximum number of tasks in one line."""
MAX_VERSION_BINS = 48
"""Weights versions are merged into at most this many bins, so that intervals stay readable."""
_LOG_TAIL = 16 << 20
"""Bytes at the end of log.jsonl that are read."""


def open_run(folder: Path) -> Run:
    """Open a run read-only. Raises `ConfigError` if the folder has none."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; pass a run directory")
    return Run.open(folder, read_only=True)


def families_without_signal(rows: Iterable[EpisodeRow]) -> str:
    """Return the trained task families whose groups had no signal so far, each with the reason."""
    by_family: dict[str, list[EpisodeRow]] = {}
    for row in rows:
        if row.state != "in_flight" and row.cause != "cancelled":
            by_family.setdefault(row.family, []).append(row)
    found = []
    for family, ended in sorted(by_family.items()):
        values = {row.value for row in ended if row.state == "zero_variance"}
        if all(row.state == "errored" for row in ended):
            found.append(f"{family} (never scored)")
        elif all(row.state in ("zero_variance", "errored") for row in ended):
            found.append(f"{family} ({_ALWAYS.get(tuple(values), 'equal in each group')})")
    more = f" and {len(found) - MAX_NAMED_TASKS} more" if len(found) > MAX_NAMED_TASKS else ""
    return ", ".join(found[:MAX_NAMED_TASKS]) + more


_ALWAYS: dict[tuple[float | None, ...], str] = {(0.0,): "always failed", (1.0,): "always solved"}


def evaluation_views(run: Run) -> dict[str, EvaluationView]:
    """Return the evaluations by name, in order of version; that of version 0 is "before".

    "before" and "after" are compared on the samples that both have scored.
    """
    found: dict[str, int] = {}
    on_training_tasks: set[str] = set()
    for row in run.episodes():
        if row.phase != TRAIN and row.state == "scored":
            found[row.phase] = max(found.get(row.phase, 0), row.version_max or 0)
            if row.split == "train":
                on_training_tasks.add(row.phase)
    views: dict[str, EvaluationView] = {}
    steps = {each.version: each.step for each in run.checkpoints()}
    newest = max((version for name, version in found.items() if name == f"version-{version}"), default=0)
    sides = {"version-0", f"version-{newest}"} & found.keys()
    both = (
        set.intersection(*({(row.task_id, row.member) for row in run.episodes(name, "scored")} for name in sides))
        if sides
        else set()
    )
    for name, version in sorted(found.items(), key=lambda entry: entry[1]):
        report = build_eval_report(run, name, both if both and name in sides else None)
        own = name == f"version-{version}"
        label = {newest: "after", 0: "before"}.get(version, f"version {version}") if own else name
        views[name] = EvaluationView(
            label=label,
            step=steps.get(version, version) if own else version,
            version=version,
            report=report,
            own=own,
            held_out=name not in on_training_tasks,
        )
    return views


def format_episode_counts(counts: dict[str, Any]) -> dict[str, int]:
    """Return the counts as one row per state, errored ones by cause."""
    rows = {name: value for name, value in counts.items() if isinstance(value, int)}
    return rows | {f"errored ({cause})": count for cause, count in counts.get("errored", {}).items()}


def flat_settings(run: Run) -> dict[str, Any]:
    """Return the settings of a run by key, such as `loop.total_steps`."""
    return dict(_flat("", run.metadata.get("config", {})))


def _flat(prefix: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in _flat(f"{prefix}.{key}" if prefix else key, inner)]
    return [(prefix, value)]


def with_total_time(metrics: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Yield the metrics with `time/elapsed` since the start of the run; stored values restart with each resume."""
    before_s = last_s = 0.0
    for entry in metrics:
        elapsed_s = float(entry.get("time/elapsed", 0.0))
        if elapsed_s < last_s:
            before_s += last_s
        last_s = elapsed_s
        yield {**entry, "time/elapsed": before_s + elapsed_s}


def find_alerts(run: Run, metrics: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the alerts of a run by metric, newest first: threshold, cause and hint, and the steps that raised it.

    Alerts raised between steps are in log.jsonl only.
    """
    raised = [{"step": entry.get("step"), **alert} for entry in metrics for alert in entry.get("alerts", ())]
    known = {(alert["step"], alert.get("metric")) for alert in raised}
    raised += [alert for alert in _logged_alerts(run.folder) if (alert.get("step"), alert.get("metric")) not in known]
    by_metric: dict[str, dict[str, Any]] = {}
    for alert in sorted(raised, key=lambda one: one.get("step") or 0):
        name = str(alert.get("metric"))
        steps = [*by_metric.get(name, {}).get("steps", ()), alert.get("step") or 0]
        by_metric[name] = {key: alert.get(key) for key in ("metric", "value", "threshold", "cause", "hint")} | {
            "steps": steps
        }
    return sorted(by_metric.values(), key=lambda alert: -alert["steps"][-1])


def _logged_alerts(folder: Path) -> Iterable[dict[str, Any]]:
    try:
        with (folder / "log.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _LOG_TAIL))
            lines = file.read().split(b"\n")
    except OSError:
        return
    for line in lines:
        if b'"health.alert"' not in line:
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("event") == "health.alert":
            yield entry


def steps_of_alert(alerts: Iterable[dict[str, Any]], metric: str) -> tuple[int, ...]:
    """Return the training steps that raised an alert of a metric."""
    return tuple(sorted({step for alert in alerts if alert["metric"] == metric for step in alert["steps"]}))


def rate(hits: int, total: int, effective: float | None = None) -> dict[str, Any]:
    """Return a success rate with its 95 % interval as JSON types; the rate is None without any try."""
    found = Proportion(hits, total, effective)
    return {"value": found.value if total else None, "hits": hits, "total": total, "interval": list(found.interval)}


def rate_of(found: Proportion) -> dict[str, Any]:
    """Return a proportion as JSON types, like `rate`."""
    return rate(found.hits, found.total, found.effective)


def report_data(report: EvalReport) -> dict[str, Any]:
    """Return an evaluation as JSON types: rates with 95 % intervals, causes without a score, warnings."""
    return {
        "name": report.name,
        "success": rate_of(report.success),
        "of_started": rate_of(report.success_of_started),
        "first_click": rate_of(report.first_click),
        "by_family": {name: rate_of(found) for name, found in report.by_family.items()},
        "pass_at": {str(k): value for k, value in report.pass_at.items()},
        "reward": report.reward,
        "errored": report.errored,
        "untrusted": report.num_guest_trusted,
        "replies": report.replies,
        "warnings": report.warnings,
    }


def success_by_version(run: Run) -> list[dict[str, Any]]:
    """Return success and mean reward of training episodes by the newest weights version that sampled them.

    All scored episodes count, also those of groups without signal. Tries of one task are not taken as independent.
    """
    rows = run.rows(
        "SELECT version_max, task_id, COUNT(*), SUM(value >= 1), SUM(reward) FROM episodes "
        "WHERE phase = ? AND value IS NOT NULL AND version_max >= 0 GROUP BY 1, 2",
        (TRAIN,),
    )
    width = 1 + max((version for version, *_ in rows), default=0) // MAX_VERSION_BINS
    bins: dict[int, list[tuple[int, int, float]]] = {}
    for version, _, total, hits, reward in rows:
        bins.setdefault(version // width, []).append((hits, total, reward or 0.0))
    found = []
    for number, tasks in sorted(bins.items()):
        counts = [(hits, total) for hits, total, _ in tasks]
        hits, total = map(sum, zip(*counts, strict=True))
        reward = sum(reward for _, _, reward in tasks) / total
        middle = number * width + (width - 1) / 2
        found.append({"version": middle, "reward": reward, **rate(hits, total, effective_sample_size(counts))})
    return found


def success_at_ends(run: Run) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return success of the first and of the last quarter of training episodes in the order of weights versions.

    Each as `rate`, with `versions` (first, last). A quarter ends with its version. None if the quarters overlap.
    """
    rows = run.rows(
        "SELECT version_max, SUM(value >= 1), COUNT(*) FROM episodes "
        "WHERE phase = ? AND value IS NOT NULL AND version_max >= 0 GROUP BY version_max, task_id ORDER BY version_max",
        (TRAIN,),
    )
    enough = sum(total for _, _, total in rows) / 4
    ends = []
    for ordered in (rows, rows[::-1]):
        versions: list[int] = []
        counts: list[tuple[int, int]] = []
        for version, hits, total in ordered:
            if sum(tries for _, tries in counts) >= enough and version != versions[-1]:
                break
            versions.append(version)
            counts.append((hits, total))
        if not counts:
            return None
        hits, total = map(sum, zip(*counts, strict=True))
        found = rate(hits, total, effective_sample_size(counts))
        ends.append(found | {"versions": (min(versions), max(versions))})
    first, last = ends
    return (first, last) if first["versions"][1] < last["versions"][0] else None


def task_rows(run: Run, by: str, phase: str | None = None) -> list[dict[str, Any]]:
    """Return results by task or family, and by phase: success with its interval, mean reward, errored, versions.

    `by`: "task" or "family". Raises `ConfigError` for anything else.
    """
    if by not in ("task", "family"):
        raise ConfigError(f"by: must be task or family, got {by}")
    where, values = ("WHERE phase = ?", (phase,)) if phase else ("", ())
    rows = run.rows(
        "SELECT phase, family, task_id, COUNT(*), COUNT(value), SUM(value >= 1), SUM(reward), SUM(state = 'errored'), "
        f"SUM(state = 'zero_variance'), MIN(version_min), MAX(version_max) FROM episodes {where} GROUP BY 1, 2, 3",
        values,
    )
    found: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    for row in rows:
        found.setdefault((row[0], row[2] if by == "task" else row[1]), []).append(row)
    return [_task_row(name, tasks) for name, tasks in found.items()]


def _task_row(name: tuple[str, str], tasks: list[tuple[Any, ...]]) -> dict[str, Any]:
    counts = [(row[5] or 0, row[4]) for row in tasks]
    hits, scored = sum(hits for hits, _ in counts), sum(total for _, total in counts)
    started, errored, flat = (sum(row[column] or 0 for row in tasks) for column in (3, 7, 8))
    effective = effective_sample_size(counts) if scored and len(tasks) > 1 else None
    return {
        "phase": name[0],
        "name": name[1],
        "family": tasks[0][1],
        "tasks": len(tasks),
        "started": started,
        "errored": errored,
        "zero_variance": flat,
        "reward": sum(row[6] or 0.0 for row in tasks) / scored if scored else None,
        "version_min": min((row[9] for row in tasks if row[9] is not None), default=None),
        "version_max": max((row[10] for row in tasks if row[10] is not None), default=None),
        **rate(hits, scored, effective),
    }
