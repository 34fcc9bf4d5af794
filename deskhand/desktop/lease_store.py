"""Lease store: every lease of a pool, in memory or in an SQLite file (WAL).

Used by `desktop.pool` and `desktop.machine_pool`. An epoch is a fencing token. It rises with every lease and is sent
with every call, so a client that lost its lease gets an error instead of disturbing the next holder. A pool that is
killed takes its desktops with it; the next pool on the same file ends the leases it finds. If the file cannot be
written, e.g. on a full disk, no lease is granted, but leases still end.

Invariant: an epoch is issued once, and is valid only until its lease ends.
"""

from __future__ import annotations

import fcntl
import sqlite3
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from deskhand.errors import ConfigError, InfrastructureError

log = structlog.get_logger()
OWNER_DIED = "its pool was killed"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS leases (
    epoch INTEGER PRIMARY KEY AUTOINCREMENT, holder TEXT NOT NULL, desktop TEXT NOT NULL, ttl_s REAL,
    started_at REAL NOT NULL, ended_at REAL, reason TEXT
);
CREATE INDEX IF NOT EXISTS leases_active ON leases (ended_at) WHERE ended_at IS NULL;
"""


class LeaseExpired(InfrastructureError):
    """The lease has ended or is unknown. Nothing was performed."""


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """One row of the store. `ttl_s` None: the lease needs no heartbeat. Times are Unix timestamps in seconds."""

    epoch: int
    holder: str
    desktop: str
    """Label of the desktop."""
    ttl_s: float | None
    started_at: float
    ended_at: float | None = None
    reason: str | None = None


@dataclass
class _ActiveLease:
    ttl_s: float | None
    last_used_at: float = field(default_factory=time.monotonic)


class LeaseStore:
    """Leases of one pool, stored at `path`, or in memory if it is None. Thread-safe.

    `found` lists the leases that a killed pool left; they are ended. Raises `ConfigError` if another pool has the file
    open or it is not a lease store.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._active: dict[int, _ActiveLease] = {}
        self._closed = False
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
            self._rows.execute("PRAGMA journal_mode=WAL")
            self._rows.executescript(_SCHEMA)
            self.found = self._select("ended_at IS NULL")
        except sqlite3.DatabaseError as error:
            raise ConfigError(f"{path}: not a lease store ({error}); move it away") from error
        self._mark_ended([row.epoch for row in self.found], OWNER_DIED)

    def _select(self, condition: str) -> list[LeaseRow]:
        columns = "epoch, holder, desktop, ttl_s, started_at, ended_at, reason"
        return [
            LeaseRow(*row)
            for row in self._rows.execute(f"SELECT {columns} FROM leases WHERE {condition} ORDER BY epoch")
        ]

    def _mark_ended(self, epochs: list[int], reason: str) -> None:
        update = "UPDATE leases SET ended_at = ?, reason = ? WHERE epoch = ? AND ended_at IS NULL"
        self._rows.executemany(update, [(time.time(), reason, epoch) for epoch in epochs])

    def grant(self, holder: str, desktop: str, ttl_s: float | None = None) -> int:
        """Return a new epoch, higher than every earlier one. With `ttl_s` the lease expires without heartbeats.

        Raises `InfrastructureError` if the lease cannot be written.
        """
        insert = "INSERT INTO leases (holder, desktop, ttl_s, started_at) VALUES (?, ?, ?, ?)"
        with self._lock:
            try:
                epoch = self._rows.execute(insert, (holder, desktop, ttl_s, time.time())).lastrowid
            except sqlite3.Error as error:
                raise InfrastructureError(f"{self._path}: cannot write the lease ({error}); free disk space") from error
            assert epoch is not None
            self._active[epoch] = _ActiveLease(ttl_s)
        return epoch

    def check(self, epoch: int) -> None:
        """Count as a heartbeat of the lease. Raises `LeaseExpired` if it has ended."""
        with self._lock:
            if lease := self._active.get(epoch):
                lease.last_used_at = time.monotonic()
                return
            rows = [] if self._closed else self._select(f"epoch = {int(epoch)}")
            why = rows[0].reason if rows else "its pool is closed" if self._closed else "unknown lease"
        raise LeaseExpired(f"lease {epoch} has ended: {why}; take a new lease")

    def end(self, epoch: int, reason: str) -> bool:
        """End a lease; return whether it was active. If the write fails, the next pool on the file ends it."""
        with self._lock:
            if self._active.pop(epoch, None) is None:
                return False
            try:
                self._mark_ended([epoch], reason)
            except sqlite3.Error as error:
                log.warning("leases.write_failed", file=str(self._path), epoch=epoch, error=str(error))
        return True

    def expired(self) -> list[int]:
        """Return the epochs whose time to live has passed. Measured with the monotonic clock."""
        now = time.monotonic()
        with self._lock:
            return [
                epoch
                for epoch, lease in self._active.items()
                if lease.ttl_s is not None and now - lease.last_used_at > lease.ttl_s
            ]

    def active(self) -> list[LeaseRow]:
        """Return the leases that have not ended."""
        with self._lock:
            return self._select("ended_at IS NULL")

    def close(self) -> None:
        """Close the store. Active leases are found by the next pool. Idempotent."""
        with self._lock:
            self._closed = True
            self._active.clear()
            self._rows.close()
            if self._lock_file is not None:
                self._lock_file.close()
