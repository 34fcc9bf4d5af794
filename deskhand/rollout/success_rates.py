"""Shares with their uncertainty. Invariant: tries of one task are not counted as if they were tries of several tasks.

Pure functions on counts; nothing here knows of episodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z_95 = 1.959963984540054


@dataclass(frozen=True)
class Proportion:
    """`hits` of `total` with the Wilson 95 % interval.

    `effective`: how many independent tries the total is worth (`effective_total`); None when each is of another task.
    """

    hits: int
    total: int
    effective: float | None = None

    @property
    def value(self) -> float:
        return self.hits / self.total if self.total else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """(0, 1) when nothing was counted."""
        if self.effective is None or not self.total:
            return wilson(self.hits, self.total)
        return wilson(self.value * self.effective, self.effective)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:6.1%} [{low:.1%}, {high:.1%}] of {self.total}"


def wilson(hits: float, total: float, z: float = Z_95) -> tuple[float, float]:
    """Score interval of a proportion (Wilson, JASA 22, 1927)."""
    if total == 0:
        return 0.0, 1.0
    share, square = hits / total, z * z
    middle = (share + square / (2 * total)) / (1 + square / total)
    half = z * math.sqrt(share * (1 - share) / total + square / (4 * total * total)) / (1 + square / total)
    return max(0.0, middle - half), min(1.0, middle + half)


def effective_sample_size(counts: Sequence[tuple[int, int]]) -> float:
    """How many independent tries the (hits, tries) of some tasks are worth, between the number of tasks and that of tries.

    Tries divided by the design effect, that is the variance of the share with tasks as the sampling unit (linearised ratio
    estimator) over that of independent tries (Kish, "Survey Sampling", 1965, section 8.2); with it the Wilson interval is
    that of Korn and Graubard (Survey Methodology 24, 1998). Where all tries agree the tasks count, once each.
    """
    counts = [(hits, tries) for hits, tries in counts if tries]
    tasks, total = len(counts), sum(tries for _, tries in counts)
    if tasks == total:
        return float(total)
    share = sum(hits for hits, _ in counts) / total
    if share in (0.0, 1.0) or tasks < 2:
        return float(tasks)
    between = sum((hits - tries * share) ** 2 for hits, tries in counts) * tasks / (tasks - 1) / total**2
    return min(float(total), max(float(tasks), share * (1 - share) / between if between else float(total)))


def pass_at(k: int, counts: Sequence[tuple[int, int]]) -> float:
    """Mean over tasks of the chance that one of `k` tries succeeds, estimated without bias from (hits, tries) of each.

    `1 - C(n - c, k) / C(n, k)` for c hits of n tries (Chen et al., arXiv:2107.03374, section 2.1). Tasks with fewer than `k`
    tries are left out; NaN when all are.
    """
    chances = [1.0 - math.comb(tries - hits, k) / math.comb(tries, k) for hits, tries in counts if tries >= k]
    return sum(chances) / len(chances) if chances else math.nan
