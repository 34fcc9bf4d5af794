"""Checks of windows and processes as they are at the end. Invariant: their outcome is marked as guest-trusted: titles are what
programs say of themselves, and names what they were started by.
"""

from __future__ import annotations

import re

from pydantic import Field, model_validator

from deskhand.errors import EvaluatorError
from deskhand.tasks.checks.base import CheckModel, quoted
from deskhand.tasks.task import CheckResult, StagedDesktopLike

PGREP_S = 10.0


class WindowCheck(CheckModel):
    """How many windows have a piece of text in their `title` or `class` (in any case): at least one, `count`, or none (0)."""

    title: str | None = Field(default=None, min_length=1)
    class_: str | None = Field(default=None, alias="class", min_length=1)
    count: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _asks(self) -> WindowCheck:
        if self.title is None and self.class_ is None:
            raise ValueError("give title, class, or both")
        return self

    async def measure(self, desktop: StagedDesktopLike) -> CheckResult:
        windows = await desktop.windows()
        found = [
            window
            for window in windows
            if (self.title or "").lower() in window.title.lower()
            and (self.class_ or "").lower() in window.wm_class.lower()
        ]
        right = bool(found) if self.count is None else len(found) == self.count
        titles = quoted([window.title for window in windows])
        return CheckResult(float(right), f"{len(found)} windows, of {titles}", untrusted_source=True)


class ProcessCheck(CheckModel):
    """Whether a program of this name runs (the kernel's name of it: 15 characters at most), or with `running: false` does not."""

    name: str = Field(min_length=1, max_length=15)
    running: bool = True

    async def measure(self, desktop: StagedDesktopLike) -> CheckResult:
        done = await desktop.run(["pgrep", "-x", "--", re.escape(self.name)], timeout_s=PGREP_S)
        if done.returncode not in (0, 1):
            said = done.stderr.decode(errors="replace").strip()[:200]
            raise EvaluatorError(f"pgrep ended with {done.returncode} in the guest ({said}); install procps there")
        runs = done.returncode == 0
        return CheckResult(
            float(runs == self.running), f"{self.name} {'runs' if runs else 'does not run'}", untrusted_source=True
        )
