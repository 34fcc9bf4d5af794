"""Checks `window` and `process` of the desktop's state at the end.

Both are untrusted: programs choose their window titles and process names.
"""

from __future__ import annotations

import re

from pydantic import Field

from deskhand.desktop.base import StageableDesktop
from deskhand.errors import EvaluatorError
from deskhand.tasks.checks.base import FactCheck, quoted
from deskhand.tasks.task import CheckResult

PGREP_TIMEOUT_S = 10.0


class WindowCheck(FactCheck):
    """Number of windows whose `title` and `class` contain these texts (any case): at least one, or `count`."""

    needs_one_of = ("title", "class_")
    title: str | None = Field(default=None, min_length=1)
    class_: str | None = Field(default=None, alias="class", min_length=1)
    count: int | None = Field(default=None, ge=0)

    async def measure(self, desktop: StageableDesktop) -> CheckResult:
        windows = await desktop.windows()
        found = [
            window
            for window in windows
            if (self.title or "").lower() in window.title.lower()
            and (self.class_ or "").lower() in window.wm_class.lower()
        ]
        holds = bool(found) if self.count is None else len(found) == self.count
        titles = quoted([window.title for window in windows])
        return CheckResult(float(holds), f"{len(found)} windows, of {titles}", untrusted_source=True)


class ProcessCheck(FactCheck):
    """Whether a program runs, or with `running: false` does not. `name` is the kernel's name (15 characters)."""

    name: str = Field(min_length=1, max_length=15)
    running: bool = True

    async def measure(self, desktop: StageableDesktop) -> CheckResult:
        done = await desktop.run(["pgrep", "-x", "--", re.escape(self.name)], timeout_s=PGREP_TIMEOUT_S)
        if done.returncode not in (0, 1):
            message = done.stderr.decode(errors="replace").strip()[:200]
            raise EvaluatorError(f"pgrep exited with {done.returncode} in the guest ({message}); install procps there")
        runs = done.returncode == 0
        return CheckResult(
            float(runs == self.running), f"{self.name} {'runs' if runs else 'does not run'}", untrusted_source=True
        )
