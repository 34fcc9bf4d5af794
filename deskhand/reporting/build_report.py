"""From a run folder to what a report shows. Invariant: reading changes nothing, and a run that is not finished has a report too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from deskhand.actions.ops import Drag, Op, Point, to_screen_px
from deskhand.agents.episode_context import Step
from deskhand.desktop.remote import quota
from deskhand.errors import AgentError, ConfigError, InfrastructureError
from deskhand.recorder.graph import CallGraph
from deskhand.reporting.view_model import (
    EpisodeStepView,
    EpisodeView,
    EvaluationView,
    Interval,
    MarkView,
    ReportView,
    TokenView,
    TrainStepView,
)
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.eval_loop import build_eval_report
from deskhand.rollout.run_writer import load_result
from deskhand.rollout.success_rates import Proportion
from deskhand.store.run import TRAIN, EpisodeRow, Run
from deskhand.tasks.outcome import Scored

EPISODES_PER_PHASE = 36
MOST_NAMED = 20
"""Tasks that one line names."""
TRAINER_METRICS = ("kl", "entropy", "clip_fraction", "gradient_norm", "tokens", "images", "seconds")
LOOP_METRICS = ("first_click", "staleness", "zero_variance_groups", "rollout_wait_s")

TokenText = Callable[[int], str]


def token_text_of(folder: Path) -> TokenText | None:
    """What turns a token id into text, from the tokenizer.json of a checkpoint folder; None when there is none."""
    if not (folder / "tokenizer.json").is_file():
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda token_id: tokenizer.decode([token_id], skip_special_tokens=False)


def build_report_view(run: Run, *, shown_per_phase: int = EPISODES_PER_PHASE) -> ReportView:
    """Everything that the report of `run` shows; at most `shown_per_phase` episodes before, in and after training."""
    evaluations = evaluation_views(run)
    token_text = token_text_of(run.folder / "checkpoints" / "step-000000")
    phases = {TRAIN: "train"} | {name: view.label for name, view in evaluations.items()}
    order = [*(name for name, view in evaluations.items() if view.label == "before"), TRAIN]
    order += [name for name in evaluations if name not in order]
    episodes, left_out = [], 0
    for purpose in order:
        finished = [row for row in run.episodes(purpose) if row.state != "in_flight" and row.cause != "cancelled"]
        rows = [row for row in finished if run.has_record(row.id)]  # of those that a kill cut off nothing is known
        chosen = select_episodes(rows, shown_per_phase)
        left_out += len(rows) - len(chosen)
        episodes += [episode_view(load_result(run, row.id), phases[purpose], run, token_text) for row in chosen]
    names = {
        name for episode in episodes for name in (*(step.frame for step in episode.steps), episode.last_frame) if name
    }
    about = run.metadata
    more = {
        "Parked": quota.saved_summary(run.folder / quota.QUOTA_FILE),
        "Taught nothing": families_without_signal(run.episodes(TRAIN)),
    }
    return ReportView(
        title=about.get("title") or f"Run {run.folder.name}",
        facts={name: str(value) for name, value in about.get("facts", {}).items()}
        | {name: text for name, text in more.items() if text},
        steps=tuple(step_views([entry for entry in run.metrics() if "version" in entry])),
        evaluations=tuple(evaluations.values()),
        episodes=tuple(episodes),
        frames=dict(_frames(run, names)),
        episode_counts=format_episode_counts(run.episode_counts()),
        episodes_left_out=left_out,
        updates=tuple(entry for entry in run.metrics() if "version" not in entry),
    )


def families_without_signal(rows: Iterable[EpisodeRow]) -> str:
    """The trained tasks (of families, the families) of which no group has taught anything so far, by name and with what it was."""
    of: dict[str, list[EpisodeRow]] = {}
    for row in rows:
        if row.state != "in_flight" and row.cause != "cancelled":
            of.setdefault(row.family, []).append(row)
    found = []
    for family, played in sorted(of.items()):
        values = {row.value for row in played if row.state == "zero_variance"}
        if all(row.state == "errored" for row in played):
            found.append(f"{family} (never scored)")
        elif all(row.state in ("zero_variance", "errored") for row in played):
            found.append(f"{family} ({_ALWAYS.get(tuple(values), 'equal in each group')})")
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return ", ".join(found[:MOST_NAMED]) + more


_ALWAYS: dict[tuple[float | None, ...], str] = {(0.0,): "always missed", (1.0,): "always solved"}


def _frames(run: Run, names: Iterable[str]) -> Iterable[tuple[str, bytes]]:
    for name in sorted(names):
        try:
            yield name, run.frames.png(name)
        except InfrastructureError:
            continue  # the page says that the screen is not kept


def evaluation_views(run: Run) -> dict[str, EvaluationView]:
    """Evaluations by the name under which they are stored, by version; that of the run's version 0 is "before".

    Before and after are of the same tries of the same tasks, where both have any.
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
        label = (
            name if not own else "before" if version == 0 else "after" if version == newest else f"version {version}"
        )
        views[name] = EvaluationView(
            label=label,
            step=steps.get(version, version) if own else version,
            version=version,
            overall=interval_of(report.success),
            families={family: interval_of(rate) for family, rate in report.by_family.items()},
            first_click=interval_of(report.first_click) if report.first_click.total else None,
            unscored=sum(report.unscored.values()),
            own=own,
            held_out=name not in on_training_tasks,
        )
    return views


