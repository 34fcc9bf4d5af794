"""A wall clock that jumps by hours, during a training run or in a guest, ends no wait early or late."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import painted_run
import pytest
from forked_command import command
from patience import limit

from deskhand.desktop.remote.guest_scripts import with_marker
from deskhand.rollout.episode_counts import EpisodeCounts
from deskhand.store.run import Run

STEPS = 2
JUMPS_S = (0.0, 3600.0, -7200.0, 1e7, -1e8)


def jump() -> None:
    """Make each look at the wall clock another time, in the order of `JUMPS_S`."""
    real, jumps = time.time, itertools.cycle(JUMPS_S)
    time.time = lambda: real() + next(jumps)


def test_a_training_run_does_not_notice_jumps_of_the_wall_clock(tmp_path: Path) -> None:
    config = painted_run.config_file(tmp_path, steps=STEPS, evaluations=2, eval_every=1)
    ended = command(tmp_path, "train", str(config), str(tmp_path / "run"), prepare=jump)
    assert (ended.code, ended.err) == (0, ""), ended.err
    ended = command(tmp_path, "train", "--resume", str(tmp_path / "run"), "--set", f"loop.total_steps={STEPS + 1}")
    assert (ended.code, ended.err) == (0, ""), ended.err
    with Run.open(tmp_path / "run") as run:
        EpisodeCounts.from_dict(run.episode_counts()).check(run.count_states())
        assert [entry["step"] for entry in run.metrics()] == list(range(1, STEPS + 2))
        assert all(entry["time/elapsed"] < 3600 for entry in run.metrics())
        assert {row.state for row in run.episodes()} <= {"trained", "zero_variance", "queued", "scored", "errored"}
        assert not [row for row in run.episodes() if row.state == "errored" and row.cause != "cancelled"]


@pytest.mark.parametrize("jump_s", [-36000.0, 36000.0])
def test_a_repeated_action_waits_for_the_first_as_long_whatever_the_clock_of_the_guest(jump_s: float, tmp_path) -> None:
    program = with_marker("raise SystemExit('performed twice')", "one", wait_s=1.0)
    (tmp_path / "deskhand-one").touch()  # the first attempt has begun and does not end
    jumping = (
        "import time\nreal, began = time.time, time.time()\n"
        f"time.time = lambda: real() + {jump_s} * (real() > began + 0.2)\n"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", jumping + program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=limit(30),
    )
    assert done.stdout == "deskhand unknown\n", done.stderr
    assert time.monotonic() - began >= 1.0
