"""Check `sqlite`: rows of a query on an SQLite file.

Invariant: the agent wrote the database, so the query runs on a copy, read-only, without attached files or extensions,
and with a bounded number of instructions.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from pydantic import Field

from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.checks.base import FactCheck, GuestPath, quoted
from deskhand.tasks.checks.files import values_equal
from deskhand.tasks.guest_files import UNREADABLE, read_file
from deskhand.tasks.task import CheckResult

MAX_VM_STEPS = 20_000
"""Maximum instructions of SQLite's virtual machine, in thousands."""
MAX_ROWS = 10_000
_ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
_FORBIDDEN_FUNCTIONS = ("load_extension", "readfile", "writefile", "edit")


class SqliteCheck(FactCheck):
    """The rows of a query; with `ordered: false` in any order. A write-ahead log (-wal) is read too."""

    path: GuestPath
    query: str = Field(pattern=r"(?is)^\s*(select|with)\b")
    rows: list[list[str | int | float | None]]
    ordered: bool = True
    within: float = Field(default=0.0, ge=0)

    async def measure(self, desktop: StageableDesktop) -> CheckResult:
        try:
            data = await desktop.pull(self.path)
        except UNREADABLE as error:
            return CheckResult(0.0, f"{self.path}: {error.strerror or 'not a regular file'}")
        log = await read_file(desktop, f"{self.path}-wal") or b""
        try:
            rows = await asyncio.to_thread(query, data, log, self.query)
        except sqlite3.Error as error:
            return CheckResult(0.0, f"{self.path}: the query fails: {error}")
        wanted = self.rows
        if not self.ordered:
            rows, wanted = sorted(rows, key=repr), sorted(wanted, key=repr)
        same = values_equal(rows, wanted, self.within)
        return CheckResult(float(same), f"{self.path}: {'as expected' if same else f'the rows are {quoted(rows)}'}")


def query(data: bytes, log: bytes, text: str) -> list[list[Any]]:
    """Return at most `MAX_ROWS` rows of a query on a database's bytes. Raises `sqlite3.Error`."""
    with tempfile.TemporaryDirectory(prefix="deskhand-check-") as folder:
        path = Path(folder) / "database"
        path.write_bytes(data)
        if log:
            path.with_name("database-wal").write_bytes(log)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA query_only = ON")
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            connection.set_authorizer(_allow)
            steps = iter(range(MAX_VM_STEPS))
            connection.set_progress_handler(lambda: next(steps, None) is None, 1000)
            return [list(row) for row in connection.execute(text).fetchmany(MAX_ROWS)]


def _allow(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    is_forbidden = action not in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and second in _FORBIDDEN_FUNCTIONS)
    return sqlite3.SQLITE_DENY if is_forbidden else sqlite3.SQLITE_OK
