"""Which weights a version names. Invariant: no two weights of a run ever have one version, although a kill undoes steps.

A process that is killed has published weights that were in no checkpoint yet, and episodes are kept which they sampled. The next
process goes on from the checkpoint, whose weights keep their version, and counts on from beyond every version that a kept token
has. What was sampled by weights that no longer exist so keeps versions of its own: it is trained, with its recorded log-probs,
which are exact, and never passes for what the weights of now have sampled. Its age is counted from the step that its weights were
at, because it is what that step, which is made again, would have had.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VersionSegment:
    """A stretch of versions that rise by one a step. `step`: of the checkpoint that it goes on from; `first`: the version of the
    weights after the step that follows."""

    step: int
    first: int


class WeightVersions:
    """The lives of a run, the first one implied. `lives`: (step, first) of the others, in order."""

    def __init__(self, lives: Iterable[tuple[int, int]] = ()) -> None:
        self.lives = [VersionSegment(0, 1), *(VersionSegment(step, first) for step, first in lives)]

    @property
    def offset(self) -> int:
        """By how much versions to come are ahead of their steps."""
        return self.lives[-1].first - self.lives[-1].step - 1

    def resume(self, step: int, version: int, newest: int) -> VersionSegment | None:
        """Go on from the checkpoint of `step`, whose weights have `version`; `newest`: the highest of any kept token.

        Returns the new life where one begins: where versions were used beyond the checkpoint's.
        """
        life = VersionSegment(step, newest + 1)
        if newest <= version or life == self.lives[-1]:
            return None
        self.lives.append(life)
        return life

    def step_of(self, version: int) -> int:
        """The steps that the weights of a version had behind them."""
        life = self._life(version)
        return life.step + 1 + version - life.first

    def is_rolled_back(self, version: int) -> bool:
        """Whether its weights no longer exist: a later life goes on from before them."""
        life, step = self._life(version), self.step_of(version)
        return any(later.step < step for later in self.lives if later.first > life.first)

    def _life(self, version: int) -> VersionSegment:
        return next((life for life in reversed(self.lives) if life.first <= version), self.lives[0])
