"""Report data of a run directory, finished or not.

Used by `deskhand report`; start with `build_report_view`, and render it with `reporting.html_report.write`. Reading
does not change the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from deskhand.actions.ops import Drag, Op, Point, to_screen_px
from deskhand.agents.episode_context import Step
from deskhand.desktop.remote import quota_file
from deskhand.errors import AgentError, ConfigError, InfrastructureError
from deskhand.recorder.graph import CallGraph
from deskhand.reporting.charts import EvaluationView
from deskhand.reporting.html_report import ReportView
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.eval_loop import build_eval_report
from deskhand.rollout.run_writer import load_result
from deskhand.store.run import TRAIN, EpisodeRow, Run
from deskhand.tasks.outcome import Scored

EPISODES_PER_PHASE = 36
MAX_NAMED_TASKS = 20
"""Maximum number of tasks in one line."""
TokenText = Callable[[int], str]


def token_text_of(folder: Path) -> TokenText | None:
    """Return a function from token ids to text for a checkpoint folder; None without tokenizer.json."""
    if not (folder / "tokenizer.json").is_file():
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda token_id: tokenizer.decode([token_id], skip_special_tokens=False)


def build_report_view(run: Run, *, shown_per_phase: int = EPISODES_PER_PHASE) -> ReportView:
    """Return the report of `run` with at most `shown_per_phase` episodes before, in and after training."""
    evaluations = evaluation_views(run)
    token_text = token_text_of(run.folder / "checkpoints" / "step-000000")
    phases = {TRAIN: "train"} | {name: view.label for name, view in evaluations.items()}
    order = [*(name for name, view in evaluations.items() if view.label == "before"), TRAIN]
    order += [name for name in evaluations if name not in order]
    episodes, num_hidden = [], 0
    for phase in order:
        finished = [row for row in run.episodes(phase) if row.state != "in_flight" and row.cause != "cancelled"]
        rows = [row for row in finished if run.has_record(row.id)]  # episodes interrupted by a kill have no record
        chosen = select_episodes(rows, shown_per_phase)
        num_hidden += len(rows) - len(chosen)
        episodes += [episode_data(load_result(run, row.id), phases[phase], run, token_text) for row in chosen]
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


def _frames(run: Run, names: Iterable[str]) -> Iterable[tuple[str, bytes]]:
    for name in sorted(names):
        try:
            yield name, run.frames.png(name)
        except InfrastructureError:
            continue  # the page shows a placeholder


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


def with_total_time(metrics: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Yield the metrics with `time/elapsed` since the start of the run; stored values restart with each resume."""
    before_s = last_s = 0.0
    for entry in metrics:
        elapsed_s = float(entry.get("time/elapsed", 0.0))
        if elapsed_s < last_s:
            before_s += last_s
        last_s = elapsed_s
        yield {**entry, "time/elapsed": before_s + elapsed_s}


def select_episodes(rows: Sequence[EpisodeRow], limit: int) -> list[EpisodeRow]:
    """Return at most `limit` rows, spread evenly over time; up to a sixth of them errored."""
    if len(rows) <= limit:
        return list(rows)
    errored = [row for row in rows if row.state == "errored"][: limit // 6]
    others = [row for row in rows if row.state != "errored"]
    count = limit - len(errored)
    spread = [others[index * len(others) // count] for index in range(min(count, len(others)))]
    return sorted([*errored, *spread], key=lambda row: row.started_at)


def episode_data(result: EpisodeResult, phase: str, run: Run, token_text: TokenText | None) -> dict[str, Any]:
    """Return an episode with its steps as static/report.js reads it."""
    outcome, transcript = result.outcome, result.transcript
    if isinstance(outcome, Scored):
        shown, value, cause = "success" if result.success else "failure", outcome.value, transcript.stop_reason
        cause, parts = cause.replace("_", " "), outcome.parts
    else:
        shown, value, cause, parts = "errored", None, f"{outcome.cause}: {outcome.message}", {}
    return {
        "id": result.episode_id,
        "phase": phase,
        "family": result.family,
        "seed": result.seed,
        "instruction": result.instruction,
        "outcome": shown,
        "value": value,
        "cause": cause,
        "reward": result.reward,
        "terms": {**result.reward_terms, **parts, **result.reward_terms},
        "first_click_on_target": result.first_click_on_target,
        "version_min": result.version_min,
        "version_max": result.version_max,
        "steps": [_step_data(step, result.graph, run, token_text) for step in transcript.steps],
        "last_frame": transcript.last_frame_sha256,
        "group": (result.group_id or "")[:8],
        "target": result.target,
        "seconds": result.seconds,
    }


def _step_data(step: Step, graph: CallGraph, run: Run, token_text: TokenText | None) -> dict[str, Any]:
    """Return a model call with its tokens, and marks where its ops act on the screenshot."""
    size = run.frames.size(step.frame_sha256)
    return {
        "frame": step.frame_sha256,
        "text": step.text,
        "tokens": list(_token_data(step.call_id, graph, token_text)) if token_text else [],
        "marks": [mark for op in step.ops for mark in _marks(op, size)] if size else [],
        "error": step.error,
    }


def _token_data(call_id: str, graph: CallGraph, token_text: TokenText) -> Iterable[dict[str, Any]]:
    """Yield the sampled tokens of a call; none if the call is not in the graph."""
    try:
        done = graph.get(call_id).completion
    except KeyError:
        return
    for token_id, logprob, version in zip(done.token_ids, done.logprobs, done.versions, strict=True):
        yield {"text": token_text(token_id), "logprob": logprob, "version": version}


def _marks(op: Op, size: tuple[int, int]) -> Iterable[dict[str, Any]]:
    """Yield where an op acts in screen pixels; nothing for ops without a point or with one off the screen."""
    points: tuple[Point, ...] = op.path if isinstance(op, Drag) else ()
    point = getattr(op, "point", None)
    if isinstance(point, Point):
        points = (point,)
    try:
        pixels = [to_screen_px(point, *size) for point in points]
    except AgentError:
        return
    if pixels:
        yield {"kind": type(op).__name__.lower(), "points": pixels}


def open_run(folder: Path) -> Run:
    """Open a run read-only. Raises `ConfigError` if the folder has none."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; pass a run directory")
    return Run.open(folder, read_only=True)
