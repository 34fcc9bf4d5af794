"""A run on disk. Invariant: whatever moment the process is killed at, the folder holds every finished episode once, and an
episode is marked as trained in the same transaction that points at the checkpoint which it went into.

```
<folder>/run.sqlite     runs, groups, episodes (record as JSON, token arrays as a safetensors blob), checkpoints, ledger, metrics
<folder>/frames/        screens by the SHA-256 of their pixels
<folder>/checkpoints/   folders written by the trainer
<folder>/metrics.jsonl  one line per step, rewritten from run.sqlite when it was torn
<folder>/events/        the same for TensorBoard
```

All methods are synchronous and may be called from any thread; call them off the event loop.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from deskhand.errors import ConfigError, InfrastructureError
from deskhand.store.frames import Frames
from deskhand.store.metrics import EventFile, Tracker, append_line, rewrite_lines

log = structlog.get_logger()

FORMAT = 1
TRAIN = "train"
"""The `purpose` of episodes that are for training; others are names of evaluations."""
_SCHEMA = """
CREATE TABLE runs (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE groups (
    id TEXT PRIMARY KEY, number INTEGER NOT NULL UNIQUE, family TEXT NOT NULL, seed INTEGER NOT NULL, state TEXT NOT NULL
);
CREATE TABLE episodes (
    id TEXT PRIMARY KEY, purpose TEXT NOT NULL, group_id TEXT, member INTEGER NOT NULL, task_id TEXT NOT NULL, family TEXT NOT NULL,
    seed INTEGER NOT NULL, split TEXT NOT NULL, state TEXT NOT NULL, cause TEXT, value REAL, reward REAL, first_click INTEGER,
    version_min INTEGER, version_max INTEGER, step INTEGER, started_at REAL NOT NULL, finished_at REAL, record TEXT, tensors BLOB
);
CREATE INDEX episodes_by_state ON episodes (purpose, state, cause);
CREATE INDEX episodes_by_group ON episodes (group_id);
CREATE TABLE checkpoints (step INTEGER PRIMARY KEY, version INTEGER NOT NULL, path TEXT NOT NULL, created_at REAL NOT NULL);
CREATE TABLE ledger (id INTEGER PRIMARY KEY CHECK (id = 1), books TEXT NOT NULL);
CREATE TABLE metrics (step INTEGER PRIMARY KEY, line TEXT NOT NULL);
"""
_FINISHED = ("state", "cause", "value", "reward", "first_click", "version_min", "version_max", "finished_at")


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """What the database can select by; the rest of an episode is in its record and its tensors."""

    id: str
    phase: str
    group_id: str | None
    member: int
    task_id: str
    family: str
    seed: int
    split: str
    state: str
    """in_flight, waiting, trained, zero_variance, stale, unscored; "scored" for evaluations."""
    cause: str | None = None
    value: float | None = None
    reward: float | None = None
    first_click: bool | None = None
    version_min: int | None = None
    version_max: int | None = None
    step: int | None = None
    """The step that it was trained in."""
    started_at: float = 0.0
    finished_at: float | None = None


_ROW = ", ".join(EpisodeRow.__slots__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    step: int
    version: int
    path: Path
    created_at: float


@dataclass(frozen=True, slots=True)
class GroupRow:
    id: str
    number: int
    family: str
    seed: int
    state: str
    """open, waiting, or closed."""


class Run:
    """One run folder. Use `create` or `open`."""

    def __init__(self, folder: Path, connection: sqlite3.Connection, lock_file: int | None) -> None:
        self.folder = folder
        self.frames = Frames(folder / "frames")
        self._connection = connection
        self._mutex = threading.RLock()
        self._lock_file = lock_file
        self._trackers: list[Tracker] = []

    @classmethod
    def create(cls, folder: Path, about: Mapping[str, Any]) -> Run:
        """Start a run in an empty or new folder; `about` (its configuration) is kept. Raises `ConfigError` when a run is there."""
        folder = Path(folder)
        if (folder / "run.sqlite").exists():
            raise ConfigError(f"{folder} already holds a run; resume it, or name another folder")
        try:
            (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{folder} cannot be made ({error.strerror}); name another folder") from error
        lock = _lock(folder)
        partial = folder / "run.sqlite.partial"
        try:
            _make(partial, {"format": FORMAT, "about": dict(about), "created_at": time.time()})
            partial.rename(folder / "run.sqlite")
        except (sqlite3.Error, OSError) as error:
            os.close(lock)
            raise ConfigError(
                f"{partial} cannot be written ({error}); free the disk, or name another folder"
            ) from error
        return cls(folder, _connect(folder), lock)

    @classmethod
    def open(cls, folder: Path, *, read_only: bool = False) -> Run:
        """Open a run that is there; only one process may have it open for writing. Raises `ConfigError`."""
        folder = Path(folder)
        if not (folder / "run.sqlite").exists():
            raise ConfigError(f"{folder} holds no run (no run.sqlite); start one, or name another folder")
        lock = None if read_only else _lock(folder)
        run = cls(folder, _connect(folder), lock)
        found = run._value("format")
        if found != FORMAT:
            run.close()
            raise ConfigError(f"{folder}/run.sqlite is of format {found}; this version reads format {FORMAT}")
        if not read_only:
            rewrite_lines(
                folder / "metrics.jsonl", [line for (line,) in run._all("SELECT line FROM metrics ORDER BY step")]
            )
        return run

    def close(self) -> None:
        """Idempotent."""
        with self._mutex:
            for tracker in self._trackers:
                try:
                    tracker.close()
                except Exception as error:
                    log.warning("tracker", error=f"{type(error).__name__}: {error}")
            self._trackers = []
            self._connection.close()
            if self._lock_file is not None:
                os.close(self._lock_file)
                self._lock_file = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def metadata(self) -> dict[str, Any]:
        """What `create` was given."""
        return self._value("about")

    # Groups and episodes.

    def open_group(self, group: GroupRow) -> None:
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO groups VALUES (?, ?, ?, ?, ?)",
                (group.id, group.number, group.family, group.seed, group.state),
            )

    def start_episode(self, row: EpisodeRow, books: Mapping[str, Any] | None = None) -> None:
        """An episode has begun; it is in flight until `finish_episode`."""
        values = [getattr(row, name) for name in EpisodeRow.__slots__]
        with self._transaction(books) as connection:
            connection.execute(f"INSERT INTO episodes ({_ROW}) VALUES ({', '.join('?' * len(values))})", values)

    def finish_episode(
        self,
        row: EpisodeRow,
        record: Mapping[str, Any],
        tensors: bytes,
        *,
        books: Mapping[str, Any] | None = None,
        states: Iterable[tuple[str, str]] = (),
        group: tuple[str, str] | None = None,
    ) -> None:
        """Journal a finished episode with its record and tensors.

        `states` are (episode id, state) of group members that its end decided, `group` is (group id, state) when it closed.
        All of it is one transaction. Raises `InfrastructureError` when the episode is not in flight: it is never journaled twice.
        """
        values = [getattr(row, name) for name in _FINISHED] + [json.dumps(record), tensors, row.id]
        query = f"UPDATE episodes SET {', '.join(f'{name}=?' for name in _FINISHED)}, record=?, tensors=?"
        with self._transaction(books) as connection:
            changed = connection.execute(f"{query} WHERE id=? AND state='in_flight'", values).rowcount
            if changed != 1:
                raise InfrastructureError(
                    f"episode {row.id} is not in flight in {self.folder}; it is not journaled a second time"
                )
            connection.executemany("UPDATE episodes SET state=? WHERE id=?", [(state, name) for name, state in states])
            if group is not None:
                connection.execute("UPDATE groups SET state=? WHERE id=?", (group[1], group[0]))

    def abandon_in_flight(self, books: Mapping[str, Any] | None = None, purpose: str = TRAIN) -> int:
        """Mark episodes that a killed process left in flight as unscored (infrastructure); returns how many."""
        with self._transaction(books) as connection:
            return connection.execute(
                "UPDATE episodes SET state='unscored', cause='infrastructure', finished_at=? WHERE state='in_flight' AND purpose=?",
                (time.time(), purpose),
            ).rowcount

    def commit(
        self,
        *,
        books: Mapping[str, Any],
        states: Mapping[str, tuple[str, int | None]] | None = None,
        closed_groups: Iterable[str] = (),
        checkpoint: Checkpoint | None = None,
        metrics: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        """What one or more steps did, as one transaction; then their metrics go to metrics.jsonl and to TensorBoard.

        `states`: episode id -> (state, step that it was trained in or None); every one must have been waiting.
        `metrics`: one mapping a step, each with its "step". Raises `InfrastructureError` when an episode was not waiting.
        """
        lines = [(entry["step"], json.dumps(entry), entry) for entry in metrics]
        with self._transaction(books) as connection:
            for name, (state, step) in (states or {}).items():
                query = "UPDATE episodes SET state=?, step=? WHERE id=? AND state='waiting'"
                if connection.execute(query, (state, step, name)).rowcount != 1:
                    raise InfrastructureError(
                        f"episode {name} was not waiting in {self.folder}; it is not trained a second time"
                    )
            connection.executemany("UPDATE groups SET state='closed' WHERE id=?", [(name,) for name in closed_groups])
            connection.executemany("INSERT INTO metrics VALUES (?, ?)", [line[:2] for line in lines])
            if checkpoint is not None:
                path = str(checkpoint.path.relative_to(self.folder))
                connection.execute(
                    "INSERT INTO checkpoints VALUES (?, ?, ?, ?)",
                    (checkpoint.step, checkpoint.version, path, checkpoint.created_at),
                )
        if lines and not any(isinstance(tracker, EventFile) for tracker in self._trackers):
            self._trackers.append(EventFile(self.folder / "events"))
        for step, line, entry in lines:
            try:
                append_line(self.folder / "metrics.jsonl", line)
                for tracker in self._trackers:
                    tracker.add(step, entry)
            except (
                Exception
            ) as error:  # the database has them; `open` writes the file anew, and a tracker is somebody else's code
                log.warning("metrics", step=step, error=f"{type(error).__name__}: {error}")

    def start_segment(self, step: int, first: int) -> None:
        """Note that the weights after the step that follows `step` have the version `first` (`rollout.lineage`)."""
        lives = [*self.segments(), (step, first)]
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO runs VALUES ('lives', ?)", (json.dumps(lives),))

    def track(self, tracker: Tracker) -> None:
        """Send the metrics of every step that is committed from now on there, too; `close` closes it."""
        self._trackers.append(tracker)

    # Reading.

    def episodes(
        self, purpose: str | None = None, state: str | None = None, group_id: str | None = None
    ) -> list[EpisodeRow]:
        """Episodes in the order of their start, narrowed by what is given."""
        wanted = {"purpose": purpose, "state": state, "group_id": group_id}
        given = {key: value for key, value in wanted.items() if value is not None}
        where = " AND ".join(f"{key}=?" for key in given) or "1"
        rows = self._all(f"SELECT {_ROW} FROM episodes WHERE {where} ORDER BY started_at, rowid", tuple(given.values()))
        return [_episode_row(row) for row in rows]

    def episode(self, episode_id: str) -> tuple[EpisodeRow, dict[str, Any], bytes]:
        """A finished episode's row, record and tensors. Raises `ConfigError` for an unknown or unfinished one."""
        found = self._all(f"SELECT {_ROW}, record, tensors FROM episodes WHERE id=?", (episode_id,))
        if not found or found[0][-2] is None:
            raise ConfigError(f"{self.folder} has no finished episode {episode_id}")
        *row, record, tensors = found[0]
        return _episode_row(row), json.loads(record), tensors

    def has_record(self, episode_id: str) -> bool:
        """Whether the episode was journaled; those that a kill interrupted were not."""
        return bool(self._all("SELECT 1 FROM episodes WHERE id=? AND record IS NOT NULL", (episode_id,)))

    def groups(self, state: str | None = None) -> list[GroupRow]:
        """Groups by number."""
        where, values = ("WHERE state=?", (state,)) if state else ("", ())
        return [
            GroupRow(*row)
            for row in self._all(f"SELECT id, number, family, seed, state FROM groups {where} ORDER BY number", values)
        ]

    def count_states(self, purpose: str = TRAIN) -> dict[tuple[str, str | None], int]:
        """Number of episodes by (state, cause), counted from the episodes themselves."""
        rows = self._all(
            "SELECT state, cause, COUNT(*) FROM episodes WHERE purpose=? GROUP BY state, cause", (purpose,)
        )
        return {(state, cause): count for state, cause, count in rows}

    def episode_counts(self) -> dict[str, Any]:
        """The ledger as it was last written; empty for a new run."""
        return json.loads(self._all("SELECT books FROM ledger")[0][0])

    def checkpoints(self) -> list[Checkpoint]:
        """All that were ever committed, by step; the trainer removes the folders of old ones."""
        rows = self._all("SELECT step, version, path, created_at FROM checkpoints ORDER BY step")
        return [Checkpoint(step, version, self.folder / path, created_at) for step, version, path, created_at in rows]

    def checkpoint(self, step: int | None = None) -> Checkpoint | None:
        """The checkpoint of a step, or the last one; None when there is none."""
        found = [each for each in self.checkpoints() if step is None or each.step == step]
        return found[-1] if found else None

    def segments(self) -> list[tuple[int, int]]:
        """What `begin_life` noted, in order."""
        return [(step, first) for step, first in self._value("lives") or ()]

    def newest_version(self) -> int:
        """The highest version of the weights that sampled a token of a training episode; -1 where none is kept."""
        found = self._all("SELECT MAX(version_max) FROM episodes WHERE purpose=?", (TRAIN,))[0][0]
        return -1 if found is None else found

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of every step, in order."""
        return [json.loads(line) for (line,) in self._all("SELECT line FROM metrics ORDER BY step")]

    def _value(self, key: str) -> Any:
        found = self._all("SELECT value FROM runs WHERE key=?", (key,))
        return json.loads(found[0][0]) if found else None

    def _all(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._mutex:
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self, books: Mapping[str, Any] | None = None) -> Iterator[sqlite3.Connection]:
        """All of the block, or nothing. Raises `InfrastructureError` when the disk refuses."""
        with self._mutex:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                if books is not None:
                    self._connection.execute("UPDATE ledger SET books=?", (json.dumps(books),))
                self._connection.execute("COMMIT")
            except BaseException as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError):
                    path = self.folder / "run.sqlite"
                    raise InfrastructureError(
                        f"{path} cannot be written ({error}); free the disk, then go on with the run"
                    ) from error
                raise


def _episode_row(row: Iterable[Any]) -> EpisodeRow:
    made = EpisodeRow(*row)
    return made if made.first_click is None else replace(made, first_click=bool(made.first_click))


def _make(path: Path, rows: Mapping[str, Any]) -> None:
    """A new database, with what is known of the run."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(_SCHEMA)
        connection.executemany(
            "INSERT INTO runs VALUES (?, ?)", [(key, json.dumps(value)) for key, value in rows.items()]
        )
        connection.execute("INSERT INTO ledger VALUES (1, '{}')")
        connection.commit()


def _connect(folder: Path) -> sqlite3.Connection:
    path = folder / "run.sqlite"
    try:
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=30.0)
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"{path} cannot be opened: {error}; restore it, or name another folder") from error
    try:
        connection.execute("SELECT value FROM runs").fetchone()  # before anything is written to what may be no run
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
    except sqlite3.DatabaseError as error:
        connection.close()
        raise ConfigError(f"{path} holds no run ({error}); restore it, or name another folder") from error
    return connection


def _lock(folder: Path) -> int:
    """An exclusive lock that ends with the process. Raises `ConfigError` when another process holds it."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(
            f"{folder / 'lock'} cannot be written ({error.strerror}); name a folder that you may write to"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise ConfigError(f"{folder} is in use by another process; wait for it, or name another folder") from None
    return descriptor
