"""Search, sort and page over the stored episodes of a run, in SQL. Start with `search_episodes`.

Used by the viewer and by evaluations. Only the rows of a page leave the database, so a run of any length opens at once.
An episode's *reason* is one line: the first clause of its check that does not hold, or why it has no score.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from deskhand.errors import ConfigError
from deskhand.store.run import EpisodeRow, Run

MAX_PAGE = 500
_HAS_VALUE = "state NOT IN ('errored', 'in_flight')"
OUTCOMES = {
    "success": f"{_HAS_VALUE} AND episodes.value >= 1",
    "failure": f"{_HAS_VALUE} AND episodes.value < 1",
    "errored": "state = 'errored'",
    "in_flight": "state = 'in_flight'",
}
"""Outcomes by name, as conditions on the columns of an episode."""
_JSON = "CASE WHEN json_valid(record) THEN record ELSE '{}' END"
_FAILED = f"json_each({_JSON}, '$.outcome.findings') AS finding"
_CLAUSE = "json_extract(finding.value, '$.clause')"
_IS_FAILED = "json_extract(finding.value, '$.value') < 1"
_EXPECTED = "json_extract(finding.value, '$.expected')"
_REASON = f"""CASE
    WHEN state = 'errored' THEN cause || ': ' || coalesce(json_extract({_JSON}, '$.outcome.message'), 'interrupted')
    WHEN episodes.value < 1 THEN (
        SELECT {_CLAUSE} || ': read ' || json_extract(finding.value, '$.read')
            || CASE WHEN {_EXPECTED} = '' THEN '' ELSE ', expected ' || {_EXPECTED} END
        FROM {_FAILED} WHERE {_IS_FAILED} LIMIT 1)
    ELSE '' END"""
_FAILED_CLAUSES = f"(SELECT group_concat({_CLAUSE}, '; ') FROM {_FAILED} WHERE {_IS_FAILED} AND episodes.value < 1)"
_INSTRUCTION = f"json_extract({_JSON}, '$.instruction')"
_COMPUTED = {
    "instruction": _INSTRUCTION,
    "reason": _REASON,
    "steps": f"json_array_length({_JSON}, '$.transcript.steps')",
    "seconds": f"json_extract({_JSON}, '$.seconds.total')",
    "quota_wait": f"json_extract({_JSON}, '$.seconds.quota_wait')",
}
"""Values of an episode that are in its record and have no column."""
_COLUMNS = tuple(EpisodeRow.__slots__)
SORTABLE = (*_COLUMNS, "steps", "seconds", "quota_wait")


@dataclass(frozen=True, slots=True)
class EpisodeFilter:
    """Conditions that an episode meets, all of them; None is no condition."""

    phase: str | None = None
    family: str | None = None
    task: str | None = None
    """Part of the task id."""
    outcome: str | None = None
    """A key of `OUTCOMES`."""
    state: str | None = None
    cause: str | None = None
    reason: str | None = None
    """Part of the reason, or of another clause that does not hold."""
    version: int | None = None
    """Weights version that sampled one of its tokens."""
    group: str | None = None
    steps: tuple[int, ...] | None = None
    """Training steps in which the episode was trained."""
    text: str | None = None
    """Part of the id, task, instruction or reason."""

    def sql(self) -> tuple[str, list[Any]]:
        """Return the condition and its values. Raises `ConfigError` for an unknown outcome."""
        found: list[tuple[str, list[Any]]] = [
            (f"{column} = ?", [value])
            for column, value in (
                ("phase", self.phase), ("family", self.family), ("state", self.state), ("cause", self.cause),
                ("group_id", self.group),
            )
            if value is not None
        ]  # fmt: skip
        if self.outcome is not None:
            if self.outcome not in OUTCOMES:
                raise ConfigError(f"outcome: must be one of {', '.join(OUTCOMES)}, got {self.outcome}")
            found.append((OUTCOMES[self.outcome], []))
        if self.version is not None:
            found.append(("version_min <= ? AND version_max >= ?", [self.version, self.version]))
        if self.steps is not None:
            found.append(("step IN (SELECT value FROM json_each(?))", [json.dumps(self.steps)]))
        for text, columns in (
            (self.task, ("task_id",)),
            (self.reason, (_REASON, _FAILED_CLAUSES)),
            (self.text, ("id", "task_id", _INSTRUCTION, _REASON)),
        ):
            if text:
                like = " OR ".join(f"{column} LIKE ? ESCAPE '\\'" for column in columns)
                found.append((like, [_pattern(text)] * len(columns)))
        where = " AND ".join(f"({condition})" for condition, _ in found) or "1"
        return where, [value for _, values in found for value in values]


def _pattern(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"


def search_episodes(
    run: Run,
    where: EpisodeFilter,
    *,
    sort: str = "started_at",
    descending: bool = False,
    offset: int = 0,
    limit: int = 50,
) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of episodes that meet `where`, and one page of them with instruction, reason, steps, seconds.

    Raises `ConfigError` for an unknown column or a page beyond `MAX_PAGE`.
    """
    if sort not in SORTABLE:
        raise ConfigError(f"sort: must be one of {', '.join(SORTABLE)}, got {sort}")
    if not (0 < limit <= MAX_PAGE and offset >= 0):
        raise ConfigError(f"limit: must be 1 to {MAX_PAGE} with an offset of at least 0, got {limit} and {offset}")
    condition, values = where.sql()
    total = run.rows(f"SELECT COUNT(*) FROM episodes WHERE {condition}", tuple(values))[0][0]
    direction = "DESC" if descending else "ASC"
    key = _COMPUTED.get(sort, sort)
    order = f"{key} IS NULL, {key} {direction}, rowid {direction}"
    # The page's rows are found first, so that records are parsed for them alone.
    page = f"SELECT rowid FROM episodes WHERE {condition} ORDER BY {order} LIMIT ? OFFSET ?"
    computed = ", ".join(_COMPUTED.values())
    found = run.rows(
        f"SELECT {', '.join(_COLUMNS)}, {computed} FROM episodes WHERE rowid IN ({page}) ORDER BY {order}",
        (*values, limit, offset),
    )
    return total, [dict(zip((*_COLUMNS, *_COMPUTED), row, strict=True)) for row in found]


