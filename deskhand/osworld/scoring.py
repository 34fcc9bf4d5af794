"""Judging an OSWorld task. Invariant: steps before judging, what is read, metrics and how they are joined are OSWorld's, in its
order; a score that cannot be had is an error with its cause, never a number.

OSWorld's own metrics judge where their environment is installed, our versions of them where it is not.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass

from deskhand.errors import EvaluatorError
from deskhand.osworld.getters import ACCESSIBILITY, LIVE, PROFILE, GetterReader, unavailable
from deskhand.osworld.official_evaluators import (
    Files,
    MetricRequest,
    MetricResult,
    OfficialEvaluators,
    Read,
    Value,
    installed,
    official,
)
from deskhand.osworld.setup_runner import SetupRunner
from deskhand.osworld.setup_runner import unavailable as step_unavailable
from deskhand.tasks.checks import osworld_metrics
from deskhand.tasks.formats import osworld_getters
from deskhand.tasks.formats.osworld import EvaluatorClause, JsonTask
from deskhand.tasks.outcome import Finding
from deskhand.tasks.task import CheckResult

PROFILE_S = 11.0
"""Chrome writes a changed setting within ten seconds, and loses it when it is ended before; OSWorld's runner waits 20 s."""


@dataclass(frozen=True)
class Verdict:
    """What an end state is worth, with the score of each metric that was asked."""

    value: float
    scores: tuple[tuple[str, float], ...] = ()
    detail: str = ""
    findings: tuple[Finding, ...] = ()
    """What each metric that was asked had been given."""
    guest_trusted: bool = False
    judged_by: str = ""
    """Whose metrics: "desktop-env", "deskhand", or "" where none was asked."""

    @property
    def check(self) -> CheckResult:
        return CheckResult(self.value, self.detail, self.guest_trusted, self.findings, no_retry=True)


def default_official_evaluators() -> OfficialEvaluators | None:
    """OSWorld's own, where their environment is installed."""
    python = installed(os.environ)
    return official(python) if python is not None else None


async def score_task(
    task: JsonTask, stage: SetupRunner, *, failed: bool, evaluators: OfficialEvaluators | None = None
) -> Verdict:
    """What the end state on `stage` is worth; `failed` says that the agent's last word was that it cannot be done.

    Raises `EvaluatorError` where a metric or getter fails or is not available, `InfrastructureError` where the desktop fails.
    """
    if not stage.kept and _reads_profile(task) and await _runs(stage, "chrome"):
        await asyncio.sleep(PROFILE_S)
    await stage.set_up(task.evaluator.postconfig, judging=True)
    if task.infeasible:
        return Verdict(float(failed), detail="it cannot be done" + ("" if failed else ", and the agent did not say so"))
    if failed:
        return Verdict(0.0, detail="the agent said that it cannot be done")
    clauses, conj = task.evaluator.clauses, task.evaluator.conj or "and"
    questions = await _questions(clauses, GetterReader(stage))
    judged = (
        await evaluators.judge(questions, conj)
        if evaluators is not None
        else await asyncio.to_thread(score_with_own_metrics, questions, conj)
    )
    scores = tuple((clauses[index].metric, score) for index, score in enumerate(judged.scores))
    kinds = {getattr(getter, "type", "") for clause in clauses for getter in (clause.result, clause.expected)}
    findings = tuple(
        Finding(question.metric, score, _told(question.result), _told(question.expected))
        for question, score in zip(questions, judged.scores, strict=False)
    )
    detail = f"before judging the guest refused: {'; '.join(stage.refused)}" if stage.refused else ""
    judged_by = "desktop-env" if evaluators is not None else "deskhand"
    return Verdict(judged.value, scores, detail, findings, bool(kinds & LIVE), judged_by)


def _reads_profile(task: JsonTask) -> bool:
    kinds = {getattr(getter, "type", "") for _, getter in task.getters()}
    return bool(kinds & PROFILE)


async def _runs(stage: SetupRunner, program: str) -> bool:
    return (await stage.wire.desktop.run(["pgrep", program])).returncode == 0


async def _questions(clauses: Sequence[EvaluatorClause], reader: GetterReader) -> list[MetricRequest]:
    found = []
    for clause in clauses:
        result = await reader.read(clause.result) if _asks(clause.result) else Value(None)
        expected = await reader.read(clause.expected) if _asks(clause.expected) else None
        found.append(MetricRequest(clause.metric, result, expected, clause.options))
    return found


def _asks(getter: osworld_getters.Getter) -> bool:
    return getter is not None and not isinstance(getter, osworld_getters.EmptyGetter)


def score_with_own_metrics(questions: Sequence[MetricRequest], conj: str) -> MetricResult:
    """The score by our own versions of the metrics, joined as OSWorld joins. Blocks; raises `EvaluatorError`."""
    scores: list[float] = []
    for question in questions:
        result, expected = _by_value(question.result), _by_value(question.expected)
        scores.append(osworld_metrics.score_in_subprocess(question.metric, result, expected, dict(question.options)))
        if len(questions) > 1 and scores[-1] == (1.0 if conj == "or" else 0.0):
            return MetricResult(scores[-1], tuple(scores))
    return MetricResult(max(scores) if conj == "or" else sum(scores) / len(scores), tuple(scores))


def _by_value(read: Read | None) -> object:
    if read is None or isinstance(read, Value):
        return read.value if read is not None else None
    if isinstance(read, Files):
        contents = [data for _, data in read.files]
        return contents[0] if read.single else contents
    raise EvaluatorError(
        f"getter {read.getter!r} is OSWorld's own; scripts/environment osworld-evaluators makes their environment"
    )


def unsupported_reasons(task: JsonTask, *, with_official: bool) -> list[str]:
    """Why a task cannot be staged and judged here, beside what its machine would have to have (`tasks.sources.needs`); empty: it
    can.
    """
    found = [f"step {step.type}: {why}" for _, step in task.steps() if (why := step_unavailable(step))]
    if not task.infeasible:
        found += [
            f"getter {getattr(getter, 'type', '')}: {why}"
            for _, getter in task.getters()
            if (why := unavailable(getter))
        ]
        if not with_official:
            missing = {clause.metric for clause in task.evaluator.clauses} - osworld_metrics.available()
            found += [f"metric {name}: only OSWorld's own evaluators have it" for name in sorted(missing)]
    return list(dict.fromkeys(found))


def needs_accessibility(task: JsonTask) -> bool:
    """Whether judging reads the accessibility tree."""
    return any(getattr(getter, "type", "") in ACCESSIBILITY for _, getter in task.getters())


def _told(read: Read | None) -> str:
    """What was read, in words."""
    if isinstance(read, Value):
        return repr(read.value)
    if isinstance(read, Files):
        return ", ".join(f"{name} ({'missing' if data is None else f'{len(data)} bytes'})" for name, data in read.files)
    return "" if read is None else f"{read.getter} of {', '.join(read.files)}"
