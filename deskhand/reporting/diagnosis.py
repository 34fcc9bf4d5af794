"""What is wrong with a run, or slow, with evidence and what to change: one page. Start with `diagnose`.

Used by `deskhand diagnose`. Everything is read from what the run stores, while it is written or later, and nothing is
changed. An issue names its share of the episodes, replies, steps or time, and the largest come first.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from deskhand.reporting.html_report import duration
from deskhand.reporting.run_view import (
    evaluation_views,
    families_without_signal,
    find_alerts,
    format_episode_counts,
    success_at_ends,
    with_total_time,
)
from deskhand.store.episode_search import (
    EpisodeFilter,
    count_failures,
    count_replies,
    count_stop_reasons,
    mean_seconds,
    search_episodes,
)
from deskhand.store.run import TRAIN, Run

NEWEST = 500
"""Newest episodes whose replies are counted."""
STEPS = 20
"""Newest steps whose time is added up."""
MAX_FAMILIES = 5
"""Families whose failures are listed."""
MIN_SHARE = 0.1
"""Smallest share of episodes, replies or time that is an issue, if no other is named."""
MIN_FAILURES = 0.3
"""Smallest share of failures of a family that is an issue."""
MIN_TIME = 0.4
"""Smallest share of the time of a step, or of an episode, that one part may take before it is an issue."""
MIN_STEPS = 10
"""Steps after which success should have changed."""
MIN_EPISODES = 20
"""Training episodes, at the start and at the end, with which success is compared."""
_ERRORED = {
    "infrastructure": "run deskhand doctor, with --desktop URL for remote desktops; log.jsonl has every event",
    "evaluator": "read the message; deskhand doctor names missing evaluators",
    "bug": "fix the code that the message names: the task's, the agent's or the reward's; log.jsonl has the traceback",
    "already_solved": "exclude the task with suite.exclude, or change its start state",
}
_ENDS = {
    "max_steps": ("steps", "raise suite.max_episode_steps, or read an episode for what it repeats"),
    "too_many_errors": ("rejected replies", "set agent.prompt_style=full, or agent.action_format to the model's own"),
    "overflow": ("the context", "raise engine.max_model_len, keep fewer turns, or set agent.on_overflow=truncate"),
    "truncated": ("the token limit of a reply", "raise agent.max_new_tokens"),
}
"""Limits that end an episode, and what to change."""
_REPLIES = {
    "format": ("could not be parsed", "set agent.action_format to the model's own and agent.prompt_style=full"),
    "truncated": ("were cut at the token limit", "raise agent.max_new_tokens"),
    "action": ("asked for what the screen does not allow", "read an episode: points off the screen, or unknown keys"),
}
_STEP_PARTS = {
    "rollout_wait": ("waiting for episodes", ""),
    "train_step": (
        "training",
        "train with policy.lora or policy.train_vision=false, or raise policy.max_tokens_per_mb (deskhand estimate)",
    ),
    "publish": ("sending weights to the engine", "train with policy.lora, which sends adapters alone"),
    "publish_probe": ("the publish probe", "lower loop.health.publish_probe_samples"),
    "vision_probe": ("the vision probe", "raise loop.health.vision_probe_every"),
    "checkpoint": ("writing checkpoints", "raise loop.save_every"),
    "evaluation": ("evaluations", "raise loop.eval_every or lower evaluation.num_episodes"),
}
"""Parts of `time/step`, which do not overlap."""
_EPISODE_PARTS = {
    "model": ("the model's replies", "raise engine.max_num_seqs and loop.max_concurrent_episodes, or use a GPU server"),
    "desktop": ("actions and settling", "raise loop.max_concurrent_episodes; desktops mostly wait"),
    "reset": ("new desktops", "raise desktop.prewarm"),
    "setup": ("the tasks' setup", "raise loop.max_concurrent_episodes, or make the setup shorter"),
    "judge": ("judging", "raise loop.max_concurrent_episodes, or find the slow check with deskhand rescore"),
}


@dataclass(frozen=True, slots=True)
class Issue:
    """Something to change."""

    kind: Literal["wrong", "slow"]
    what: str
    evidence: str
    change: str
    share: float
    """Share of the episodes, replies, steps or time that it concerns."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """State of a run and its issues, the largest first."""

    run_dir: str
    title: str
    state: tuple[str, ...]
    issues: tuple[Issue, ...]

    def lines(self) -> Iterator[str]:
        yield f"{self.title} ({self.run_dir})"
        yield from self.state
        for kind, head in (("wrong", "WRONG"), ("slow", "SLOW")):
            found = [issue for issue in self.issues if issue.kind == kind]
            yield ""
            yield head if found else f"nothing is {kind}"
            for number, issue in enumerate(found, 1):
                yield f"{number}. {issue.what}"
                yield f"   evidence: {issue.evidence}"
                yield f"   change:   {issue.change}"
        yield ""
        yield f"every episode, message and curve: deskhand view {self.run_dir}"


def diagnose(run: Run) -> Diagnosis:
    """Return the state of a run, and what is wrong or slow."""
    metrics = run.metrics()
    steps = list(with_total_time([entry for entry in metrics if "version" in entry]))
    alerts = find_alerts(run, steps)
    known = {str(alert["metric"]) for alert in alerts}
    issues = [
        *_alerts(alerts, len(steps)),
        *_errored(run),
        *_failures(run),
        *_ends(run),
        *_replies(run, known),
        *_evaluations(run),
        *_signal(run, known),
        *_learning(run),
        *_steps(run, steps),
        *_quota(run),
    ]
    title = str(run.metadata.get("title") or f"Run {run.folder.resolve().name}")
    return Diagnosis(str(run.folder), title, tuple(_state(run)), tuple(sorted(issues, key=lambda each: -each.share)))


def _state(run: Run) -> Iterator[str]:
    last, total = run.checkpoint(), run.metadata.get("config", {}).get("loop", {}).get("total_steps")
    counts = format_episode_counts(run.episode_counts())
    shown = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)
    if last is not None:
        yield (
            f"training: step {last.step}"
            + (f" of {total}" if total else "")
            + (f"; episodes: {shown}" if shown else "")
        )
    for view in evaluation_views(run).values():
        rate = view.report.success
        low, high = rate.interval
        interval = f"{100 * rate.value:.1f} % [{100 * low:.1f}, {100 * high:.1f}] {rate.hits}/{rate.total}"
        yield f"success {view.label}: {interval if rate.total else 'no scored episodes'}"
    flying, newest = run.rows("SELECT SUM(state = 'in_flight'), MAX(finished_at) FROM episodes")[0]
    ago = f"the last one ended {duration(max(0.0, time.time() - newest))} ago" if newest else "none has ended"
    yield f"{flying or 0} episodes are in flight; {ago}"


def _alerts(alerts: Iterable[dict[str, Any]], num_steps: int) -> Iterator[Issue]:
    for alert in alerts:
        times, value = alert["steps"], alert.get("value")
        at = f"in {len(times)} of {num_steps} steps, last in step {times[-1]}" if num_steps else f"in step {times[-1]}"
        shown = f"{value:.3g}" if isinstance(value, int | float) else str(value)
        evidence = f"{alert['metric']} is {shown} (threshold: {alert.get('threshold')}), raised {at}"
        share = min(1.0, len(times) / num_steps) if num_steps else 1.0
        yield Issue("wrong", str(alert.get("cause")), evidence, str(alert.get("hint")), share)


def _errored(run: Run) -> Iterator[Issue]:
    rows = run.rows("SELECT cause, COUNT(*) FROM episodes WHERE state = 'errored' AND cause != 'cancelled' GROUP BY 1")
    total = run.rows("SELECT COUNT(*) FROM episodes WHERE state != 'in_flight'")[0][0]
    for cause, count in rows:
        where = EpisodeFilter(state="errored", cause=cause)
        _, newest = search_episodes(run, where, sort="finished_at", descending=True, limit=1)
        evidence = f"the last one is episode {newest[0]['id']}: {_one_line(newest[0]['reason'])}"
        change = _ERRORED.get(cause, "read the message; log.jsonl has every event")
        yield Issue("wrong", f"{count} of {total} episodes have no score ({cause})", evidence, change, count / total)


def _failures(run: Run) -> Iterator[Issue]:
    """Yield the most frequent clause that did not hold, of the families that fail most."""
    has_value = "value IS NOT NULL AND state != 'errored'"
    total = run.rows(f"SELECT COUNT(*) FROM episodes WHERE {has_value}")[0][0]
    rates = run.rows(
        f"SELECT family, COUNT(*), SUM(value < 1) FROM episodes WHERE {has_value} "
        "GROUP BY 1 ORDER BY 3 DESC, 1 LIMIT ?",
        (MAX_FAMILIES,),
    )
    for family, scored, failed in rates:
        if failed < MIN_FAILURES * scored:
            continue
        clauses = [each for each in count_failures(run, EpisodeFilter(family=family)) if not each["errored"]]
        if not clauses:
            continue
        first = clauses[0]
        where = EpisodeFilter(family=family, outcome="failure", reason=first["clause"])
        _, newest = search_episodes(run, where, sort="started_at", descending=True, limit=1)
        shown = f"; episode {newest[0]['id']}: {_one_line(newest[0]['reason'])}" if newest else ""
        change = (
            "no episode of it succeeded: begin with deskhand sft, give it more steps, or leave it out (suite.exclude)"
            if failed == scored
            else "compare it with a solved one of its group or task in deskhand view"
        )
        yield Issue(
            "wrong",
            f"{family}: {failed} of {scored} scored episodes failed",
            f"clause {first['clause']} did not hold in {first['episodes']} of them{shown}",
            change,
            failed / total,
        )


def _ends(run: Run) -> Iterator[Issue]:
    counts = count_stop_reasons(run, EpisodeFilter(outcome="failure"))
    total = sum(counts.values())
    for reason, (limit, change) in _ENDS.items():
        count = counts.get(reason, 0)
        if count and count >= MIN_SHARE * total:
            what = f"{count} of {total} failed episodes were ended by {limit}"
            yield Issue("wrong", what, f"their stop reason is {reason}", change, count / total)


def _replies(run: Run, alerts: set[str]) -> Iterator[Issue]:
    rows = run.rows(
        "SELECT id FROM episodes WHERE phase = ? AND value IS NOT NULL ORDER BY finished_at DESC LIMIT ?",
        (TRAIN, NEWEST),
    )
    counts, unparsed = count_replies(run, [row[0] for row in rows])
    total = sum(counts.values())
    for kind, (what, change) in _REPLIES.items():
        count = counts.get(kind, 0)
        if "replies/parse_rate" in alerts or not count or count < MIN_SHARE * total:
            continue
        evidence = f"of the {len(rows)} newest training episodes"
        evidence += f"; one is {_one_line(unparsed)!r}" if kind == "format" else ""
        yield Issue("wrong", f"{count} of {total} replies {what}", evidence, change, count / total)


def _evaluations(run: Run) -> Iterator[Issue]:
    for view in evaluation_views(run).values():
        for line in view.report.warnings:
            what, _, change = line.partition("; ")
            change = change or "see the causes of the episodes without a score"
            yield Issue("wrong", what, f"evaluation {view.report.name}", change, 1.0)


def _signal(run: Run, alerts: set[str]) -> Iterator[Issue]:
    counts = run.episode_counts()
    ended = sum(counts.get(name, 0) for name in ("trained", "zero_variance", "stale"))
    flat, stale = counts.get("zero_variance", 0), counts.get("stale", 0)
    named = families_without_signal(run.episodes(TRAIN))
    if flat and (flat >= ended / 2 or named) and "groups/zero_variance_frac" not in alerts:
        change = "choose tasks that are solved sometimes (suite.families), use deskhand sft, or raise loop.group_size"
        evidence = f"families without signal: {named}" if named else "all rewards of their groups are equal"
        yield Issue("wrong", f"{flat} of {ended} scored episodes taught nothing", evidence, change, flat / ended)
    if stale and stale >= MIN_SHARE * ended and "episodes/stale_frac" not in alerts:
        change = "raise loop.max_staleness, or lower loop.max_concurrent_episodes"
        what = f"{stale} of {ended} scored episodes were too old to train on"
        yield Issue("wrong", what, "they are more than loop.max_staleness versions old", change, stale / ended)


def _learning(run: Run) -> Iterator[Issue]:
    """Yield whether success has not risen in training, or in the evaluations before and after it."""
    found = success_at_ends(run)
    last = run.checkpoint()
    if last is None or last.step < MIN_STEPS or found is None or min(each["total"] for each in found) < MIN_EPISODES:
        return
    first, newest = found
    if newest["interval"][0] > first["interval"][1] or newest["value"] > first["value"] + MIN_SHARE:
        return
    shown = {view.label: view.report.success for view in evaluation_views(run).values()}
    if {"before", "after"} <= set(shown) and shown["after"].interval[0] > shown["before"].interval[1]:
        return
    before, after = (
        f"{100 * each['value']:.0f} % of {each['total']} episodes at "
        + " to ".join(f"version {version}" for version in sorted(set(each["versions"])))
        for each in found
    )
    evidence = f"training success was {before}, and is {after}"
    yield Issue(
        "wrong",
        f"success has not risen in {last.step} steps",
        evidence,
        "repair what is listed here first; then more steps, another trainer.learning_rate, or easier tasks",
        MIN_SHARE,
    )


def _steps(run: Run, steps: list[dict[str, Any]]) -> Iterator[Issue]:
    newest = [entry for entry in steps if entry.get("time/step")][-STEPS:]
    total = sum(entry["time/step"] for entry in newest)
    spent = {name: sum(entry.get(f"time/{name}") or 0.0 for entry in newest) for name in _STEP_PARTS}
    where = ""
    for name, seconds in spent.items():
        if not total or seconds < MIN_TIME * total:
            continue
        label, change = _STEP_PARTS[name]
        share = seconds / total
        where = f"{100 * share:.0f} % of the time of the last {len(newest)} steps is {label}"
        evidence = f"{duration(total / len(newest))} per step, of which {duration(seconds / len(newest))}"
        if name != "rollout_wait":
            yield Issue("slow", where, evidence, change, share)
    if spent.get("rollout_wait", 0.0) < MIN_TIME * total:
        return
    yield from _episodes(run, where)


def _episodes(run: Run, because: str) -> Iterator[Issue]:
    """Yield the part that takes most of an episode's time."""
    seconds = mean_seconds(run, NEWEST)
    total = seconds.get("total", 0.0)
    if not total:
        return
    parts = {**seconds, "desktop": seconds.get("solve", 0.0) - seconds.get("model", 0.0)}
    name = max(_EPISODE_PARTS, key=lambda part: parts.get(part, 0.0))
    share = parts.get(name, 0.0) / total
    if not because and share < MIN_TIME:
        return
    label, change = _EPISODE_PARTS[name]
    what = f"{100 * share:.0f} % of an episode's time is {label}" + (f", and {because}" if because else "")
    shown = ", ".join(f"{part} {parts[part]:.1f} s" for part in _EPISODE_PARTS if parts.get(part))
    yield Issue("slow", what, f"an episode takes {total:.1f} s on average: {shown}", change, share)


def _quota(run: Run) -> Iterator[Issue]:
    seconds = mean_seconds(run, NEWEST)
    waited, total = seconds.get("quota_wait", 0.0), seconds.get("total", 0.0)
    if waited and waited >= MIN_SHARE * (waited + total):
        what = f"an episode waits {waited:.1f} s for a quota and then takes {total:.1f} s"
        change = "lower loop.max_concurrent_episodes, or ask for a larger quota; deskhand doctor --desktop URL shows it"
        yield Issue("slow", what, "mean of the newest episodes", change, waited / (waited + total))


def _one_line(text: str, most: int = 160) -> str:
    """Return text of models and guests for a terminal: one line, without control characters."""
    plain = "".join(each if each.isprintable() else " " for each in text)
    return " ".join(plain.split())[:most]
