"""A check of rows in an SQLite file. Invariant: the database is the agent's work, so a copy is opened in which nothing can be
written, no other file attached and no query run without end.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from pydantic import Field

from deskhand.tasks.checks.base import UNREADABLE, CheckModel, GuestPath, quoted
from deskhand.tasks.checks.files import values_equal
from deskhand.tasks.task import CheckResult, StagedDesktopLike

MOST_STEPS = 20_000
"""Thousands of instructions of SQLite's machine that a query may take."""
MOST_ROWS = 10_000
_ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
_HARMFUL = ("load_extension", "readfile", "writefile", "edit")


class SqliteCheck(CheckModel):
    """The rows that a query gives; with `ordered: false` in any order. A log beside the file (-wal) is read with it."""

    path: GuestPath
    query: str = Field(pattern=r"(?is)^\s*(select|with)\b")
    rows: list[list[str | int | float | None]]
    ordered: bool = True
    within: float = Field(default=0.0, ge=0)

    async def measure(self, desktop: StagedDesktopLike) -> CheckResult:
        try:
            data = await desktop.pull(self.path)
        except UNREADABLE as error:
            return CheckResult(0.0, f"{self.path}: {error.strerror or 'no plain file'}")
        try:
            log = await desktop.pull(f"{self.path}-wal")
        except UNREADABLE:
            log = b""
        try:
            rows = await asyncio.to_thread(query, data, log, self.query)
        except sqlite3.Error as error:
            return CheckResult(0.0, f"{self.path}: the query fails: {error}")
        wanted = self.rows
        if not self.ordered:
            rows, wanted = sorted(rows, key=repr), sorted(wanted, key=repr)
        same = values_equal(rows, wanted, self.within)
        return CheckResult(float(same), f"{self.path}: {'as asked' if same else f'the rows are {quoted(rows)}'}")


def query(data: bytes, log: bytes, text: str) -> list[list[Any]]:
    """The first `MOST_ROWS` rows of a query on a database's bytes. Raises `sqlite3.Error`, also when they are no database."""
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
            steps = iter(range(MOST_STEPS))
            connection.set_progress_handler(lambda: next(steps, None) is None, 1000)
            return [list(row) for row in connection.execute(text).fetchmany(MOST_ROWS)]


def _allow(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    harmful = action not in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and second in _HARMFUL)
    return sqlite3.SQLITE_DENY if harmful else sqlite3.SQLITE_OK