def list_values(run: Run) -> dict[str, list[Any]]:
    """Return the values that episodes of the run have, for each column of choices, most frequent first."""
    found: dict[str, list[Any]] = {
        name: [
            value
            for value, _ in run.rows(f"SELECT {name}, COUNT(*) FROM episodes GROUP BY 1 ORDER BY 2 DESC LIMIT 500")
            if value is not None
        ]
        for name in ("phase", "family", "state", "cause")
    }
    low, high = run.rows("SELECT MIN(version_min), MAX(version_max) FROM episodes WHERE version_min >= 0")[0]
    return {**found, "outcome": list(OUTCOMES), "version": [] if low is None else [low, high]}


def count_failures(run: Run, where: EpisodeFilter, limit: int = 40) -> list[dict[str, Any]]:
    """Return the most frequent reasons of failure by family: clauses that did not hold, and causes of errors."""
    condition, values = where.sql()
    clauses = run.rows(
        f"SELECT family, {_CLAUSE}, COUNT(*) AS num FROM episodes, {_FAILED} WHERE ({condition}) "
        f"AND state != 'errored' AND episodes.value < 1 AND {_IS_FAILED} GROUP BY 1, 2 ORDER BY num DESC LIMIT ?",
        (*values, limit),
    )
    errors = run.rows(
        f"SELECT family, cause, COUNT(*) AS num FROM episodes WHERE ({condition}) AND state = 'errored' "
        "GROUP BY 1, 2 ORDER BY num DESC LIMIT ?",
        (*values, limit),
    )
    rows = [{"family": family, "clause": clause, "errored": False, "episodes": num} for family, clause, num in clauses]
    rows += [{"family": family, "clause": cause, "errored": True, "episodes": num} for family, cause, num in errors]
    return sorted(rows, key=lambda row: -row["episodes"])[:limit]


def count_replies(run: Run, episode_ids: Sequence[str]) -> tuple[dict[str, int], str]:
    """Return the replies of these episodes by kind of error ("" for none), and the text of one that was not parsed."""
    steps = (
        f"FROM episodes, json_each({_JSON}, '$.transcript.steps') AS step "
        "WHERE episodes.id IN (SELECT value FROM json_each(?))"
    )
    kind, ids = "json_extract(step.value, '$.reply_error')", (json.dumps(list(episode_ids)),)
    counts = run.rows(f"SELECT coalesce({kind}, ''), COUNT(*) {steps} GROUP BY 1", ids)
    found = run.rows(f"SELECT json_extract(step.value, '$.text') {steps} AND {kind} = 'format' LIMIT 1", ids)
    return dict(counts), str(found[0][0]) if found else ""


def count_stop_reasons(run: Run, where: EpisodeFilter) -> dict[str, int]:
    """Return why the agents of the episodes that meet `where` stopped, with the number of episodes."""
    condition, values = where.sql()
    reason = f"json_extract({_JSON}, '$.transcript.stop_reason')"
    rows = run.rows(
        f"SELECT {reason}, COUNT(*) FROM episodes WHERE ({condition}) AND record IS NOT NULL GROUP BY 1", tuple(values)
    )
    return {reason: count for reason, count in rows if reason is not None}


def mean_seconds(run: Run, newest: int = 500) -> dict[str, float]:
    """Return the mean seconds by phase of the newest finished episodes."""
    rows = run.rows(
        f"SELECT part.key, AVG(part.value) FROM (SELECT record FROM episodes WHERE record IS NOT NULL "
        f"ORDER BY finished_at DESC LIMIT ?), json_each({_JSON}, '$.seconds') AS part GROUP BY 1",
        (newest,),
    )
    return {name: seconds for name, seconds in rows if seconds is not None}


def filter_of(given: Mapping[str, str]) -> EpisodeFilter:
    """Return the filter of named texts, such as a URL's query. Raises `ConfigError` if `version` is not a number."""
    values: dict[str, Any] = {
        item.name: given[item.name] for item in fields(EpisodeFilter) if item.name != "steps" and given.get(item.name)
    }
    if "version" in values:
        if not values["version"].lstrip("-").isdigit() or len(values["version"]) > 12:
            raise ConfigError(f"version: must be a number, got {values['version'][:50]}")
        values["version"] = int(values["version"])
    return EpisodeFilter(**values)
