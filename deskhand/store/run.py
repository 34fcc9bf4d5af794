"""Run directories: episodes, groups, checkpoints and metrics in SQLite.

Used by `rollout.run_writer`, the recipes and the report; start with `Run.create` or `Run.open`.

```
<folder>/run.sqlite     run metadata, groups, episodes (JSON record, token arrays as a safetensors blob), checkpoints,
                        episode counts, metrics
<folder>/frames/        screenshots by the SHA-256 of their pixels
<folder>/checkpoints/   folders written by the trainer
<folder>/metrics.jsonl  one line per step, rewritten from run.sqlite if torn
<folder>/tensorboard/   the same metrics as TensorBoard events
```

Methods are blocking and thread-safe; call them off the event loop.

Invariant: after a kill at any moment the folder holds every finished episode once, and an episode is marked as trained
in the transaction that adds the checkpoint it was trained into.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import structlog

from deskhand.errors import ConfigError, InfrastructureError
from deskhand.store.database import connect, create_database, damaged, disk_full, is_damage, lock_folder, lost_write
from deskhand.store.frames import Frames
from deskhand.store.metrics import EventFile, Tracker
from deskhand.store.scrub import Scrubber, scrubber_of

log = structlog.get_logger()

FORMAT = 2
TRAIN, DEMONSTRATIONS = "train", "demonstrations"
"""Phases of training episodes and of demonstrations; other phases are names of evaluations."""
_FINISHED = ("state", "cause", "value", "reward", "first_click", "version_min", "version_max", "finished_at")


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """Columns of an episode; the rest is in its record and tensors."""

    id: str
    phase: str
    group_id: str | None
    member: int
    task_id: str
    family: str
    seed: int
    split: str
    state: str
    """in_flight, queued, trained, zero_variance, stale or errored; "scored" in evaluations."""
    cause: str | None = None
    value: float | None = None
    reward: float | None = None
    first_click: bool | None = None
    version_min: int | None = None
    version_max: int | None = None
    step: int | None = None
    """Step in which the episode was trained."""
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
    """open, queued or closed."""


class Run:
    """One run directory. Use `create` or `open`."""

    def __init__(self, folder: Path, connection: sqlite3.Connection, lock_file: int | None) -> None:
        self.folder = folder
        self.frames = Frames(folder / "frames")
        self._connection = connection
        self._mutex = threading.RLock()
        self._lock_file = lock_file
        self._trackers: list[Tracker] = []
        self._write_failure: InfrastructureError | None = None

    @classmethod
    def create(cls, folder: Path, metadata: Mapping[str, Any]) -> Run:
        """Start a run in an empty or new folder. Raises `ConfigError` if it contains a run or cannot be written."""
        folder = Path(folder)
        if (folder / "run.sqlite").exists():
            raise ConfigError(f"{folder}: already contains a run; resume it or choose another folder")
        try:
            (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be created ({error.strerror}); choose another folder") from error
        lock = lock_folder(folder)
        partial = folder / "run.sqlite.partial"
        try:
            create_database(partial, {"format": FORMAT, "metadata": dict(metadata), "created_at": time.time()})
            partial.rename(folder / "run.sqlite")
        except (sqlite3.Error, OSError) as error:
            os.close(lock)
            raise ConfigError(f"{partial}: cannot be written ({error}); free disk space") from error
        return cls(folder, connect(folder), lock)

    @classmethod
    def open(cls, folder: Path, *, read_only: bool = False) -> Run:
        """Open an existing run, for writing in one process at a time; a damaged database is not written to.

        Raises `ConfigError` if the folder has no run, has a damaged one or one of another format, or is in use.
        """
        folder = Path(folder)
        if not (folder / "run.sqlite").exists():
            raise ConfigError(f"{folder}: not a run directory (no run.sqlite); start a run or choose another folder")
        lock = None if read_only else lock_folder(folder)
        try:
            run = cls(folder, connect(folder, check=not read_only), lock)
        except BaseException:
            if lock is not None:
                os.close(lock)
            raise
        try:
            found = run._value("format")
            if found != FORMAT:
                raise ConfigError(f"{folder}: run format {found}, this version reads format {FORMAT}; start a new run")
            if not read_only:
                run._restore_metrics()
        except BaseException:
            run.close()
            raise
        return run

    def _restore_metrics(self) -> None:
        """Rewrite metrics.jsonl if a kill tore it or it is damaged."""
        path, rows = self.folder / "metrics.jsonl", self.rows("SELECT line FROM metrics ORDER BY step")
        data = "".join(f"{line}\n" for (line,) in rows).encode()
        try:
            if (path.read_bytes() if path.exists() else b"") != data:
                partial = path.with_suffix(".partial")
                partial.write_bytes(data)
                partial.replace(path)
        except OSError as error:  # the database has the metrics
            log.warning("metrics.write_failed", file=str(path), error=error.strerror)

    def close(self) -> None:
        """Close the trackers, the database and the lock. Idempotent."""
        with self._mutex:
            for tracker in self._trackers:
                try:
                    tracker.close()
                except Exception as error:
                    log.warning("tracker.failed", error=f"{type(error).__name__}: {error}")
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
        return self._value("metadata")

    @cached_property
    def _scrubber(self) -> Scrubber | None:
        return scrubber_of(self.metadata)

    def open_group(self, group: GroupRow) -> None:
        with self._transaction() as connection:
            connection.execute("INSERT INTO groups VALUES (?, ?, ?, ?, ?)", astuple(group))

    def start_episode(self, row: EpisodeRow, counts: Mapping[str, Any] | None = None) -> None:
        """Insert an episode that has started; it is in flight until `finish_episode`."""
        values = astuple(row)
        with self._transaction(counts) as connection:
            connection.execute(f"INSERT INTO episodes ({_ROW}) VALUES ({', '.join('?' * len(values))})", values)

    def finish_episode(
        self,
        row: EpisodeRow,
        record: Mapping[str, Any],
        tensors: bytes,
        *,
        counts: Mapping[str, Any] | None = None,
        states: Iterable[tuple[str, str]] = (),
        group: tuple[str, str] | None = None,
    ) -> None:
        """Store a finished episode with its record and tensors, in one transaction.

        `group`: (group id, new state), if the episode closed its group; `states`: (episode id, new state) of the other
        members. Raises `InfrastructureError` if the episode is not in flight or the disk cannot be written.
        """
        stored = record if self._scrubber is None else self._scrubber.value(record)
        values = [getattr(row, name) for name in _FINISHED] + [json.dumps(stored), tensors, row.id]
        query = f"UPDATE episodes SET {', '.join(f'{name}=?' for name in _FINISHED)}, record=?, tensors=?"
        with self._transaction(counts) as connection:
            if connection.execute(f"{query} WHERE id=? AND state='in_flight'", values).rowcount != 1:
                raise self._write_failure or lost_write(self.folder, row.id, "in flight")
            connection.executemany("UPDATE episodes SET state=? WHERE id=?", [(state, name) for name, state in states])
            if group is not None:
                connection.execute("UPDATE groups SET state=? WHERE id=?", (group[1], group[0]))

    def abandon_in_flight(self, counts: Mapping[str, Any] | None = None, phase: str = TRAIN) -> int:
        """Mark episodes that a killed process left in flight as errored (infrastructure) and return their number."""
        query = "UPDATE episodes SET state='errored', cause='infrastructure', finished_at=?"
        with self._transaction(counts) as connection:
            return connection.execute(f"{query} WHERE state='in_flight' AND phase=?", (time.time(), phase)).rowcount

    def commit(
        self,
        *,
        counts: Mapping[str, Any],
        states: Mapping[str, tuple[str, int | None]] | None = None,
        closed_groups: Iterable[str] = (),
        checkpoint: Checkpoint | None = None,
        metrics: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        """Store the results of one or more steps in one transaction, then send their metrics to the trackers.

        `states`: episode id -> (new state, step in which it was trained or None). Raises `InfrastructureError` if an
        episode is not queued or the disk cannot be written.
        """
        lines = [(entry["step"], json.dumps(entry), entry) for entry in metrics]
        with self._transaction(counts) as connection:
            for name, (state, step) in (states or {}).items():
                query = "UPDATE episodes SET state=?, step=? WHERE id=? AND state='queued'"
                if connection.execute(query, (state, step, name)).rowcount != 1:
                    raise self._write_failure or lost_write(self.folder, name, "queued")
            connection.executemany("UPDATE groups SET state='closed' WHERE id=?", [(name,) for name in closed_groups])
            connection.executemany("INSERT INTO metrics VALUES (?, ?)", [line[:2] for line in lines])
            if checkpoint is not None:
                path = str(checkpoint.path.relative_to(self.folder))
                values = (checkpoint.step, checkpoint.version, path, checkpoint.created_at)
                connection.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?)", values)
        if lines and not any(isinstance(tracker, EventFile) for tracker in self._trackers):
            self._trackers.append(EventFile(self.folder / "tensorboard"))
        for step, line, entry in lines:
            try:
                with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
                for tracker in self._trackers:
                    tracker.add(step, entry)
            # The database has the metrics and `open` rewrites the file; a tracker may be a user's code.
            except Exception as error:
                log.warning("metrics.write_failed", step=step, error=f"{type(error).__name__}: {error}")

    def start_segment(self, step: int, first: int) -> None:
        """Record that the weights after step `step + 1` have version `first` (see `rollout.weight_versions`)."""
        with self._transaction() as connection:
            connection.execute("INSERT INTO segments (step, first_version) VALUES (?, ?)", (step, first))

    def track(self, tracker: Tracker) -> None:
        """Send the metrics of later steps to `tracker` as well; `close` closes it."""
        self._trackers.append(tracker)

    def episodes(
        self, phase: str | None = None, state: str | None = None, group_id: str | None = None
    ) -> list[EpisodeRow]:
        """Return episodes in the order in which they started, filtered by the arguments."""
        filters = {"phase": phase, "state": state, "group_id": group_id}
        filters = {key: value for key, value in filters.items() if value is not None}
        where = " AND ".join(f"{key}=?" for key in filters) or "1"
        query = f"SELECT {_ROW} FROM episodes WHERE {where} ORDER BY started_at, rowid"
        return [_episode_row(row) for row in self.rows(query, tuple(filters.values()))]

    def episode(self, episode_id: str) -> tuple[EpisodeRow, dict[str, Any], bytes]:
        """Return row, record and tensors of a finished episode. Raises `ConfigError` for any other."""
        found = self.rows(f"SELECT {_ROW}, record, tensors FROM episodes WHERE id=?", (episode_id,))
        if not found or found[0][-2] is None:
            raise ConfigError(f"{self.folder}: no finished episode {episode_id}")
        *row, record, tensors = found[0]
        return _episode_row(row), self._parse(record), tensors

    def has_record(self, episode_id: str) -> bool:
        """Return whether the episode was stored; episodes interrupted by a kill were not."""
        return bool(self.rows("SELECT 1 FROM episodes WHERE id=? AND record IS NOT NULL", (episode_id,)))

    def guest_trusted_episodes(self, phase: str) -> set[str]:
        """Return the ids of episodes whose score depends on what a guest program reported."""
        is_trusted = "CASE WHEN json_valid(record) THEN json_extract(record, '$.outcome.guest_trusted') END"
        return {row[0] for row in self.rows(f"SELECT id FROM episodes WHERE phase=? AND {is_trusted}", (phase,))}

    def groups(self, state: str | None = None) -> list[GroupRow]:
        rows = self.rows("SELECT id, number, family, seed, state FROM groups ORDER BY number")
        return [group for group in (GroupRow(*row) for row in rows) if state in (None, group.state)]

    def count_states(self, phase: str = TRAIN) -> dict[tuple[str, str | None], int]:
        """Count the stored episodes by (state, cause)."""
        rows = self.rows("SELECT state, cause, COUNT(*) FROM episodes WHERE phase=? GROUP BY state, cause", (phase,))
        return {(state, cause): count for state, cause, count in rows}

    def episode_counts(self) -> dict[str, Any]:
        """Return the episode counts last written (`rollout.episode_counts`); empty for a new run."""
        rows = self.rows("SELECT counts FROM episode_counts")
        return self._parse(rows[0][0] if rows else None)

    def checkpoints(self) -> list[Checkpoint]:
        """Return all checkpoints ever committed, by step; the trainer removes old folders."""
        rows = self.rows("SELECT step, version, path, created_at FROM checkpoints ORDER BY step")
        return [Checkpoint(step, version, self.folder / path, created_at) for step, version, path, created_at in rows]

    def checkpoint(self, step: int | None = None) -> Checkpoint | None:
        """Return the checkpoint of a step, or the last one; None if there is none."""
        found = [each for each in self.checkpoints() if step is None or each.step == step]
        return found[-1] if found else None

    def segments(self) -> list[tuple[int, int]]:
        """Return the (step, first version) pairs of `start_segment`, in order."""
        return self.rows("SELECT step, first_version FROM segments ORDER BY number")  # pyright: ignore[reportReturnType]

    def newest_version(self) -> int:
        """Return the highest weights version that sampled a stored training token; -1 if there is none."""
        found = self.rows("SELECT MAX(version_max) FROM episodes WHERE phase=?", (TRAIN,))[0][0]
        return -1 if found is None else found

    def metrics(self) -> list[dict[str, Any]]:
        return [self._parse(line) for (line,) in self.rows("SELECT line FROM metrics ORDER BY step")]

    def _value(self, key: str) -> Any:
        found = self.rows("SELECT value FROM runs WHERE key=?", (key,))
        return self._parse(found[0][0]) if found else None

    def _parse(self, text: Any) -> Any:
        """Return a stored JSON value. Raises `ConfigError` if it is damaged."""
        try:
            return json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise damaged(self.folder / "run.sqlite", f"a value is not JSON: {error}") from error

    def rows(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query. Raises `ConfigError` (damaged) or `InfrastructureError` (cannot be read)."""
        path = self.folder / "run.sqlite"
        with self._mutex:
            try:
                return self._connection.execute(query, values).fetchall()
            except sqlite3.OperationalError as error:
                if "decode" in str(error):  # text that is not UTF-8; raised by Python, so it has no code
                    raise damaged(path, error) from error
                raise InfrastructureError(f"{path}: cannot be read ({error}); check the disk, then resume") from error
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                if is_damage(error):
                    raise damaged(path, error) from error
                raise

    @contextmanager
    def _transaction(self, counts: Mapping[str, Any] | None = None) -> Iterator[sqlite3.Connection]:
        """Run the block and update the counts in one transaction.

        Raises `InfrastructureError` on disk errors, `ConfigError` if the database is damaged.
        """
        with self._mutex:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                if counts is not None:
                    self._connection.execute("UPDATE episode_counts SET counts=?", (json.dumps(counts),))
                self._connection.execute("COMMIT")
            except BaseException as error:
                if self._connection.in_transaction:
                    with suppress(sqlite3.DatabaseError):  # of a damaged database; closing it rolls back too
                        self._connection.execute("ROLLBACK")
                if is_damage(error):
                    raise damaged(self.folder / "run.sqlite", error) from error
                if isinstance(error, sqlite3.OperationalError):
                    self._write_failure = disk_full(self.folder / "run.sqlite", error)
                    raise self._write_failure from error
                raise


def _episode_row(values: Iterable[Any]) -> EpisodeRow:
    row = EpisodeRow(*values)
    return row if row.first_click is None else replace(row, first_click=bool(row.first_click))
