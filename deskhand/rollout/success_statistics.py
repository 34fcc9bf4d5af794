"""Success of the policy on task families and their variants, and what it says about the rewards of a group.

Used by `rollout.curriculum`, which chooses families with it, and by `recipes.training_loop`, which stops groups early.
An episode of the policy `age` training steps ago counts `decay ** age`, so that old weights are forgotten:

    alpha  = 1 + sum(decay**age * score)           beta posterior of success on a family (uniform prior)
    beta   = 1 + sum(decay**age * (1 - score))
    spread = 1 - E[p**n] - E[(1 - p)**n]           p ~ Beta(alpha, beta): probability that n episodes are not all equal
    E[p**n] = prod((alpha + i) / (alpha + beta + i), i = 0 .. n - 1)
    signal = (2 * spread + differing groups) / (2 + complete groups)       decayed counts of the family's groups

`signal` predicts that a group of n episodes has different rewards. Its prior is worth two groups, so the groups
themselves correct it: partial scores may never differ, and each variant may be either always solved or never. For
n = 2, `spread` is twice the learnability p * (1 - p) of Rutherford et al. (arXiv:2408.15099), averaged over the
posterior. Decayed posteriors are those of discounted Thompson sampling (Raj and Kalyani, arXiv:1707.09727).

Invariant: outages, and episodes in which the policy sampled nothing, do not count.
Invariant: all values follow from the stored episodes, whatever their order (sums are exact), so a resumed run has them
    bit for bit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import SAME_REWARD, Group
from deskhand.store.run import EpisodeRow, GroupRow
from deskhand.tasks.outcome import Scored

PRIOR_GROUPS = 2.0
"""Groups that the prediction from success is worth."""
MAX_FAMILIES = 32
"""Families with metrics of their own; a suite of task files has one per file."""
_Tallies = dict[int, tuple[Fraction, int]]
"""By training step: sum of values, and their number."""


def all_equal_probability(alpha: float, beta: float, count: int) -> float:
    """Return `E[p**count]` for p ~ Beta(alpha, beta): all of `count` episodes succeed."""
    return math.prod((alpha + i) / (alpha + beta + i) for i in range(count))


class SuccessStatistics:
    """Decayed statistics of one run.

    `group_size`: episodes per group; `decay`: weight of an episode per training step of age; `step_of`: training steps
    in the weights of a version; `now`: training steps in the engine's weights.
    """

    def __init__(
        self, group_size: int, decay: float, step_of: Callable[[int], int], now: Callable[[], int] = lambda: 0
    ) -> None:
        self.group_size, self.decay, self.step_of, self.now = group_size, decay, step_of, now
        self._scores: defaultdict[str, _Tallies] = defaultdict(dict)
        self._groups: defaultdict[str, _Tallies] = defaultdict(dict)

    def add(self, result: EpisodeResult) -> None:
        """Count an episode that ended; an errored one does not count."""
        if isinstance(result.outcome, Scored):
            self._add_score(result.family, result.version_min, result.outcome.value)

    def add_group(self, group: Group) -> None:
        """Count a complete group."""
        versions = [result.version_min for result in group.scored]
        self._add_group(group.task.family, versions, group.rewards)

    def restore(self, rows: Iterable[EpisodeRow], groups: Iterable[GroupRow]) -> None:
        """Count the stored training episodes and groups of earlier processes."""
        members: defaultdict[str | None, list[EpisodeRow]] = defaultdict(list)
        for row in rows:
            if row.value is not None and row.reward is not None and row.state != "errored":
                members[row.group_id].append(row)
                self._add_score(row.family, _version(row), row.value)
        for group in groups:
            if group.state != "open":
                own = members[group.id]
                self._add_group(group.family, [_version(row) for row in own], [row.reward or 0.0 for row in own])

    def _add_score(self, family: str, version: int, score: float) -> None:
        if version >= 0:
            _count(self._scores[family], self.step_of(version), Fraction(score))

    def _add_group(self, family: str, versions: Sequence[int], rewards: Sequence[float]) -> None:
        if len(rewards) > 1 and min(versions) >= 0:
            differs = max(rewards) - min(rewards) > SAME_REWARD
            _count(self._groups[family], self.step_of(min(versions)), Fraction(differs))

    def _decayed(self, tallies: _Tallies) -> tuple[float, float]:
        """Return the decayed sum of the values and of their number."""
        now = self.now()
        weights = {step: self.decay ** max(0, now - step) for step in tallies}
        total = math.fsum(weights[step] * float(value) for step, (value, _) in tallies.items())
        return total, math.fsum(weights[step] * count for step, (_, count) in tallies.items())

    def posterior(self, family: str) -> tuple[float, float]:
        """Return (alpha, beta) of the success on a family; (1, 1) for an unknown one."""
        total, count = self._decayed(self._scores.get(family, {}))
        return 1.0 + total, 1.0 + max(0.0, count - total)

    def signal(self, family: str) -> float:
        """Return the predicted probability that the rewards of the family's next group differ."""
        (alpha, beta), n = self.posterior(family), self.group_size
        spread = 1.0 - all_equal_probability(alpha, beta, n) - all_equal_probability(beta, alpha, n)
        differing, complete = self._decayed(self._groups.get(family, {}))
        return (PRIOR_GROUPS * max(0.0, spread) + differing) / (PRIOR_GROUPS + complete)

    def would_differ(self, family: str, scores: Sequence[float], count: int) -> float:
        """Return the probability that `count` more episodes of a variant are not all like the first ones.

        `scores`: those of its episodes so far, whose rewards are equal. The variant's posterior is the family's, worth
        at most `group_size` episodes, plus its own scores in full, because variants of a family differ in difficulty.
        Rewards may differ although scores do not (milestones, a reward function), so a second estimate follows from
        the family's groups, and the higher one counts: if one member of a group differs, in any place, it is among the
        last c of n with s c / n, and no member differs with 1 - s, where s is the family's signal.
        """
        alpha, beta = self.posterior(family)
        worth, total = min(1.0, self.group_size / (alpha + beta)), math.fsum(scores)
        alpha, beta = worth * alpha + total, worth * beta + len(scores) - total
        if 2 * total < len(scores):
            alpha, beta = beta, alpha
        signal = self.signal(family)
        later = signal * count / (len(scores) + count)
        return max(1.0 - all_equal_probability(alpha, beta, count), later / (1.0 - signal + later))

    def stops(self, group: Group, probability: float) -> bool:
        """Whether the members of a group that are not started would differ from those so far with less than this
        probability; for `GroupBuffer.stops`."""
        if probability <= 0:
            return False
        scores = [result.score for result in group.scored]
        return self.would_differ(group.task.family, scores, group.size - len(scores)) < probability

    def metrics(self) -> dict[str, float]:
        """Return the mean success and the signal of each family, by name; empty for a suite of many files."""
        if len(self._scores) > MAX_FAMILIES:
            return {}
        found: dict[str, float] = {}
        for family in sorted(self._scores):
            alpha, beta = self.posterior(family)
            found[f"family/{family}/success_mean"] = alpha / (alpha + beta)
            found[f"family/{family}/group_signal"] = self.signal(family)
        return found


def _version(row: EpisodeRow) -> int:
    return -1 if row.version_min is None else row.version_min


def _count(tallies: _Tallies, step: int, value: Fraction) -> None:
    total, count = tallies.get(step, (Fraction(0), 0))
    tallies[step] = total + value, count + 1
