"""A check by a command that runs in the guest. Invariant: its outcome is marked as guest-trusted, since the agent could have
changed what the command says.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from deskhand.tasks.checks.base import CheckModel, quoted
from deskhand.tasks.task import CheckResult, StagedDesktopLike


class CommandCheck(CheckModel):
    """What a command says. `stdout` is all of its output without line feeds at the end, `contains` pieces of it."""

    run: list[str] = Field(min_length=1)
    returncode: int | None = 0
    """null: any."""
    stdout: str | None = None
    contains: list[str] = Field(default_factory=list)
    timeout_s: float = Field(default=10.0, gt=0, le=60)

    @model_validator(mode="after")
    def _asks(self) -> CommandCheck:
        if self.returncode is None and self.stdout is None and not self.contains:
            raise ValueError("give at least one of returncode, stdout, contains")
        return self

    async def measure(self, desktop: StagedDesktopLike) -> CheckResult:
        done = await desktop.run(list(self.run), timeout_s=self.timeout_s)
        said = done.stdout.decode("utf-8", errors="replace")
        wrong = None
        if self.returncode not in (None, done.returncode):
            wrong = f"ended with {done.returncode}"
        elif self.stdout is not None and said.rstrip("\n") != self.stdout.rstrip("\n"):
            wrong = f"said {quoted(said)}"
        elif missing := [piece for piece in self.contains if piece not in said]:
            wrong = f"did not say {quoted(missing[0])}"
        return CheckResult(float(wrong is None), f"{self.run[0]}: {wrong or 'as asked'}", untrusted_source=True)
