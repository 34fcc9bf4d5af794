"""Groups of episodes of one task or of one family, whose rewards are compared with each other.

Used by `recipes.training_loop`; `GroupBuffer` opens groups, hands out episode requests and collects results. A complete
group is "queued" for the trainer, or "closed" immediately if its rewards are all equal (zero variance): it then has no
signal and no longer counts against the limit.

Invariant: a group completes once, when no member is in flight. An errored member is replaced by a new episode of the
    same task, at most `max_retries` times per group.
Invariant: a group that `stops` ends early starts no more episodes; those in flight are scored as always.
Invariant: a slot is never idle for `max_equal_in_flight`; it only determines which group the next episode is of.
Invariant: a step never makes a group too old that is still open (`next_batch`), so a slow task is trained as often as
    it is started.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from deskhand.agents.seeding import call_seed
from deskhand.errors import ConfigError
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.tasks.outcome import Errored, Scored
from deskhand.tasks.task import Task

SAME_REWARD = 1e-8
"""Maximum difference of equal rewards."""


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """An episode to run."""

    episode_id: str
    task: Task
    group_id: str | None = None
    member: int = 0
    seed: int | None = None
    """Sampling seed; None samples without a seed."""
    on_agent_ended: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)
    """Called when the agent has ended and only the judge is left. May be called again."""


@dataclass
class Group:
    """`size` episodes."""

    id: str
    number: int
    """Position in the order of opening; determines the task."""
    task: Task
    """The task of all members, or that of the first (`GroupBuffer.member_task`)."""
    size: int
    retries_left: int
    next_member: int = 0
    again: list[int] = field(default_factory=list)
    """Members that an earlier process did not finish; they are started first."""
    in_flight: int = 0
    scored: list[EpisodeResult] = field(default_factory=list)
    errored: list[str] = field(default_factory=list)
    """Ids of errored episodes."""
    state: Literal["open", "queued", "closed"] = "open"
    keep_zero_variance: bool = False
    """Whether a group with equal rewards is trained, as with a critic, whose baseline is not the group."""
    num_stopped: int = 0
    """Members that were not started, because their rewards were expected to be equal to those so far."""
    opened_step: int = 0
    """Training steps in the weights when the group was opened; none of its tokens is older."""

    @property
    def open_slots(self) -> int:
        """Number of episodes that can be started now."""
        return self.size - len(self.scored) - self.in_flight

    @property
    def rewards(self) -> list[float]:
        """Rewards of the scored members, in the order in which they ended."""
        return [result.reward for result in self.scored if result.reward is not None]

    @property
    def has_signal(self) -> bool:
        """Whether rewards differ; with `keep_zero_variance`, whether there is any reward."""
        rewards = self.rewards
        if self.keep_zero_variance:
            return bool(rewards)
        return len(rewards) >= 2 and max(rewards) - min(rewards) > SAME_REWARD

    @property
    def is_equal_so_far(self) -> bool:
        """Whether at least two rewards are known and all are equal."""
        return len(self.rewards) >= 2 and not self.has_signal


class GroupBuffer:
    """At most `limit` open and queued groups of `size` episodes, which bounds staleness.

    `make_task` returns the task of the group with a given number; `member_task` returns that of one of its members
    (None: all have the same task), a pure function of the group's task and the member's number. At most `max_retries`
    episodes of a group are replaced (None: `size`); `seed`, task and member determine the sampling seed of an episode.
    `stops` returns, for a group with equal rewards so far, whether its remaining members shall not be started. Until
    its rewards differ, a group has at most `max_equal_in_flight` members in flight if other groups have work, so that
    `stops` can end it.
    """

    def __init__(  # noqa: PLR0913
        self,
        make_task: Callable[[int], Task],
        *,
        size: int,
        limit: int,
        max_retries: int | None = None,
        next_number: int = 0,
        keep_zero_variance: bool = False,
        seed: int = 0,
        current_step: Callable[[], int] = lambda: 0,
        stops: Callable[[Group], bool] = lambda group: False,
        max_equal_in_flight: int | None = None,
        member_task: Callable[[Task, int], Task] | None = None,
    ) -> None:
        self.member_task = member_task
        self.make_task, self.size, self.limit, self.seed = make_task, size, limit, seed
        self.max_equal_in_flight = size if max_equal_in_flight is None else max_equal_in_flight
        self.current_step = current_step
        """Returns the training steps in the engine's weights."""
        self.stops = stops
        self.max_retries = size if max_retries is None else max_retries
        self.next_number = next_number
        self.keep_zero_variance = keep_zero_variance
        self.live: dict[str, Group] = {}
        """Open and queued groups by id, oldest first."""

    def restore(
        self,
        groups: Iterable[tuple[str, int, str, int, list[EpisodeResult]]],
        interrupted: Mapping[str, Sequence[int]] | None = None,
        steps_of: Callable[[EpisodeResult], int] = lambda result: 0,
    ) -> None:
        """Restore groups of an earlier process: (id, number, "open" or "queued", members ever started, scored members).

        `interrupted`: by group id, members that were in flight when the process ended. They run again with their own
        number, and so with their seed. `steps_of` returns the training steps in the oldest weights that sampled an
        episode.

        An open group that already has `size` scored members runs one more and completes. Raises `ConfigError` if
        members of an open group belong to another task than `make_task` returns.
        """
        for name, number, state, members, scored in sorted(groups, key=lambda entry: entry[1]):
            group = self._group(name, number, members)
            group.scored, group.again = list(scored), list((interrupted or {}).get(name, ()))
            for result in scored if state != "queued" else ():
                now = self._task_of(group, result.member).id
                if result.task_id != now:
                    raise ConfigError(
                        f"suite: group {number} was started with task {result.task_id}, now it is {now}; "
                        "resume with the original families, seed and loop.group_by"
                    )
            group.size = max(group.size, len(scored) + 1)
            sampled = [steps_of(result) for result in scored if result.version_min >= 0]
            group.opened_step = min([group.opened_step, *sampled])
            group.state = "queued" if state == "queued" else "open"
            if group.state == "open" and group.is_equal_so_far and self.stops(group):
                group.num_stopped = max(0, group.open_slots - max(1, len(group.again)))
                group.size -= group.num_stopped
            self.live[name] = group
            self.next_number = max(self.next_number, number + 1)

    def next_request(self) -> tuple[EpisodeRequest, Group | None] | None:
        """Return the next episode and the group opened for it, if any; None while `limit` is reached."""
        waiting = [group for group in self.live.values() if group.state == "open" and group.open_slots > 0]
        for group in waiting:
            if group.in_flight < self.max_equal_in_flight or group.has_signal:
                return self._request(group), None
        if len(self.live) >= self.limit:
            return (self._request(waiting[0]), None) if waiting else None
        number, self.next_number = self.next_number, self.next_number + 1
        group = self._group(uuid.uuid4().hex, number)
        self.live[group.id] = group
        return self._request(group), group

    def _group(self, name: str, number: int, members: int = 0) -> Group:
        task = self.make_task(number)
        return Group(
            name,
            number,
            task,
            self.size,
            self.max_retries,
            members,
            keep_zero_variance=self.keep_zero_variance,
            opened_step=self.current_step(),
        )

    def _request(self, group: Group) -> EpisodeRequest:
        if group.again:
            member = group.again.pop(0)
        else:
            member, group.next_member = group.next_member, group.next_member + 1
        group.in_flight += 1
        task = self._task_of(group, member)
        return EpisodeRequest(uuid.uuid4().hex, task, group.id, member, call_seed(self.seed, task.id, member))

    def _task_of(self, group: Group, member: int) -> Task:
        return group.task if self.member_task is None else self.member_task(group.task, member)

    def finish(self, result: EpisodeResult) -> Group | None:
        """Add a result; return the group if this completed it, in state "queued" or "closed" (no signal)."""
        group = self.live[result.group_id or ""]
        group.in_flight -= 1
        if isinstance(result.outcome, Scored):
            group.scored.append(result)
        else:
            group.errored.append(result.episode_id)
            solved = isinstance(result.outcome, Errored) and result.outcome.cause == "already_solved"
            if solved and self.member_task is None:
                group.retries_left = 0  # every episode of the task starts alike
                group.size = len(group.scored) + group.in_flight
            elif group.retries_left > 0 and not group.num_stopped:
                group.retries_left -= 1
            else:
                group.size -= 1
        if group.open_slots > 0 and group.is_equal_so_far and self.stops(group):
            group.num_stopped += group.open_slots
            group.size -= group.open_slots
        return self.close_if_final(group)

    def close_if_final(self, group: Group) -> Group | None:
        """Complete the group if no member is missing or in flight, and return it."""
        if group.in_flight or group.open_slots > 0:
            return None
        group.state = "queued" if group.has_signal else "closed"
        if group.state == "closed":
            del self.live[group.id]
        return group

    def queued(self) -> list[Group]:
        """Return the groups ready for training, oldest first."""
        return sorted((group for group in self.live.values() if group.state == "queued"), key=_age_order)

    def next_batch(self, count: int, step: int, max_staleness: int) -> list[Group] | None:
        """Return the oldest `count` queued groups for the training step after `step`; None if it must wait.

        It waits for `count` groups, and for older ones that are still open if without them a group would exceed
        `max_staleness` before the steps to come can take it, `count` a step. So young groups overtake slow ones as long
        as none is dropped. With the oldest groups of all, it never waits.
        """
        oldest = sorted(self.live.values(), key=_age_order)
        batch = self.queued()[:count]
        if len(batch) < count or batch == oldest[:count]:
            return batch if len(batch) == count else None
        chosen = {group.id for group in batch}
        left = [group for group in oldest if group.id not in chosen]
        late = any(step + 1 + place // count > group.opened_step + max_staleness for place, group in enumerate(left))
        return None if late else batch

    def remove(self, groups: Iterable[Group]) -> None:
        """Remove groups that were trained or dropped."""
        for group in groups:
            group.state = "closed"
            del self.live[group.id]


def _age_order(group: Group) -> tuple[int, int]:
    return group.opened_step, group.number
