"""Episodes of one task that are compared with one another. Invariant: a group closes when every member is final, once; a member
without a score is masked and its place refilled by a new episode of the same task, a bounded number of times.

A group that closes is *waiting* for the trainer, or *closed* at once when its rewards are all equal (zero variance): then there is
nothing to learn, and the admission of a fresh task follows by itself, because the group no longer counts.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from deskhand.agents.seeding import call_seed
from deskhand.errors import ConfigError
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.tasks.outcome import Scored
from deskhand.tasks.task import Task

SAME_REWARD = 1e-8
"""Rewards within this range of each other are equal."""


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """One episode to be run."""

    episode_id: str
    task: Task
    group_id: str | None = None
    member: int = 0
    seed: int | None = None
    """What the policy draws by, where its engine takes seeds; None lets it draw anew each time."""


@dataclass
class Group:
    """`size` places, filled by scored episodes."""

    id: str
    number: int
    """In the order of opening; the task is a function of it."""
    task: Task
    size: int
    retries_left: int
    next_member: int = 0
    in_flight: int = 0
    scored: list[EpisodeResult] = field(default_factory=list)
    unscored: list[str] = field(default_factory=list)
    state: Literal["open", "queued", "closed"] = "open"
    keep_zero_variance: bool = False
    """Whether a group of equal rewards is trained on: a critic compares with its values, not with the group."""

    @property
    def open_slots(self) -> int:
        """Episodes that can be started now."""
        return self.size - len(self.scored) - self.in_flight

    @property
    def rewards(self) -> list[float]:
        """Of the scored members, in the order in which they ended."""
        return [result.reward for result in self.scored if result.reward is not None]

    @property
    def has_signal(self) -> bool:
        """Whether at least two members are scored and their rewards differ; with a critic, whether any is scored."""
        rewards = self.rewards
        if self.keep_zero_variance:
            return bool(rewards)
        return len(rewards) >= 2 and max(rewards) - min(rewards) > SAME_REWARD


class GroupBuffer:
    """Opens groups, hands out tickets, takes results back.

    `make_task(number)` is the task of the group of that number; `limit` bounds the groups that are open or waiting (the staleness
    bound: DESIGN's `(max_staleness + 1) * batch`). `seed`: with a task and the number of a member it says what the policy draws by.
    """

    def __init__(
        self,
        make_task: Callable[[int], Task],
        *,
        size: int,
        limit: int,
        max_refills: int | None = None,
        next_number: int = 0,
        equal_teaches: bool = False,
        seed: int = 0,
    ) -> None:
        self.make_task = make_task
        self.size = size
        self.limit = limit
        self.max_refills = size if max_refills is None else max_refills
        self.next_number = next_number
        self.equal_teaches = equal_teaches
        self.seed = seed
        self.live: dict[str, Group] = {}
        """Open and waiting groups, oldest first."""

    def restore(self, groups: Iterable[tuple[str, int, str, int, list[EpisodeResult]]]) -> None:
        """Take over groups of an earlier process: (id, number, "open" or "queued", members ever started, scored members).

        An open group that has as many scored members as `size` asks for now, or more, takes one more and closes. Raises
        `ConfigError` when members played another task than `make_task` gives now: what is compared must be of one task.
        """
        for name, number, state, members, scored in sorted(groups, key=lambda entry: entry[1]):
            group = self._group(name, number, members)
            group.scored = list(scored)
            played = {result.task_id for result in scored} - {group.task.id}
            if played and state != "queued":
                raise ConfigError(
                    f"group {number} was begun on {min(played)}, and these settings make it {group.task.id}; go on with the "
                    "families and the seed that the run was started with, or start a new run from its last checkpoint"
                )
            group.size = max(group.size, len(scored) + 1)
            group.state = "queued" if state == "queued" else "open"
            self.live[name] = group
            self.next_number = max(self.next_number, number + 1)

    def ticket(self) -> tuple[EpisodeRequest, Group | None] | None:
        """The next episode to run, with the group that was opened for it, if one was; None while the bound allows none."""
        for group in self.live.values():
            if group.state == "open" and group.open_slots > 0:
                return self._ticket(group), None
        if len(self.live) >= self.limit:
            return None
        number, self.next_number = self.next_number, self.next_number + 1
        group = self._group(uuid.uuid4().hex, number)
        self.live[group.id] = group
        return self._ticket(group), group

    def _group(self, name: str, number: int, members: int = 0) -> Group:
        task = self.make_task(number)
        return Group(name, number, task, self.size, self.max_refills, members, keep_zero_variance=self.equal_teaches)

    def _ticket(self, group: Group) -> EpisodeRequest:
        member, group.next_member = group.next_member, group.next_member + 1
        group.in_flight += 1
        return EpisodeRequest(
            uuid.uuid4().hex, group.task, group.id, member, call_seed(self.seed, group.task.id, member)
        )

    def finish(self, result: EpisodeResult) -> Group | None:
        """Take a result back; returns the group when this closed it, in state "queued" or "closed" (zero variance, nothing
        scored)."""
        group = self.live[result.group_id or ""]
        group.in_flight -= 1
        if isinstance(result.outcome, Scored):
            group.scored.append(result)
        else:
            group.unscored.append(result.episode_id)
            if group.retries_left > 0:
                group.retries_left -= 1
            else:
                group.size -= 1
        return self.close_if_final(group)

    def close_if_final(self, group: Group) -> Group | None:
        """Close the group when no member is missing and none is in flight."""
        if group.in_flight or group.open_slots > 0:
            return None
        group.state = "queued" if group.has_signal else "closed"
        if group.state == "closed":
            del self.live[group.id]
        return group

    def waiting(self) -> list[Group]:
        """Groups that the trainer can take, oldest first."""
        return [group for group in self.live.values() if group.state == "queued"]

    def remove(self, groups: Iterable[Group]) -> None:
        """The trainer is done with these: they no longer count against the bound."""
        for group in groups:
            group.state = "closed"
            del self.live[group.id]
