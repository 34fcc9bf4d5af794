"""Replay of groups that were trained in earlier steps.

Used by `recipes.training_loop` if `loop.replay_groups` is not 0; start with `ReplayBuffer.take`. A step then trains
`replay_groups` earlier groups in addition to its own, with the log-probs that were recorded when they were sampled, so
the importance weight proximal / behavior corrects for the age of the weights (`objective.clipped_loss`). Advantages are
those of the whole group, as in its first step. With `replay_best_only`, its episodes with a positive advantage alone
are trained (self-imitation).

Groups are taken in the order of: replayed least often, lowest mean score (the rarest successes), oldest.

Sources: replay of trajectories of GUI agents for GRPO, ARPO (Lu et al., arXiv:2505.16282); replay by the rate of
success, ExGRPO (Zhan et al., arXiv:2510.02245); self-imitation, max(0, advantage), Oh et al. (arXiv:1806.05635).

Invariant: a replayed episode is at most `max_replay_staleness` steps old.
Invariant: the buffer follows from the run's episodes and the counts in the checkpoint, so a resumed run replays the
    same groups.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from deskhand.algorithms.base import Algorithm
from deskhand.config.loop import LoopConfig
from deskhand.errors import ConfigError
from deskhand.recipes.samples import groups_to_samples
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import Group
from deskhand.rollout.run_writer import load_result
from deskhand.store.run import TRAIN, EpisodeRow, Run
from deskhand.trainer.batch import TrainingSample


def check_replay(config: LoopConfig, algorithm: Algorithm) -> None:
    """Raise `ConfigError` if the algorithm cannot train replayed groups."""
    if config.replay_groups and algorithm.trains_equal_rewards:
        raise ConfigError(
            f"loop.replay_groups: {algorithm.name} has no group baseline, so the advantages of earlier steps do not "
            "fit; set it to 0, or choose an algorithm with group baselines"
        )


@dataclass(frozen=True)
class StoredGroup:
    """A group as the buffer keeps it."""

    id: str
    number: int
    scored: list[EpisodeResult]
    trained: frozenset[str]
    """Ids of the episodes that were trained; stale ones count in the advantages only."""

    @property
    def mean_score(self) -> float:
        return math.fsum(result.score for result in self.scored) / len(self.scored)

    def is_trained(self, result: EpisodeResult) -> bool:
        return result.episode_id in self.trained


class ReplayBuffer:
    """Groups of the last steps. `step_of` returns the training steps in the weights of a version."""

    def __init__(self, config: LoopConfig, algorithm: Algorithm, step_of: Callable[[int], int]) -> None:
        check_replay(config, algorithm)
        self.config, self.algorithm, self._step_of = config, algorithm, step_of
        self.counts: Counter[str] = Counter()
        """Number of replays by group id."""
        self._groups: dict[str, StoredGroup] = {}

    def add(self, groups: Iterable[Group], trained: Iterable[EpisodeResult]) -> None:
        """Keep groups of which a step has just trained these episodes."""
        if self.config.replay_groups:
            ids = frozenset(result.episode_id for result in trained)
            self._groups |= {group.id: StoredGroup(group.id, group.number, [*group.scored], ids) for group in groups}

    def take(self, step: int) -> list[TrainingSample]:
        """Return the samples to replay in the training step after `step`, and count their groups as replayed."""
        if not self.config.replay_groups:
            return []
        for group in [group for group in self._groups.values() if self._age(group, step) > self._max_age]:
            del self._groups[group.id], self.counts[group.id]
        order = sorted(self._groups.values(), key=lambda one: (self.counts[one.id], one.mean_score, one.number))
        samples: list[TrainingSample] = []
        for group in order[: self.config.replay_groups]:
            self.counts[group.id] += 1
            samples += groups_to_samples([group], self.algorithm, group.is_trained)
        if self.config.replay_best_only:
            samples = [sample for sample in samples if sample.advantage > 0]
        return [replace(sample, is_replayed=True) for sample in samples]

    @property
    def _max_age(self) -> int:
        return self.config.max_replay_staleness

    def _age(self, group: StoredGroup, step: int) -> int:
        """Return the age of the oldest weights that sampled a trained episode, in steps."""
        return max((step - self._step_of(one.version_min) for one in group.scored if group.is_trained(one)), default=0)

    def restore(self, run: Run, step: int, counts: Mapping[str, int]) -> None:
        """Load the groups that earlier processes trained and `take` may return after `step`."""
        if not self.config.replay_groups:
            return
        members: defaultdict[str, list[EpisodeRow]] = defaultdict(list)
        for row in run.episodes(TRAIN):
            if row.group_id is not None and row.state in ("trained", "stale"):
                members[row.group_id].append(row)
        for group in run.groups("closed"):
            trained = {row.id: row for row in members[group.id] if row.state == "trained"}
            ages = [step - self._step_of(row.version_min or 0) for row in trained.values()]
            if ages and max(ages) <= self._max_age:
                scored = [load_result(run, row.id) for row in members[group.id]]
                self._groups[group.id] = StoredGroup(group.id, group.number, scored, frozenset(trained))
        self.counts = Counter({name: count for name, count in counts.items() if name in self._groups})
