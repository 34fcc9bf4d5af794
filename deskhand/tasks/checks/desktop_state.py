"""Checks `window`, `process` and `command` of the desktop's state at the end.

All are untrusted: programs choose their window titles and process names, and the agent may have replaced the command.
"""

from __future__ import annotations

import re

from pydantic import Field

from deskhand.desktop.base import StageableDesktop
from deskhand.errors import EvaluatorError
from deskhand.tasks.checks.base import FactCheck
from deskhand.tasks.file_problems import quoted
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


class CommandCheck(FactCheck):
    """Exit code and output of a command. `stdout` ignores line feeds at the end; `contains` are parts of it."""

    needs_one_of = ("returncode", "stdout", "contains")
    run: list[str] = Field(min_length=1)
    returncode: int | None = 0
    """Expected exit code; null accepts any."""
    stdout: str | None = None
    contains: list[str] = Field(default_factory=list)
    timeout_s: float = Field(default=10.0, gt=0, le=60)

    async def measure(self, desktop: StageableDesktop) -> CheckResult:
        done = await desktop.run(list(self.run), timeout_s=self.timeout_s)
        output = done.stdout.decode("utf-8", errors="replace")
        problem = None
        if self.returncode not in (None, done.returncode):
            problem = f"exited with {done.returncode}"
        elif self.stdout is not None and output.rstrip("\n") != self.stdout.rstrip("\n"):
            problem = f"printed {quoted(output)}"
        elif missing := [piece for piece in self.contains if piece not in output]:
            problem = f"did not print {quoted(missing[0])}"
        return CheckResult(float(problem is None), f"{self.run[0]}: {problem or 'as expected'}", untrusted_source=True)
