"""Lease store: every lease of a pool, in memory or in an SQLite file (WAL).

Used by `desktop.pool` and `desktop.machine_pool`. An epoch is a fencing token. It rises with every lease and is sent
with every call, so a client that lost its lease gets an error instead of disturbing the next one. A pool that is killed
takes its desktops with it; the next pool on the same file ends the leases it finds. If the file cannot be written, e.g.
on a full disk, no lease is granted, but leases still end.

Invariant: an epoch is issued once.
"""

from __future__ import annotations

import fcntl
import sqlite3
import time
from pathlib import Path
from typing import NamedTuple

import structlog

from deskhand.errors import ConfigError, InfrastructureError
from deskhand.store.database import is_disk_error, unwritable

log = structlog.get_logger()
OWNER_DIED = "its pool was killed"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS leases (
    epoch INTEGER PRIMARY KEY AUTOINCREMENT, holder TEXT NOT NULL, desktop TEXT NOT NULL, ttl_s REAL,
    started_at REAL NOT NULL, ended_at REAL, reason TEXT
);
CREATE INDEX IF NOT EXISTS leases_active ON leases (ended_at) WHERE ended_at IS NULL;
"""


class LeaseRow(NamedTuple):
    """A lease of the desktop with this label. Times are Unix timestamps in seconds."""

    epoch: int
    desktop: str
    started_at: float
    ended_at: float | None
    reason: str | None


class LeaseStore:
    """Leases of one pool, stored at `path`, or in memory if it is None.

    `found` lists the leases that a killed pool left; they are ended. Raises `ConfigError` if another pool has the file
    open or it is not a lease store.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock_file = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock_file = path.with_name(f"{path.name}.lock").open("w")
            try:
                fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._lock_file.close()
                raise ConfigError(f"{path}: in use by another pool; stop it or choose another file") from None
        try:
            self._rows = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None)
            if (problem := self._rows.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(" ".join(problem.split()))
            self._rows.execute("PRAGMA journal_mode=WAL")
            self._rows.executescript(_SCHEMA)
            self.found = self.rows("ended_at IS NULL")
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if self._lock_file is not None:
                self._lock_file.close()
            if path is not None and is_disk_error(error):
                raise unwritable(path, error) from error
            raise ConfigError(f"{path}: not a lease store, or damaged ({error}); move it away") from error
        for row in self.found:
            self.end(row.epoch, OWNER_DIED)

    def rows(self, condition: str = "TRUE") -> list[LeaseRow]:
        """Return the leases, oldest first; `condition` is SQL."""
        query = f"SELECT {', '.join(LeaseRow._fields)} FROM leases WHERE {condition} ORDER BY epoch"
        return [LeaseRow(*row) for row in self._rows.execute(query)]

    def grant(self, desktop: str) -> int:
        """Return a new epoch, higher than every earlier one. Raises `InfrastructureError` if it cannot be written."""
        insert = "INSERT INTO leases (holder, desktop, started_at) VALUES ('', ?, ?)"
        try:
            epoch = self._rows.execute(insert, (desktop, time.time())).lastrowid
        except sqlite3.Error as error:
            raise InfrastructureError(f"{self._path}: cannot write the lease ({error}); free disk space") from error
        assert epoch is not None
        return epoch

    def end(self, epoch: int, reason: str) -> None:
        """End a lease. If the write fails, the next pool on the file ends it."""
        update = "UPDATE leases SET ended_at = ?, reason = ? WHERE epoch = ? AND ended_at IS NULL"
        try:
            self._rows.execute(update, (time.time(), reason, epoch))
        except sqlite3.Error as error:
            log.warning("leases.write_failed", file=str(self._path), epoch=epoch, error=str(error))

    def close(self) -> None:
        """Close the store. Active leases are found by the next pool. Idempotent."""
        self._rows.close()
        if self._lock_file is not None:
            self._lock_file.close()
