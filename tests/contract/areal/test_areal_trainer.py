"""`deskhand train --trainer areal` on real desktops: AReaL's own PPOTrainer, LocalScheduler, workers and weight updates
from disk; three in ten desktops are lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from areal_cpu_server import ROOT
from areal_jobs import STEPS

from deskhand.store.run import TRAIN, Run


@pytest.fixture(scope="module")
def run(found) -> dict[str, Any]:
    """The folder of a run that was ended from outside and went on, and what was left in between."""
    return found["trainer"].result()


@pytest.fixture(scope="module")
def folder(run) -> Path:
    return run["folder"]


@pytest.fixture(scope="module")
def steps(folder):
    return [json.loads(line) for line in (folder / "areal_metrics.jsonl").read_text().splitlines()]


def test_a_run_that_is_ended_from_outside_leaves_no_process_and_goes_on_where_it_was(run, steps):
    assert run["code"] != 0
    assert len(run["processes"]) > 3
    assert run["left"] == []
    assert [line["step"] for line in steps[run["before"] :]] == [STEPS + 1]
    newest = max((run["folder"] / "workers").iterdir(), key=lambda path: int(path.name.rsplit("-", 1)[1]))
    with Run.open(newest, read_only=True) as later:
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
        books = run.episode_counts()
    lost = [row for row in rows if row.state == "errored"]
    assert lost
    assert {row.cause for row in lost} == {"infrastructure"}
    assert all(row.reward is None for row in lost)
    for name, state in groups.items():
        rewards = [row.reward for row in rows if row.group_id == name and row.reward is not None]
        teaches = len(rewards) >= 2 and max(rewards) - min(rewards) > 1e-8
        assert (state == "queued") == teaches
    assert books["started"] == len(rows)
    assert books["errored"]["infrastructure"] == len(lost)


def test_the_run_has_a_report_like_a_local_one(folder):
    words = [sys.executable, "-m", "deskhand", "report", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    page = (folder / "report.html").read_text()
    assert "deskhand-tiny" in page
    assert (folder / "metrics.jsonl").read_text().count("\n") == STEPS + 1
