"""A run and its groups as JSON for the viewer's pages. Used by `viewer.app`; blocking, so it runs in threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from deskhand import registry
from deskhand.algorithms.base import Algorithm, get_algorithm
from deskhand.desktop.remote import quota_file
from deskhand.errors import ConfigError
from deskhand.reporting.charts import EvaluationView
from deskhand.reporting.episode_view import describe_op
from deskhand.reporting.run_view import (
    evaluation_views,
    families_without_signal,
    find_alerts,
    flat_settings,
    format_episode_counts,
    report_data,
    success_by_version,
    with_total_time,
)
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.run_writer import load_result
from deskhand.store.episode_search import EpisodeFilter, count_failures, mean_seconds
from deskhand.store.run import TRAIN, EpisodeRow, Run

MAX_POINTS = 400
"""Points of a curve; longer ones are thinned, the last point stays."""


def title_of(run: Run) -> str:
    """Return the title of a run, or the name of its folder."""
    return str(run.metadata.get("title") or f"Run {run.folder.resolve().name}")


def revision_of(run: Run) -> dict[str, Any]:
    """Return a number that changes when another process writes to the run, and the episodes in flight."""
    number = run.rows("PRAGMA data_version")[0][0]
    in_flight = run.rows("SELECT COUNT(*) FROM episodes WHERE state = 'in_flight'")[0][0]
    return {"revision": number, "in_flight": in_flight}


def summary_of(run: Run) -> dict[str, Any]:
    """Return what the page of a run shows, without its episodes and tasks."""
    metadata, metrics = run.metadata, run.metrics()
    steps = list(with_total_time([entry for entry in metrics if "version" in entry]))
    updates = [entry for entry in metrics if "version" not in entry]
    evaluations = evaluation_views(run)
    return {
        "title": title_of(run),
        "folder": str(run.folder),
        **revision_of(run),
        "facts": {name: str(value) for name, value in metadata.get("facts", {}).items()},
        "waiting": quota_file.saved_summary(run.folder / quota_file.QUOTA_FILE),
        "no_signal": families_without_signal(run.episodes(TRAIN)),
        "counts": format_episode_counts(run.episode_counts()),
        "stored": _stored_counts(run),
        "num_steps": len(steps),
        "series": _series(steps or updates),
        "by_version": success_by_version(run),
        "evaluations": [_evaluation(view) for view in evaluations.values()],
        "alerts": find_alerts(run, steps),
        "failures": count_failures(run, EpisodeFilter()),
        "seconds": mean_seconds(run),
        "settings": flat_settings(run),
    }


def _stored_counts(run: Run) -> list[dict[str, Any]]:
    rows = run.rows("SELECT phase, state, cause, COUNT(*) FROM episodes GROUP BY 1, 2, 3 ORDER BY 1, 4 DESC")
    return [dict(zip(("phase", "state", "cause", "episodes"), row, strict=True)) for row in rows]


def _series(entries: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the numbers of each metric by step, None where it was not measured."""
    every = max(1, math.ceil(len(entries) / MAX_POINTS))
    kept = [entry for at, entry in enumerate(entries) if at % every == 0 or at == len(entries) - 1]
    names = dict.fromkeys(name for entry in kept for name, value in entry.items() if _is_number(value))
    return {name: [entry[name] if _is_number(entry.get(name)) else None for entry in kept] for name in names}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _evaluation(view: EvaluationView) -> dict[str, Any]:
    report = view.report
    return {
        "label": view.label,
        "step": view.step,
        "version": view.version,
        "own": view.own,
        "held_out": view.held_out,
        **report_data(report),
        "warning": "; ".join(report.warnings),
    }


def advantages_of(run: Run, rows: Sequence[EpisodeRow]) -> tuple[dict[str, float], str]:
    """Return the advantages of a group's scored episodes by id, as the trainer computes them, and how in one line.

    Empty, with the reason, without rewards or with an algorithm that is not built in: showing a run runs no code of it.
    """
    settings = run.metadata.get("config", {}).get("trainer", {})
    name = settings.get("algorithm", "grpo")
    if not isinstance(name, str) or not registry.is_builtin("algorithm", name):
        return {}, "the advantages of an algorithm of your own are not recomputed here"
    algorithm = get_algorithm(name)
    scored = sorted((row for row in rows if row.reward is not None), key=lambda row: row.member)
    if not scored:
        return {}, "no episode of the group has a reward"
    if algorithm.uses_critic:
        return {}, f"{algorithm.name}: a critic estimates an advantage for each token; it is not stored"
    rewards = np.array([row.reward for row in scored], dtype=np.float64)
    try:
        found = np.asarray(algorithm(rewards), dtype=np.float64)
    except ValueError as error:
        return {}, f"{algorithm.name}: {error}"
    explained = _explained(algorithm, rewards)
    if settings.get("distillation"):
        explained += "; the teacher's advantages of tokens are not stored"
    return dict(zip((row.id for row in scored), found.tolist(), strict=True)), explained


