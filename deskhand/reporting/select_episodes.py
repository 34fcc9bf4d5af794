"""Which episodes of a run a report of one file shows. Used by `reporting.build_report`; start with `Selection.choose`.

Training episodes are shown as whole groups, because a group is what an algorithm compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from deskhand.errors import ConfigError
from deskhand.store.run import EpisodeRow

EPISODES_PER_PHASE = 36
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Selection:
    """What a report shows: a number of episodes of each phase, or certain episodes and groups alone."""

    per_phase: int = EPISODES_PER_PHASE
    """Maximum episodes before, in and after training; a group is never cut."""
    episodes: tuple[str, ...] = ()
    """Ids, or beginnings of them that no other episode has."""
    groups: tuple[str, ...] = ()
    """Ids of groups, or beginnings of them."""
    failed: bool = False
    """Leave out successful episodes."""

    def choose(self, phases: Sequence[Sequence[EpisodeRow]]) -> list[list[EpisodeRow]]:
        """Return the chosen episodes of each phase. Raises `ConfigError` if an id is unknown or not unique."""
        named = self._named([row for rows in phases for row in rows])
        chosen = []
        for rows in phases:
            wanted = [row for row in rows if row.id in named] if self.episodes or self.groups else list(rows)
            if self.failed:
                wanted = [row for row in wanted if row.state == "errored" or (row.value or 0.0) < 1.0]
            chosen.append(wanted if self.episodes or self.groups else select_episodes(wanted, self.per_phase))
        return chosen

    def _named(self, rows: Sequence[EpisodeRow]) -> set[str]:
        found: set[str] = set()
        found.update(find_episode(rows, name) for name in self.episodes)
        for name in self.groups:
            groups = {row.group_id for row in rows if row.group_id is not None and row.group_id.startswith(name)}
            if len(groups) != 1:
                raise ConfigError(
                    f"--group {name}: {len(groups) or 'no'} groups with finished episodes have an id that begins so; "
                    "deskhand view shows the ids"
                )
            found |= {row.id for row in rows if row.group_id in groups}
        return found


def find_episode(rows: Sequence[EpisodeRow], name: str) -> str:
    """Return the id of the episode with this id, or of the only one whose id begins so. Raises `ConfigError`."""
    matching = {row.id for row in rows if row.id.startswith(name)}
    if name in matching:
        return name
    if len(matching) != 1:
        raise ConfigError(
            f"--episode {name}: {len(matching) or 'no'} finished episodes have an id that begins so; deskhand view "
            "shows the ids"
        )
    return matching.pop()


def select_episodes(rows: Sequence[EpisodeRow], limit: int) -> list[EpisodeRow]:
    """Return about `limit` rows, spread evenly over time: whole groups, those with different rewards first.

    Up to a sixth are errored ones, besides those of the groups. Without groups exactly `limit` rows are returned.
    """
    if len(rows) <= limit:
        return list(rows)
    groups: dict[str, list[EpisodeRow]] = {}
    for row in rows:
        if row.group_id is not None:
            groups.setdefault(row.group_id, []).append(row)
    complete = [group for group in groups.values() if len(group) > 1]
    if not complete:
        return _select_single(rows, limit)
    count = max(1, limit // max(len(group) for group in complete))
    mixed = [group for group in complete if len({row.reward for row in group if row.reward is not None}) > 1]
    others = [group for group in complete if not any(group is each for each in mixed)]
    chosen = _spread(mixed, count)
    chosen += _spread(others, count - len(chosen))
    found = [row for group in chosen for row in group]
    known = {row.id for row in found}
    errored = [row for row in rows if row.state == "errored" and row.id not in known]
    found += errored[: max(0, min(limit // 6, limit - len(found)))]
    return sorted(found, key=lambda row: (_began(groups, row), row.member, row.started_at))


def _began(groups: dict[str, list[EpisodeRow]], row: EpisodeRow) -> tuple[float, str]:
    """When a row's group began, so that its members stay together."""
    return (row.started_at, row.id) if row.group_id is None else (groups[row.group_id][0].started_at, row.group_id)


def _select_single(rows: Sequence[EpisodeRow], limit: int) -> list[EpisodeRow]:
    errored = [row for row in rows if row.state == "errored"][: limit // 6]
    others = [row for row in rows if row.state != "errored"]
    return sorted([*errored, *_spread(others, limit - len(errored))], key=lambda row: row.started_at)


def _spread(items: Sequence[T], count: int) -> list[T]:
    """Return at most `count` items, evenly spread."""
    count = max(0, min(count, len(items)))
    return [items[index * len(items) // count] for index in range(count)]
