"""SQLite schema of a run directory: create, connect, check and lock. Used by `store.run`."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from deskhand.errors import ConfigError, InfrastructureError

_SCHEMA = """
CREATE TABLE runs (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE groups (
    id TEXT PRIMARY KEY, number INTEGER NOT NULL UNIQUE, family TEXT NOT NULL, seed INTEGER NOT NULL,
    state TEXT NOT NULL
);
CREATE TABLE episodes (
    id TEXT PRIMARY KEY, phase TEXT NOT NULL, group_id TEXT, member INTEGER NOT NULL,
    task_id TEXT NOT NULL, family TEXT NOT NULL, seed INTEGER NOT NULL, split TEXT NOT NULL,
    state TEXT NOT NULL, cause TEXT, value REAL, reward REAL, first_click INTEGER,
    version_min INTEGER, version_max INTEGER, step INTEGER,
    started_at REAL NOT NULL, finished_at REAL, record TEXT, tensors BLOB
);
CREATE INDEX episodes_by_state ON episodes (phase, state, cause);
CREATE INDEX episodes_by_group ON episodes (group_id);
CREATE TABLE checkpoints (
    step INTEGER PRIMARY KEY, version INTEGER NOT NULL, path TEXT NOT NULL, created_at REAL NOT NULL
);
CREATE TABLE episode_counts (id INTEGER PRIMARY KEY CHECK (id = 1), counts TEXT NOT NULL);
CREATE TABLE segments (number INTEGER PRIMARY KEY, step INTEGER NOT NULL, first_version INTEGER NOT NULL);
CREATE TABLE metrics (step INTEGER PRIMARY KEY, line TEXT NOT NULL);
"""


def create_database(path: Path, rows: Mapping[str, Any]) -> None:
    """Write a new database with these run metadata."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(_SCHEMA)
        connection.executemany(
            "INSERT INTO runs VALUES (?, ?)", [(key, json.dumps(value)) for key, value in rows.items()]
        )
        connection.execute("INSERT INTO episode_counts VALUES (1, '{}')")
        connection.commit()


def connect(folder: Path, *, check: bool = False) -> sqlite3.Connection:
    """Open the database of a run; `check` reads all of it first. Raises `ConfigError` if it is damaged or not a run.

    Without `check`, a run that was closed can be read on a read-only disk, where SQLite cannot make its own files.
    """
    path, log = folder / "run.sqlite", folder / "run.sqlite-wal"
    is_closed = not (log.exists() and log.stat().st_size)
    is_immutable = not check and is_closed and not os.access(folder, os.W_OK)
    address = f"{path.resolve().as_uri()}?immutable=1" if is_immutable else path
    try:
        connection = sqlite3.connect(
            address, check_same_thread=False, isolation_level=None, timeout=30.0, uri=is_immutable
        )
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"{path}: cannot be opened ({error}); restore it or choose another folder") from error
    try:
        connection.execute("SELECT value FROM runs").fetchone()  # before writing to a file that may not be a run
        if check and (found := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            connection.close()
            raise damaged(path, found)
        if not is_immutable:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the second: SQLite's message quotes damaged names
        connection.close()
        if is_disk_error(error):
            raise unwritable(path, error) from error
        raise ConfigError(f"{path}: not a run ({error}); restore it or choose another folder") from error
    return connection


def is_damage(error: BaseException) -> bool:
    """Return whether SQLite found wrong bytes in the file; other errors are of the disk or the program.

    SQLite quotes a damaged schema in its message, which Python then cannot decode.
    """
    return isinstance(error, UnicodeDecodeError) or getattr(error, "sqlite_errorcode", 0) & 0xFF in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    )


def is_disk_error(error: Exception) -> bool:
    """Return whether the disk or the file system failed, e.g. because it is full or read-only."""
    codes = sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in codes


def unwritable(path: Path, error: Exception) -> ConfigError:
    """Return the error for a database that cannot be written."""
    return ConfigError(f"{path}: cannot be written ({error}); free disk space, or make the folder writable")


def damaged(path: Path, what: object) -> ConfigError:
    """Return the error for a damaged database."""
    reason = " ".join(str(what).split())[:200]
    return ConfigError(f"{path}: damaged ({reason}); restore a copy, or read what is left with sqlite3's .recover")


def lock_folder(folder: Path) -> int:
    """Take an exclusive lock that ends with the process; raise `ConfigError` if another process holds it."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(
            f"{folder / 'lock'}: cannot be written ({error.strerror}); choose a writable folder"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise ConfigError(f"{folder}: in use by another process; wait for it or choose another folder") from None
    return descriptor


def disk_full(path: Path, error: BaseException) -> InfrastructureError:
    """Return the error for a transaction of a run that the disk did not take."""
    return InfrastructureError(f"{path}: cannot be written ({error}); free disk space, then resume")


def lost_write(folder: Path, episode: str, state: str) -> InfrastructureError:
    """Return the error for an episode that is not in the state that this process expects."""
    return InfrastructureError(f"{folder}: episode {episode} is not {state}; resume the run")
