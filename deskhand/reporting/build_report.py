"""Report data of a run directory, finished or not.

Used by `deskhand report`; start with `build_report_view`, and render it with `reporting.html_report.write`. Reading
does not change the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deskhand.desktop.remote import quota_file
from deskhand.errors import InfrastructureError
from deskhand.reporting.episode_view import decoder_of, episode_data
from deskhand.reporting.html_report import ReportView
from deskhand.reporting.run_view import (
    evaluation_views,
    families_without_signal,
    find_alerts,
    flat_settings,
    format_episode_counts,
    with_total_time,
)
from deskhand.reporting.select_episodes import Selection
from deskhand.reporting.viewer.run_data import group_data
from deskhand.rollout.run_writer import load_result
from deskhand.store.episode_search import EpisodeFilter, count_failures
from deskhand.store.run import TRAIN, EpisodeRow, Run

_MEMBER = ("id", "member", "state", "value", "reward", "advantage", "reason")
"""What the report shows of a member of a group."""


def build_report_view(run: Run, selection: Selection | None = None) -> ReportView:
    """Return the report of `run`. Raises `ConfigError` for a selection of what is not in the run."""
    evaluations = evaluation_views(run)
    decode = decoder_of(run)
    phases = {TRAIN: "train"} | {name: view.label for name, view in evaluations.items()}
    order = [*(name for name, view in evaluations.items() if view.label == "before"), TRAIN]
    order += [name for name in evaluations if name not in order]
    finished = [_finished(run, phase) for phase in order]
    chosen = (selection or Selection()).choose(finished)
    episodes = [
        episode_data(load_result(run, row.id), phases[phase], run, decode)
        for phase, rows in zip(order, chosen, strict=True)
        for row in rows
    ]
    groups = dict.fromkeys(row.group_id for rows in chosen for row in rows if row.group_id is not None)
    names = {name for each in episodes for name in (*(step["frame"] for step in each["steps"]), each["last_frame"])}
    metadata, metrics = run.metadata, run.metrics()
    more = {
        "Waiting for quota": quota_file.saved_summary(run.folder / quota_file.QUOTA_FILE),
        "No signal": families_without_signal(run.episodes(TRAIN)),
    }
    steps = tuple(with_total_time([entry for entry in metrics if "version" in entry]))
    return ReportView(
        title=metadata.get("title") or f"Run {run.folder.name}",
        facts={name: str(value) for name, value in metadata.get("facts", {}).items()}
        | {name: text for name, text in more.items() if text},
        steps=steps,
        evaluations=tuple(evaluations.values()),
        episodes=tuple(episodes),
        frames=dict(_frames(run, names - {""})),
        episode_counts=format_episode_counts(run.episode_counts()),
        num_hidden_episodes=sum(map(len, finished)) - len(episodes),
        updates=tuple(entry for entry in metrics if "version" not in entry),
        groups={name: _group(run, name) for name in groups},
        alerts=tuple(find_alerts(run, steps)),
        failures=tuple(count_failures(run, EpisodeFilter())),
        settings=flat_settings(run),
    )


def _finished(run: Run, phase: str) -> list[EpisodeRow]:
    """Return the episodes with a record; those that a kill interrupted have none."""
    rows = [row for row in run.episodes(phase) if row.state != "in_flight" and row.cause != "cancelled"]
    return [row for row in rows if run.has_record(row.id)]


def _group(run: Run, group_id: str) -> dict[str, Any]:
    found = group_data(run, group_id)
    members = [{name: member[name] for name in _MEMBER} for member in found["members"]]
    return {"explained": found["explained"], "members": members}


def _frames(run: Run, names: Iterable[str]) -> Iterable[tuple[str, bytes]]:
    for name in sorted(names):
        try:
            yield name, run.frames.png(name)
        except InfrastructureError:
            continue  # the page shows a placeholder