def interval_of(rate: Proportion) -> Interval:
    return Interval(rate.hits, rate.total, *rate.interval)


def format_episode_counts(books: dict[str, Any]) -> dict[str, int]:
    """The books as one row a place, unscored by cause."""
    rows = {name: value for name, value in books.items() if isinstance(value, int)}
    return rows | {f"errored ({cause})": count for cause, count in books.get("errored", {}).items()}


def step_views(metrics: Sequence[dict[str, Any]]) -> Iterable[TrainStepView]:
    """One view a step. Time goes on over resumes: what the loop says is since it began or was resumed."""
    before_s = last_s = 0.0
    for entry in metrics:
        elapsed_s = float(entry.get("elapsed_s", 0.0))
        if elapsed_s < last_s:
            before_s += last_s
        last_s = elapsed_s
        trainer = entry.get("trainer", {})
        more = {name: float(entry[name]) for name in LOOP_METRICS if name in entry}
        if entry.get("parked_s"):
            more["parked_s"] = float(entry["parked_s"])
        more |= {name: float(trainer[name]) for name in TRAINER_METRICS if name in trainer}
        yield TrainStepView(
            step=entry["step"],
            version=entry["version"],
            episodes=int(trainer.get("episodes", 0)),
            episodes_per_minute=entry["episodes_per_minute"],
            reward=entry.get("reward"),
            success=entry.get("success"),
            unscored=entry["unscored_share"],
            elapsed_s=before_s + elapsed_s,
            metrics=more,
        )


def select_episodes(rows: Sequence[EpisodeRow], limit: int) -> list[EpisodeRow]:
    """At most `limit` rows, spread evenly over time, and unscored ones first of all (up to a sixth of them)."""
    if len(rows) <= limit:
        return list(rows)
    unscored = [row for row in rows if row.state == "errored"][: limit // 6]
    others = [row for row in rows if row.state != "errored"]
    count = limit - len(unscored)
    spread = [others[index * len(others) // count] for index in range(min(count, len(others)))]
    return sorted([*unscored, *spread], key=lambda row: row.started_at)


def episode_view(result: EpisodeResult, phase: str, run: Run, token_text: TokenText | None) -> EpisodeView:
    """One episode with its steps."""
    outcome, transcript = result.outcome, result.transcript
    scored = isinstance(outcome, Scored)
    terms = dict(result.reward_terms)
    if isinstance(outcome, Scored):
        terms |= {name: value for name, value in outcome.parts.items() if name not in terms}
    return EpisodeView(
        id=result.episode_id,
        phase=phase,
        family=result.family,
        seed=result.seed,
        instruction=result.instruction,
        outcome=("success" if result.success else "failure") if scored else "unscored",
        value=outcome.value if isinstance(outcome, Scored) else None,
        cause=transcript.stop_reason.replace("_", " ")
        if isinstance(outcome, Scored)
        else f"{outcome.cause}: {outcome.message}",
        reward=result.reward,
        terms=terms,
        first_click_on_target=result.first_click_on_target,
        version_min=result.version_min,
        version_max=result.version_max,
        steps=tuple(step_view(step, result.graph, run, token_text) for step in transcript.steps),
        last_frame=transcript.last_frame_sha256,
        group=(result.group_id or "")[:8],
        target=result.target,
        seconds=result.seconds,
    )


def step_view(step: Step, graph: CallGraph, run: Run, token_text: TokenText | None) -> EpisodeStepView:
    """One model call with its tokens, and marks where its ops act on the screen that it saw."""
    size = run.frames.size(step.frame_sha256)
    return EpisodeStepView(
        frame=step.frame_sha256,
        text=step.text,
        tokens=tuple(token_views(step.call_id, graph, token_text)) if token_text else (),
        marks=tuple(mark for op in step.ops for mark in marks_of(op, size)) if size else (),
        error=step.error,
        settled_ms=step.settled_ms,
    )


def token_views(call_id: str, graph: CallGraph, token_text: TokenText) -> Iterable[TokenView]:
    """The sampled tokens of a call; none when the call is not in the graph."""
    try:
        done = graph.get(call_id).completion
    except KeyError:
        return
    for token_id, logprob, version in zip(done.token_ids, done.logprobs, done.versions, strict=True):
        yield TokenView(token_text(token_id), logprob, version)


def marks_of(op: Op, size: tuple[int, int]) -> Iterable[MarkView]:
    """Where an op acts, in screen pixels; nothing for an op without a place or with one off the screen."""
    points: tuple[Point, ...] = op.path if isinstance(op, Drag) else ()
    point = getattr(op, "point", None)
    if isinstance(point, Point):
        points = (point,)
    try:
        places = tuple(to_screen_px(place, *size) for place in points)
    except AgentError:
        return
    if places:
        yield MarkView(type(op).__name__.lower(), places)


def open_run(folder: Path) -> Run:
    """A run for reading only. Raises `ConfigError` when the folder holds none."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; name the folder of a run")
    return Run.open(folder, read_only=True)
