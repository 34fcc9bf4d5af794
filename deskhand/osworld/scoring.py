"""Scoring of an OSWorld task: `score_task`.

Postconfig steps, getters, metrics and their combination match OSWorld, in its order. OSWorld's own metrics are used if
their virtual environment is installed, otherwise Deskhand's versions. Failures are errors with a cause, never a score.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass

from deskhand.errors import EvaluatorError
from deskhand.osworld.getters import ACCESSIBILITY_KINDS, LIVE_KINDS, PROFILE_KINDS, GetterReader, unavailable
from deskhand.osworld.official_evaluators import (
    Files,
    MetricRequest,
    MetricResult,
    OfficialEvaluators,
    Read,
    Value,
    evaluators_for,
    find_python,
)
from deskhand.osworld.setup_runner import SetupRunner
from deskhand.osworld.setup_runner import unavailable as step_unavailable
from deskhand.tasks.checks import osworld_metrics
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.formats import osworld_getters
from deskhand.tasks.formats.osworld import EvaluatorClause, JsonTask
from deskhand.tasks.outcome import Finding
from deskhand.tasks.task import CheckResult
from deskhand.venvs import install_command

PROFILE_FLUSH_S = 11.0
"""Chrome writes a changed setting within 10 s and loses it if killed before; OSWorld's runner waits 20 s."""


@dataclass(frozen=True)
class Verdict:
    """Score of an end state, with the score of each metric."""

    value: float
    scores: tuple[tuple[str, float], ...] = ()
    detail: str = ""
    findings: tuple[Finding, ...] = ()
    """Inputs of each metric."""
    guest_trusted: bool = False
    judged_by: str = ""
    """Origin of the metrics: "desktop-env", "deskhand", or "" if none was used."""

    @property
    def check(self) -> CheckResult:
        return CheckResult(self.value, self.detail, self.guest_trusted, self.findings, no_retry=True)


def default_official_evaluators() -> OfficialEvaluators | None:
    """Return OSWorld's own evaluators if their virtual environment is installed."""
    python = find_python(os.environ)
    return evaluators_for(python) if python is not None else None


async def score_task(
    task: JsonTask,
    runner: SetupRunner,
    *,
    failed: bool,
    at_start: bool = False,
    evaluators: OfficialEvaluators | None = None,
) -> Verdict:
    """Score the end state on `runner`; `failed`: the agent declared the task infeasible.

    With `at_start`, score a state that no agent has used yet: postconfig steps, which save documents and close
    programs, are left out, because there is nothing to save, and the machine stays as it is.

    Raises `EvaluatorError` if a metric or getter fails or is unavailable, `InfrastructureError` if the desktop fails.
    """
    reads_live_profile = not runner.client.is_saved and _types(task) & PROFILE_KINDS
    if not at_start and reads_live_profile and (await runner.client.desktop.run(["pgrep", "chrome"])).returncode == 0:
        await asyncio.sleep(PROFILE_FLUSH_S)
    if not at_start:
        await runner.set_up(task.evaluator.postconfig, judging=True)
    if task.infeasible:
        return Verdict(
            float(failed), detail="the task is infeasible" + ("" if failed else "; the agent did not report it")
        )
    if failed:
        return Verdict(0.0, detail="the agent reported the task as infeasible")
    clauses, conj = task.evaluator.clauses, task.evaluator.conj or "and"
    requests = await _build_requests(clauses, GetterReader(runner))
    judged_by = "desktop-env" if evaluators is not None else "deskhand"
    try:
        result = (
            await evaluators.judge(requests, conj)
            if evaluators is not None
            else await asyncio.to_thread(score_with_own_metrics, requests, conj)
        )
    except InvalidDocument as error:  # with "or", of every metric that does not score 0
        return Verdict(0.0, detail=str(error), judged_by=judged_by)
    scores = tuple((clauses[index].metric, score) for index, score in enumerate(result.scores))
    kinds = {getattr(getter, "type", "") for clause in clauses for getter in (clause.result, clause.expected)}
    findings = tuple(
        Finding(request.metric, score, _describe(request.result), _describe(request.expected))
        for request, score in zip(requests, result.scores, strict=False)
    )
    detail = f"the guest rejected postconfig steps: {'; '.join(runner.refused)}" if runner.refused else ""
    return Verdict(result.value, scores, detail, findings, bool(kinds & LIVE_KINDS), judged_by)


def _types(task: JsonTask) -> set[str]:
    return {getattr(getter, "type", "") for _, getter in task.getters()}


async def _build_requests(clauses: Sequence[EvaluatorClause], reader: GetterReader) -> list[MetricRequest]:
    requests = []
    for clause in clauses:
        result = await reader.read(clause.result) if _is_set(clause.result) else Value(None)
        expected = await reader.read(clause.expected) if _is_set(clause.expected) else None
        requests.append(MetricRequest(clause.metric, result, expected, clause.options))
    return requests


def _is_set(getter: osworld_getters.Getter) -> bool:
    return getter is not None and not isinstance(getter, osworld_getters.EmptyGetter)


def score_with_own_metrics(requests: Sequence[MetricRequest], conj: str) -> MetricResult:
    """Score with Deskhand's versions of the metrics, combined as in OSWorld. Blocks. Raises `EvaluatorError`."""
    scores: list[float] = []
    for request in requests:
        result, expected = _by_value(request.result), _by_value(request.expected)
        try:
            score = osworld_metrics.score_in_subprocess(request.metric, result, expected, dict(request.options))
        except InvalidDocument:
            if conj != "or" or len(requests) == 1:
                raise
            score = 0.0  # another metric may accept what this one cannot read
        scores.append(score)
        if len(requests) > 1 and scores[-1] == (1.0 if conj == "or" else 0.0):
            return MetricResult(scores[-1], tuple(scores))
    return MetricResult(max(scores) if conj == "or" else sum(scores) / len(scores), tuple(scores))


def _by_value(read: Read | None) -> object:
    if read is None or isinstance(read, Value):
        return read.value if read is not None else None
    if isinstance(read, Files):
        contents = [data for _, data in read.files]
        return contents[0] if read.single else contents
    raise EvaluatorError(
        f"getter {read.getter!r}: needs OSWorld's evaluators; run {install_command('osworld-evaluators')}"
    )


def unsupported_reasons(task: JsonTask, *, with_official: bool) -> list[str]:
    """Return why a task cannot be set up or scored here; empty if it can.

    Excludes requirements on the machine (`tasks.formats.requirements`).
    """
    reasons = [f"step {step.type}: {why}" for _, step in task.steps() if (why := step_unavailable(step))]
    if not task.infeasible:
        getters = [getter for _, getter in task.getters()]
        reasons += [f"getter {getattr(each, 'type', '')}: {why}" for each in getters if (why := unavailable(each))]
        if not with_official:
            missing = {clause.metric for clause in task.evaluator.clauses} - osworld_metrics.available()
            reasons += [f"metric {name}: needs OSWorld's own evaluators" for name in sorted(missing)]
    return list(dict.fromkeys(reasons))


def needs_accessibility(task: JsonTask) -> bool:
    """Return whether scoring reads the accessibility tree."""
    return bool(_types(task) & ACCESSIBILITY_KINDS)


def _describe(read: Read | None) -> str:
    if isinstance(read, Value):
        return repr(read.value)
    if isinstance(read, Files):
        return ", ".join(f"{name} ({'missing' if data is None else f'{len(data)} bytes'})" for name, data in read.files)
    return "" if read is None else f"{read.getter} of {', '.join(read.files)}"