def _explained(algorithm: Algorithm, rewards: np.ndarray) -> str:
    mean, deviation = float(rewards.mean()), float(rewards.std())
    if float(np.ptp(rewards)) <= 1e-8 and not algorithm.trains_equal_rewards:
        return f"{algorithm.name}: all {len(rewards)} rewards are {mean:.3g}, so every advantage is 0 (zero variance)"
    later = "; then normalized over the batch of the step, which is not shown" if algorithm.normalize_batch else ""
    if algorithm.step_discount is not None:
        later += "; each reply has one of its own in addition, which is not shown"
    how = (algorithm.advantages.__doc__ or "").split("\n")[0].removeprefix("Return ") if algorithm.advantages else ""
    return f"{algorithm.name}: {how} {len(rewards)} rewards, mean {mean:.3g}, standard deviation {deviation:.3g}{later}"


def group_data(run: Run, group_id: str) -> dict[str, Any]:
    """Return the members of a group by step, where each first differs from the best one, rewards and advantages.

    If the members have tasks of their own (`loop.group_by`), "task_id" is None and there is no first difference.
    Raises `ConfigError` for an unknown group.
    """
    rows = sorted(run.episodes(group_id=group_id), key=lambda row: (row.member, row.started_at))
    if not rows:
        raise ConfigError(f"{run.folder}: no group {group_id}")
    advantages, explained = advantages_of(run, rows)
    has_one_task = len({row.task_id for row in rows}) == 1
    results = {row.id: load_result(run, row.id) for row in rows if run.has_record(row.id)}
    best = max(results.values(), key=lambda one: -math.inf if one.reward is None else one.reward, default=None)
    members = []
    for row in rows:
        result = results.get(row.id)
        members.append(
            {
                **{name: getattr(row, name) for name in ("id", "member", "state", "cause", "value", "reward", "step")},
                "advantage": advantages.get(row.id),
                "terms": result.reward_terms if result else {},
                "steps": _aligned_steps(result, run) if result else [],
                "last_frame": result.transcript.last_frame_sha256 if result else "",
                "stop_reason": result.transcript.stop_reason if result else "",
                "reason": _reason(result),
                "instruction": result.instruction if result else "",
                "diverges": _first_difference(best, result) if result and best and has_one_task else None,
            }
        )
    return {
        "id": group_id,
        "task_id": rows[0].task_id if has_one_task else None,
        "family": rows[0].family,
        "instruction": best.instruction if best and has_one_task else "",
        "best": best.episode_id if best else None,
        "members": members,
        "explained": explained,
        "first_divergence": min((m["diverges"] for m in members if m["diverges"] is not None), default=None),
    }


def _aligned_steps(result: EpisodeResult, run: Run) -> list[dict[str, Any]]:
    return [
        {
            "frame": step.frame_sha256,
            "actions": [describe_op(op, run.frames.size(step.frame_sha256)) for op in step.ops],
            "error": step.error,
        }
        for step in result.steps
    ]


def _reason(result: EpisodeResult | None) -> str:
    if result is None:
        return ""
    failed = getattr(result.outcome, "failed", ())
    if failed:
        return f"{failed[0].clause}: read {failed[0].read}" + (
            f", expected {failed[0].expected}" if failed[0].expected else ""
        )
    return str(getattr(result.outcome, "message", ""))


def _first_difference(best: EpisodeResult, other: EpisodeResult) -> int | None:
    """Return the index of the first step with another action or screen; None if there is none."""
    if best is other:
        return None
    for index, (one, two) in enumerate(zip(best.steps, other.steps, strict=False)):
        if (one.ops, one.error, one.frame_sha256) != (two.ops, two.error, two.frame_sha256):
            return index
    shorter = min(len(best.steps), len(other.steps))
    return shorter if len(best.steps) != len(other.steps) else None
