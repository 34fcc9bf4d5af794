"""Who is told of a run's progress. Invariant: no method has to be overridden, and a listener changes no result."""

from __future__ import annotations

from deskhand.recipes.step_report import StepReport


class ProgressListener:
    """Override what is to be shown or kept."""

    def log(self, text: str) -> None:
        """A line that stays."""

    def status(self, text: str) -> None:
        """What is going on now."""

    def step(self, progress: StepReport) -> None:
        """A training step was taken."""

    def episodes(self, ended: int, trained: int, equal: int, unscored: int) -> None:
        """Training episodes so far; `equal` are those of groups whose rewards were all equal."""

    def evaluated(self, name: str, done: int, total: int, successes: int, lost: int) -> None:
        """Held-out episodes that have a score so far; `lost` tries had none, and are made again."""

    def demonstrations(self, done: int, total: int, successes: int, lost: int) -> None:
        """The same of demonstrations; they are of training tasks."""

    def quota_wait(self, text: str) -> None:
        """What waits for a quota now; "" when nothing does."""
