"""The book of leases. Invariant: an epoch is given out once, ever, and only one that has not ended is good for anything.

An epoch is a fencing token: it rises with every lease and goes with every call, so that a client that was thought dead, or that
outlived its pool, is told so instead of disturbing whoever came after it. The book is an SQLite file (WAL), or in memory for a pool
whose clients live in its own process. A pool that is killed takes its desktops with it; the next one on the same book finds their
leases and ends them. A book that cannot be written, as on a full disk, grants nothing, but every lease ends all the same.
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
    began_at REAL NOT NULL, ended_at REAL, reason TEXT
);
CREATE INDEX IF NOT EXISTS leases_held ON leases (ended_at) WHERE ended_at IS NULL;
"""


class LeaseExpired(InfrastructureError):
    """The lease that a call named is over, or never was: nothing was performed."""


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """One line of the book. `ttl_s` None: the lease needs no heartbeat. Times are seconds since 1970."""

    epoch: int
    holder: str
    desktop: str
    """The label of its desktop."""
    ttl_s: float | None
    began_at: float
    ended_at: float | None = None
    reason: str | None = None


@dataclass
class _Held:
    ttl_s: float | None
    heard_at: float = field(default_factory=time.monotonic)


class LeaseStore:
    """Opens the book at `path` for one pool, None: in memory. `found` are the leases that a killed pool left, now ended.

    Raises `ConfigError` when another pool has it open or it is no such book. May be used from any thread.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, _Held] = {}
        self._closed = False
        self._path = path
        self._guard = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._guard = path.with_name(f"{path.name}.lock").open("w")
            try:
                fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._guard.close()
                raise ConfigError(f"{path}: another pool keeps its leases here; end it, or name another file") from None
        try:
            self._rows = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None)
            self._rows.execute("PRAGMA journal_mode=WAL")
            self._rows.executescript(_SCHEMA)
            self.found = self._select("ended_at IS NULL")
        except sqlite3.DatabaseError as error:
            raise ConfigError(f"{path}: not a book of leases ({error}); move it away") from error
        self._end_row([row.epoch for row in self.found], OWNER_DIED)

    def _select(self, condition: str) -> list[LeaseRow]:
        columns = "epoch, holder, desktop, ttl_s, began_at, ended_at, reason"
        return [
            LeaseRow(*row)
            for row in self._rows.execute(f"SELECT {columns} FROM leases WHERE {condition} ORDER BY epoch")
        ]

    def _end_row(self, epochs: list[int], reason: str) -> None:
        update = "UPDATE leases SET ended_at = ?, reason = ? WHERE epoch = ? AND ended_at IS NULL"
        self._rows.executemany(update, [(time.time(), reason, epoch) for epoch in epochs])

    def grant(self, holder: str, desktop: str, ttl_s: float | None = None) -> int:
        """A new epoch, higher than all before it; with `ttl_s` it ends when it is not heard of for so long.

        Raises `InfrastructureError` when it cannot be written down."""
        insert = "INSERT INTO leases (holder, desktop, ttl_s, began_at) VALUES (?, ?, ?, ?)"
        with self._lock:
            try:
                epoch = self._rows.execute(insert, (holder, desktop, ttl_s, time.time())).lastrowid
            except sqlite3.Error as error:
                raise InfrastructureError(
                    f"{self._path}: the lease cannot be written down ({error}); free the disk"
                ) from error
            assert epoch is not None
            self._held[epoch] = _Held(ttl_s)
        return epoch

    def check(self, epoch: int) -> None:
        """Raises `LeaseEnded` unless the lease goes on; being used is being heard of."""
        with self._lock:
            if held := self._held.get(epoch):
                held.heard_at = time.monotonic()
                return
            rows = [] if self._closed else self._select(f"epoch = {int(epoch)}")
            why = rows[0].reason if rows else "its pool is closed" if self._closed else "there never was one"
        raise LeaseExpired(f"lease {epoch} is over: {why}; take a new lease")

    def end(self, epoch: int, reason: str) -> bool:
        """End a lease; whether it went on until now. When that cannot be written down, the next pool on the book finds it."""
        with self._lock:
            if self._held.pop(epoch, None) is None:
                return False
            try:
                self._end_row([epoch], reason)
            except sqlite3.Error as error:
                log.warning("book.not_written", book=str(self._path), epoch=epoch, error=str(error))
        return True

    def expired(self) -> list[int]:
        """Epochs whose holders have not been heard of for longer than they may. A clock that jumps ends none."""
        now = time.monotonic()
        with self._lock:
            return [
                epoch
                for epoch, held in self._held.items()
                if held.ttl_s is not None and now - held.heard_at > held.ttl_s
            ]

    def active(self) -> list[LeaseRow]:
        """Leases that go on."""
        with self._lock:
            return self._select("ended_at IS NULL")

    def close(self) -> None:
        """Idempotent. Leases that go on are found by the next pool."""
        with self._lock:
            self._closed = True
            self._held.clear()
            self._rows.close()
            if self._guard is not None:
                self._guard.close()
