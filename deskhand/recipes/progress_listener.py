"""Base class of listeners to the progress of a run.

Passed to the recipes; `reporting.terminal.TerminalDisplay` is the one of the command line. Every method may be left
out.
"""

from __future__ import annotations

from deskhand.recipes.step_report import StepReport


class ProgressListener:
    """Override the events to show or store. Listeners do not change results."""

    def log(self, text: str) -> None:
        """A permanent line of output."""

    def status(self, text: str) -> None:
        """The current activity."""

    def step(self, report: StepReport) -> None:
        """A training step finished."""

    def episodes(self, ended: int, trained: int, zero_variance: int, errored: int) -> None:
        """Numbers of training episodes so far."""

    def evaluated(self, name: str, done: int, total: int, successes: int, errored: int) -> None:
        """Numbers of held-out episodes: scored, total, successful, and errored attempts, which are retried."""

    def demonstrations(self, done: int, total: int, successes: int, errored: int) -> None:
        """Same numbers for demonstrations, which are episodes of training tasks."""

    def quota_wait(self, text: str) -> None:
        """Summary of the episodes that wait for quota; "" if there are none."""
