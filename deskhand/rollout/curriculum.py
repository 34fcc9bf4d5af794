"""Choice of the training tasks by what can be learned from them.

Used by `recipes.assemble` if `loop.curriculum` is "frontier"; call a `Curriculum` with the number of a group. Families
are drawn in proportion to the predicted probability that the rewards of a group differ (`SuccessStatistics.signal`):

    share(f) = uniform_share / F + (1 - uniform_share) * signal(f) / sum of the signals of all F families

A family that is always solved, or never, has little signal; the uniform share and the decay of its statistics let it
return when the policy has changed. Every group has a variant of its own.

Sources: sampling by learnability, Rutherford et al. (arXiv:2408.15099); groups without signal, the dynamic sampling of
DAPO (arXiv:2503.14476, section 3.2), which plays such groups first and drops them afterwards.

Invariant: the task of a group follows from the seed, its number and the statistics when it was opened; an opened group
    keeps its task after a resume, because the run stores family and seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from deskhand.errors import ConfigError
from deskhand.rollout.success_statistics import SuccessStatistics
from deskhand.store.run import GroupRow
from deskhand.tasks.task import Task


class Curriculum:
    """Function from the number of a group to its task. `make(family, seed)` returns a variant of a family and
    `seed_of(number)` the seed of a group's variant; `seed` is that of the draws."""

    def __init__(
        self,
        families: Sequence[str],
        make: Callable[[str, int], Task],
        seed_of: Callable[[int], int],
        *,
        uniform_share: float,
        seed: int = 0,
    ) -> None:
        self.families, self.make, self.seed_of = list(families), make, seed_of
        self.uniform_share, self.seed = uniform_share, seed
        self._statistics: SuccessStatistics | None = None
        self._opened: dict[int, tuple[str, int]] = {}

    def follow(self, statistics: SuccessStatistics, opened: Iterable[GroupRow] = ()) -> None:
        """Choose by these statistics from now on; the groups in `opened` keep their tasks.

        Raises `ConfigError` if an unfinished group is of a family that is no longer trained.
        """
        self._statistics = statistics
        for group in opened:
            if group.state != "closed" and group.family not in self.families:
                raise ConfigError(
                    f"suite: group {group.number} was started with family {group.family}, which is not trained any "
                    "more; resume with the original families"
                )
            self._opened[group.number] = group.family, group.seed

    def shares(self) -> dict[str, float]:
        """Return the probability of each family; uniform before `follow`."""
        count = len(self.families)
        if self._statistics is None:
            return dict.fromkeys(self.families, 1.0 / count)
        signals = np.array([self._statistics.signal(family) for family in self.families])
        by_signal = signals / signals.sum() if signals.sum() > 0 else np.full(count, 1.0 / count)
        shares = self.uniform_share / count + (1.0 - self.uniform_share) * by_signal
        return dict(zip(self.families, shares.tolist(), strict=True))

    def __call__(self, number: int) -> Task:
        if number not in self._opened:
            shares = np.array([*self.shares().values()])
            drawn = np.random.default_rng([self.seed, number]).choice(len(shares), p=shares / shares.sum())
            self._opened[number] = self.families[drawn], self.seed_of(number)
        return self.make(*self._opened[number])
