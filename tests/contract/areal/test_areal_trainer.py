"""`deskhand train --trainer areal` on real desktops: AReaL's own PPOTrainer, LocalScheduler, workers and weight updates from
disk; three in ten desktops are lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from areal_serving import ROOT, surroundings

from deskhand.store.run import TRAIN, Run

STEPS = 5
"""In one go; then the run is ended from outside and goes on for one more."""


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def group_of(parent: int) -> list[int]:
    """Processes of the groups that children of `parent` lead."""
    stats = [[*path.read_text().rpartition(")")[2].split(), path.parent.name] for path in Path("/proc").glob("[0-9]*/stat")]
    leaders = {int(stat[-1]) for stat in stats if int(stat[1]) == parent}
    return [int(stat[-1]) for stat in stats if int(stat[2]) in leaders]


@pytest.fixture(scope="module")
def run(areal_python, tmp_path_factory) -> dict[str, Any]:
    """The folder of a run that is ended from outside after five steps and started again for a sixth, and what was left between."""
    made = tmp_path_factory.mktemp("trainer") / "run"
    experiment = str(ROOT / "configs" / "areal" / "embedded_tiny_cpu.yaml")
    words = [sys.executable, "-m", "deskhand", "train", experiment, "--trainer", "areal", "--folder", str(made)]
    for setting in (
        f"total_train_steps={STEPS + 1}",
        "~deskhand.workflow.desktops.embedded",
        "++deskhand.workflow.desktops.make=areal_workflows.flaky_pool",
        "deskhand.workflow.refills=0",
        "actor.optimizer.lr=1e-4",
    ):
        words += ["--set", setting]
    log, statistics = made.parent / "log.txt", made / "areal.jsonl"
    environment = {**surroundings(), "DESKHAND_AREAL_PYTHON": str(areal_python), "PATH": os.environ["PATH"]}
    with log.open("w") as file:
        first = subprocess.Popen(words, stdout=file, stderr=file, env=environment, cwd=ROOT)
        deadline = time.monotonic() + 420
        while not (statistics.is_file() and statistics.read_text().count("\n") >= STEPS):
            assert first.poll() is None, log.read_text()[-8000:]
            assert time.monotonic() < deadline, log.read_text()[-8000:]
            time.sleep(0.1)
        processes = group_of(first.pid)
        first.send_signal(signal.SIGTERM)
        code = first.wait(90)
        left = [process for process in processes if is_alive(process)]
        before = statistics.read_text().count("\n")
        done = subprocess.run(words, stdout=file, stderr=file, check=False, env=environment, cwd=ROOT, timeout=300)
    assert done.returncode == 0, log.read_text()[-8000:]
    return {"folder": made, "processes": processes, "left": left, "code": code, "before": before}


@pytest.fixture(scope="module")
def folder(run) -> Path:
    return run["folder"]


@pytest.fixture(scope="module")
def steps(folder):
    return [json.loads(line) for line in (folder / "areal.jsonl").read_text().splitlines()]


def test_a_run_that_is_ended_from_outside_leaves_no_process_and_goes_on_where_it_was(run, steps):
    assert run["code"] != 0
    assert len(run["processes"]) > 3
    assert run["left"] == []
    assert [line["step"] for line in steps[run["before"] :]] == [STEPS + 1]
    with Run.open(max((run["folder"] / "workers").iterdir(), key=lambda path: path.stat().st_ctime), read_only=True) as later:
        assert {row.version_min for row in later.episodes(TRAIN) if row.reward is not None} <= {STEPS, STEPS + 1}
    assert steps[-1]["ppo_actor/update/behave_imp_weight/avg"] == pytest.approx(1.0, abs=1e-3)


def test_every_step_trains_and_the_weights_that_sample_are_those_that_were_trained(folder, steps):
    assert [line["step"] for line in steps] == list(range(1, STEPS + 2))
    assert all(line["ppo_actor/update/update_successful"] == 1.0 for line in steps)
    assert any(line["ppo_actor/update/grad_norm"] > 0 for line in steps)
    with Run.open(folder, read_only=True) as run:
        versions = {row.version_max for row in run.episodes(TRAIN) if row.reward is not None}
    assert len(versions) >= STEPS - 1, "episodes were sampled by weights of nearly every version"


def test_what_is_recomputed_agrees_with_what_was_sampled(steps):
    """Log-probs of the server's process under its libraries, against those of AReaL's trainer under its own."""
    assert max(abs(line["ppo_actor/update/behave_imp_weight/avg"] - 1.0) for line in steps[:1]) < 1e-3


def test_lost_desktops_leave_gaps_and_no_group_with_two_scores_is_lost(folder):
    with Run.open(folder, read_only=True) as run:
        rows = run.episodes(TRAIN)
        groups = {group.id: group.state for group in run.groups()}
        books = run.books()
    lost = [row for row in rows if row.state == "unscored"]
    assert lost
    assert {row.cause for row in lost} == {"infrastructure"}
    assert all(row.reward is None for row in lost)
    for name, state in groups.items():
        rewards = [row.reward for row in rows if row.group_id == name and row.reward is not None]
        teaches = len(rewards) >= 2 and max(rewards) - min(rewards) > 1e-8
        assert (state == "waiting") == teaches
    assert books["started"] == len(rows)
    assert books["unscored"]["infrastructure"] == len(lost)


def test_the_run_has_a_report_like_a_local_one(folder):
    words = [sys.executable, "-m", "deskhand", "report", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    page = (folder / "report.html").read_text()
    assert "deskhand-tiny" in page
    assert (folder / "metrics.jsonl").read_text().count("\n") == STEPS + 1
