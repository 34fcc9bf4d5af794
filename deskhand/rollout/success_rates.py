"""Success rates with confidence intervals, and pass@k.

Used by `rollout.eval_loop`. Pure functions of counts. Several tries of one task are not treated as independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z_95 = 1.959963984540054


@dataclass(frozen=True)
class Proportion:
    """`hits` of `total` with a 95 % Wilson interval.

    `effective`: effective sample size (`effective_sample_size`); None if every try is of another task.
    """

    hits: int
    total: int
    effective: float | None = None

    @property
    def value(self) -> float:
        return self.hits / self.total if self.total else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper bound; (0, 1) if `total` is 0."""
        if self.effective is None or not self.total:
            return wilson(self.hits, self.total)
        return wilson(self.value * self.effective, self.effective)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:6.1%} [{low:.1%}, {high:.1%}] of {self.total}"


NOTHING = Proportion(0, 0)


def wilson(hits: float, total: float, z: float = Z_95) -> tuple[float, float]:
    """Return the score interval of a proportion (Wilson, JASA 22, 1927)."""
    if total == 0:
        return 0.0, 1.0
    share, square = hits / total, z * z
    middle = (share + square / (2 * total)) / (1 + square / total)
    half = z * math.sqrt(share * (1 - share) / total + square / (4 * total * total)) / (1 + square / total)
    return max(0.0, middle - half), min(1.0, middle + half)


def effective_sample_size(counts: Sequence[tuple[int, int]]) -> float:
    """Return the effective sample size of (hits, tries) by task, between the number of tasks and that of tries.

    It is the number of tries divided by the design effect: the variance with tasks as the sampling unit (linearized
    ratio estimator) over that of independent tries (Kish, "Survey Sampling", 1965, section 8.2). The Wilson interval
    with this size is that of Korn and Graubard (Survey Methodology 24, 1998). If all tries agree, it is the number of
    tasks.
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
    """Return the unbiased estimate of pass@k, averaged over tasks, from (hits, tries) by task.

    `1 - C(n - c, k) / C(n, k)` for c hits of n tries (Chen et al., arXiv:2107.03374, section 2.1). Tasks with fewer
    than `k` tries are excluded; NaN if none remains.
    """
    chances = [1.0 - math.comb(tries - hits, k) / math.comb(tries, k) for hits, tries in counts if tries >= k]
    return sum(chances) / len(chances) if chances else math.nan
