"""Report data of a run directory, finished or not.

Used by `deskhand report`; start with `build_report_view`, and render it with `reporting.html_report.write`. Reading
does not change the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from deskhand.desktop.remote import quota_file
from deskhand.errors import InfrastructureError
from deskhand.reporting.episode_view import decoder_of, episode_data
from deskhand.reporting.html_report import ReportView
from deskhand.reporting.run_view import (
    evaluation_views,
    families_without_signal,
    format_episode_counts,
    with_total_time,
)
from deskhand.rollout.run_writer import load_result
from deskhand.store.run import TRAIN, EpisodeRow, Run

EPISODES_PER_PHASE = 36


def build_report_view(run: Run, *, shown_per_phase: int = EPISODES_PER_PHASE) -> ReportView:
    """Return the report of `run` with at most `shown_per_phase` episodes before, in and after training."""
    evaluations = evaluation_views(run)
    decode = decoder_of(run)
    phases = {TRAIN: "train"} | {name: view.label for name, view in evaluations.items()}
    order = [*(name for name, view in evaluations.items() if view.label == "before"), TRAIN]
    order += [name for name in evaluations if name not in order]
    episodes, num_hidden = [], 0
    for phase in order:
        finished = [row for row in run.episodes(phase) if row.state != "in_flight" and row.cause != "cancelled"]
        rows = [row for row in finished if run.has_record(row.id)]  # episodes interrupted by a kill have no record
        chosen = select_episodes(rows, shown_per_phase)
        num_hidden += len(rows) - len(chosen)
        episodes += [episode_data(load_result(run, row.id), phases[phase], run, decode) for row in chosen]
    names = {name for each in episodes for name in (*(step["frame"] for step in each["steps"]), each["last_frame"])}
    metadata, metrics = run.metadata, run.metrics()
    more = {
        "Waiting for quota": quota_file.saved_summary(run.folder / quota_file.QUOTA_FILE),
        "No signal": families_without_signal(run.episodes(TRAIN)),
    }
    return ReportView(
        title=metadata.get("title") or f"Run {run.folder.name}",
        facts={name: str(value) for name, value in metadata.get("facts", {}).items()}
        | {name: text for name, text in more.items() if text},
        steps=tuple(with_total_time([entry for entry in metrics if "version" in entry])),
        evaluations=tuple(evaluations.values()),
        episodes=tuple(episodes),
        frames=dict(_frames(run, names - {""})),
        episode_counts=format_episode_counts(run.episode_counts()),
        num_hidden_episodes=num_hidden,
        updates=tuple(entry for entry in metrics if "version" not in entry),
    )


def _frames(run: Run, names: Iterable[str]) -> Iterable[tuple[str, bytes]]:
    for name in sorted(names):
        try:
            yield name, run.frames.png(name)
        except InfrastructureError:
            continue  # the page shows a placeholder


def select_episodes(rows: Sequence[EpisodeRow], limit: int) -> list[EpisodeRow]:
    """Return at most `limit` rows, spread evenly over time; up to a sixth of them errored."""
    if len(rows) <= limit:
        return list(rows)
    errored = [row for row in rows if row.state == "errored"][: limit // 6]
    others = [row for row in rows if row.state != "errored"]
    count = limit - len(errored)
    spread = [others[index * len(others) // count] for index in range(min(count, len(others)))]
    return sorted([*errored, *spread], key=lambda row: row.started_at)
