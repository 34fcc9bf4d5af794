"""A run on a disk that is too small, or read-only: one line that names the file and the fix, nothing lost, and when
there is room again the run goes on."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import painted_run
import pytest
from forked_command import Ended, command

from deskhand.rollout.episode_counts import EpisodeCounts
from deskhand.store.run import Run
from deskhand.trainer.checkpoint import verify

STEPS = 2
HOLD = 'mount -t tmpfs -o size=$1k tmpfs "$0" && echo mounted && cat'


def enter(process: int) -> None:
    """See the disks that another process sees."""
    namespace = os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, 0):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(namespace)


class SmallDisk:
    """A tmpfs that only `holder` and the processes that enter see."""

    def __init__(self, place: Path, holder: int) -> None:
        self.place, self.holder = place, holder

    def from_here(self, path: Path) -> Path:
        return Path(f"/proc/{self.holder}/root{path}")

    def copy(self, path: Path, to: Path) -> Path:
        """SQLite does not open files below /proc."""
        return Path(shutil.copytree(self.from_here(path), to))

    def remount(self, options: str) -> None:
        words = ["nsenter", "-t", str(self.holder), "-m", "mount", "-o", f"remount,{options}", str(self.place)]
        subprocess.run(words, check=True)

    def command(self, folder: Path, *arguments: str) -> Ended:
        return command(folder, *arguments, prepare=partial(enter, self.holder))


@contextmanager
def small_disk(place: Path, size_kib: int) -> Iterator[SmallDisk]:
    place.mkdir()
    words = ["unshare", "--mount", "sh", "-c", HOLD, str(place), str(size_kib)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as holder:
        assert holder.stdout is not None
        if (said := holder.stdout.readline()) != "mounted\n":
            pytest.skip(f"cannot mount a tmpfs in a namespace: {said.strip()}")
        yield SmallDisk(place, holder.pid)
        assert holder.stdin is not None
        holder.stdin.close()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return painted_run.config_file(tmp_path_factory.mktemp("config"), steps=STEPS, evaluations=1, eval_every=1)


def one_line(ended: Ended) -> str:
    assert ended.code == 2, (ended.out, ended.err)
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1, ended.err
    assert not ended.left
    return ended.err


@pytest.mark.parametrize("size_kib", [100, 600, 3000])
def test_a_full_disk_is_one_line_and_the_run_goes_on(size_kib: int, config: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size_kib) as disk:
        run_dir = disk.place / "run"
        line = one_line(disk.command(tmp_path, "train", str(config), str(run_dir)))
        assert str(run_dir) in line
        assert "free disk space" in line
        finished = set[str]()
        kept = (disk.from_here(run_dir) / "run.sqlite").exists()
        assert not list(disk.from_here(disk.place).rglob("*.part")), "what could not be written is removed"
        if kept:
            seen = disk.copy(run_dir, tmp_path / "full")
            with Run.open(seen, read_only=True) as run:
                EpisodeCounts.from_dict(run.episode_counts()).check(run.count_states())
                finished = {row.id for row in run.episodes() if row.finished_at is not None}
                if (last := run.checkpoint()) is not None:
                    verify(last.path)
        disk.remount("size=100m")
        resume = ("train", "--resume", str(run_dir)) if kept else ("train", str(config), str(run_dir))
        ended = disk.command(tmp_path, *resume)
        assert ended.code == 0, (line, ended.err)
        with Run.open(disk.copy(run_dir, tmp_path / "whole"), read_only=True) as run:
            assert [entry["step"] for entry in run.metrics()] == list(range(1, STEPS + 1))
            assert finished <= {row.id for row in run.episodes()}


def test_a_read_only_run_is_one_line_and_can_still_be_reported(config: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 100 << 10) as disk:
        run_dir = disk.place / "run"
        assert disk.command(tmp_path, "train", str(config), str(run_dir)).code == 0
        disk.remount("ro")
        line = one_line(disk.command(tmp_path, "train", "--resume", str(run_dir)))
        assert f"{run_dir / 'lock'}: cannot be written (Read-only file system)" in line
        line = one_line(disk.command(tmp_path, "train", str(config), str(disk.place / "other")))
        assert f"{disk.place / 'other'}: cannot be created (Read-only file system)" in line
        line = one_line(disk.command(tmp_path, "report", str(run_dir)))
        assert "report.html: the report cannot be written (Read-only file system)" in line
        page = tmp_path / "page.html"
        ended = disk.command(tmp_path, "report", str(run_dir), "--out", str(page))
        assert ended.code == 0, ended.err
        assert page.stat().st_size > 10_000
