"""Check `sqlite`: rows of a query on an SQLite file."""

from __future__ import annotations

from pydantic import Field

from deskhand.desktop.base import StageableDesktop
from deskhand.tasks import file_problems
from deskhand.tasks.checks.base import FactCheck, GuestPath, measure_file
from deskhand.tasks.guest_files import read_file
from deskhand.tasks.task import CheckResult


class SqliteCheck(FactCheck):
    """The rows of a query; with `ordered: false` in any order. A write-ahead log (-wal) is read too."""

    path: GuestPath
    query: str = Field(pattern=r"(?is)^\s*(select|with)\b")
    rows: list[list[str | int | float | None]]
    ordered: bool = True
    within: float = Field(default=0.0, ge=0)

    async def measure(self, desktop: StageableDesktop) -> CheckResult:
        log = await read_file(desktop, f"{self.path}-wal") or b""
        fields = self.model_dump(exclude={"path"})
        return await measure_file(desktop, self.path, file_problems.database_problem, fields, files=(log,))
