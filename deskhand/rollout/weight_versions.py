"""Mapping from weight versions to training steps.

Used by `recipes.training_loop`. A killed process may have published weights that are in no checkpoint, and stored
episodes sampled with them. After a resume, new weights are numbered from above the highest version of any stored token.
Episodes of rolled-back weights keep their versions; they are still trained, because their recorded log-probs are exact.
Their age counts from the step that their weights had reached.

Invariant: no two weights of a run share a version.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VersionSegment:
    """Consecutive versions, one per step."""

    step: int
    """Step of the checkpoint that the segment continues from."""
    first: int
    """Version of the weights after step `step + 1`."""


class WeightVersions:
    """Version segments of a run. `segments`: (step, first version) of all but the initial one, in order."""

    def __init__(self, segments: Iterable[tuple[int, int]] = ()) -> None:
        self.segments = [VersionSegment(0, 1), *(VersionSegment(step, first) for step, first in segments)]

    @property
    def offset(self) -> int:
        """Difference between future versions and their steps."""
        return self.segments[-1].first - self.segments[-1].step - 1

    def resume(self, step: int, version: int, newest: int) -> VersionSegment | None:
        """Continue from the checkpoint of `step`, whose weights have `version`.

        `newest` is the highest version of any stored token. Return the new segment, or None if none is needed.
        """
        segment = VersionSegment(step, newest + 1)
        if newest <= version or segment == self.segments[-1]:
            return None
        self.segments.append(segment)
        return segment

    def step_of(self, version: int) -> int:
        """Return the number of steps behind the weights of a version."""
        segment = self._segment_of(version)
        return segment.step + 1 + version - segment.first

    def is_rolled_back(self, version: int) -> bool:
        """Return whether a later segment continues from before the weights of a version."""
        segment, step = self._segment_of(version), self.step_of(version)
        return any(later.step < step for later in self.segments if later.first > segment.first)

    def _segment_of(self, version: int) -> VersionSegment:
        return next((each for each in reversed(self.segments) if each.first <= version), self.segments[0])
