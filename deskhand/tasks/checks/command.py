"""Check `command`: the output of a command in the guest. Untrusted, because the agent may have replaced the command."""

from __future__ import annotations

from pydantic import Field

from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.checks.base import FactCheck, quoted
from deskhand.tasks.task import CheckResult


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
