"""Episodes and statistics of a run under AReaL.

Each worker writes its own run (`workflow`), AReaL's statistics go to one file (`entrypoint`), and `launcher` merges
them for `deskhand report`. Merging is idempotent.

    <folder>/workers/<host>-<process>/   episodes of a worker with their screenshots (a run directory)
    <folder>/areal_metrics.jsonl         AReaL's statistics of each step
    <folder>/run.sqlite ...              the merged run

AReaL does not report when it trained which trajectory: a scored episode is "queued" here unless its group had equal
rewards.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from deskhand.recipes.step_report import SCHEMA_VERSION
from deskhand.rollout.episode_counts import EpisodeCounts
from deskhand.rollout.episode_record import EpisodeResult, to_record
from deskhand.rollout.groups import Group
from deskhand.rollout.run_writer import row_of
from deskhand.store.run import TRAIN, EpisodeRow, GroupRow, Run
from deskhand.tasks.outcome import Errored

WORKERS, STATISTICS = "workers", "areal_metrics.jsonl"
_TRAINER = {
    "train/loss": "ppo_actor/update/actor_loss/avg",
    "train/grad_norm": "ppo_actor/update/grad_norm",
    "train/entropy": "ppo_actor/update/entropy/avg",
    "train/clip_frac": "ppo_actor/update/clip_ratio/avg",
}
"""What the report shows of a step, under the names that AReaL has for it."""

_runs: dict[str, Run] = {}
_mutex = threading.Lock()


def open_worker_run(folder: str, scrub: Mapping[str, Any] | None = None) -> Run:
    """This process's run below `folder`. `scrub`: what is scrubbed from its episodes (`store.scrub`)."""
    with _mutex:
        if folder not in _runs:
            place = Path(folder) / WORKERS / f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
            _runs[folder] = Run.create(
                place, {"title": "a worker of AReaL"} | ({"scrub": dict(scrub)} if scrub else {})
            )
        return _runs[folder]


def save_group(folder: str, group: Group, results: Sequence[EpisodeResult], began: float) -> None:
    """Write a group's episodes; blocking. `began`: when it began, in seconds since the epoch."""
    run = open_worker_run(folder)
    with _mutex:
        run.open_group(GroupRow(group.id, len(run.groups()), group.task.family, group.task.seed, group.state))
    for result in results:
        state = "errored" if isinstance(result.outcome, Errored) else "queued" if group.has_signal else "zero_variance"
        row = replace(row_of(result, TRAIN, state), started_at=began)
        _put(run, row, *to_record(result))


def _put(run: Run, row: EpisodeRow, record: Mapping[str, Any], tensors: bytes) -> None:
    run.start_episode(replace(row, state="in_flight", finished_at=None, cause=None))
    run.finish_episode(row, record, tensors)


def add_statistics(folder: Path, step: int, values: Mapping[str, Any]) -> None:
    """What AReaL says of step number `step` (from 1), as one line."""
    numbers = {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
    with (folder / STATISTICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, "time": time.time(), **numbers}) + "\n")


def merge_worker_runs(folder: Path, about: Mapping[str, Any]) -> Path | None:
    """Make one run of what workers and AReaL wrote below `folder`; returns its folder, None when no worker wrote
    anything.

    An earlier join is replaced; what the workers wrote stays.
    """
    workers = sorted((folder / WORKERS).glob("*/run.sqlite")) if (folder / WORKERS).is_dir() else []
    if not workers:
        return None
    for name in ("run.sqlite", "run.sqlite-wal", "run.sqlite-shm", "metrics.jsonl"):
        (folder / name).unlink(missing_ok=True)
    for name in ("frames", "tensorboard"):
        shutil.rmtree(folder / name, ignore_errors=True)
    counts, rows, numbers = EpisodeCounts(), list[EpisodeRow](), count()
    with Run.create(folder, about) as whole:
        for path in workers:
            with Run.open(path.parent, read_only=True) as part:
                for group in part.groups():
                    whole.open_group(replace(group, number=next(numbers)))
                for row in part.episodes(TRAIN):
                    if row.finished_at is not None:
                        _put(whole, row, *part.episode(row.id)[1:])
                        rows.append(row)
                        _count(counts, row)
                _link_frames(part.folder / "frames", folder / "frames")
        whole.commit(counts=counts.to_dict(), metrics=list(_metrics(folder / STATISTICS, rows)))
    return folder


def _count(counts: EpisodeCounts, row: EpisodeRow) -> None:
    counts.start()
    if row.state == "errored":
        counts.mark_errored(row.cause or "infrastructure")
    else:
        counts.mark_scored()
        counts.mark_done(zero_variance=int(row.state == "zero_variance"))


def _link_frames(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file():
            own = target / path.relative_to(source)
            own.parent.mkdir(parents=True, exist_ok=True)
            if not own.exists():
                try:
                    os.link(path, own)
                except OSError:
                    shutil.copyfile(path, own)


def _metrics(path: Path, rows: Sequence[EpisodeRow]) -> Iterable[dict[str, Any]]:
    """One entry a step: AReaL's numbers, and those of the episodes that ended since the step before."""
    if not path.is_file():
        return
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    latest = {line["step"]: line for line in lines}  # a step that was made again after a recovery counts once
    began = min((row.started_at for row in rows), default=0.0)
    before = began
    for step, line in sorted(latest.items()):
        ended = [
            row
            for row in rows
            if row.cause != "cancelled" and row.finished_at is not None and before <= row.finished_at < line["time"]
        ]
        scored = [row for row in ended if row.reward is not None]
        elapsed_s = max(line["time"] - before, 1e-9)
        yield {
            "schema_version": SCHEMA_VERSION,
            "step": step,
            "version": step,
            "reward/mean": sum(row.reward or 0.0 for row in scored) / max(1, len(scored)),
            "reward/success_rate": sum((row.value or 0.0) >= 1.0 for row in scored) / max(1, len(scored)),
            "episodes/errored_frac_total": 1.0 - len(scored) / max(1, len(ended)) if ended else 0.0,
            "perf/episodes_per_minute": 60.0 * len(ended) / elapsed_s,
            "time/elapsed": line["time"] - began,
            "train/num_episodes": len(scored),
            **{own: line[name] for own, name in _TRAINER.items() if name in line},
            "areal": {name: value for name, value in line.items() if name not in ("step", "time")},
        }
        before = line["time"]
