"""`deskhand train --trainer areal` on real desktops: AReaL's own PPOTrainer, LocalScheduler, workers and weight updates from
disk; three in ten desktops are lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from areal_serving import ROOT, surroundings

from deskhand.store.run import TRAIN, Run

STEPS = 5


@pytest.fixture(scope="module")
def folder(areal_python, tmp_path_factory):
    """Of a run of five steps."""
    made = tmp_path_factory.mktemp("trainer") / "run"
    experiment = str(ROOT / "configs" / "areal" / "embedded_tiny_cpu.yaml")
    words = [sys.executable, "-m", "deskhand", "train", experiment, "--trainer", "areal", "--folder", str(made)]
    for setting in (
        f"total_train_steps={STEPS}",
        "~deskhand.workflow.desktops.embedded",
        "++deskhand.workflow.desktops.make=areal_workflows.flaky_pool",
        "deskhand.workflow.refills=0",
        "actor.optimizer.lr=1e-4",
    ):
        words += ["--set", setting]
    log = made.parent / "log.txt"
    environment = {**surroundings(), "DESKHAND_AREAL_PYTHON": str(areal_python), "PATH": os.environ["PATH"]}
    with log.open("w") as file:
        done = subprocess.run(words, stdout=file, stderr=file, check=False, env=environment, cwd=ROOT, timeout=420)
    assert done.returncode == 0, log.read_text()[-8000:]
    return made


@pytest.fixture(scope="module")
def steps(folder):
    return [json.loads(line) for line in (folder / "areal.jsonl").read_text().splitlines()]


def test_every_step_trains_and_the_weights_that_sample_are_those_that_were_trained(folder, steps):
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
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
    assert (folder / "metrics.jsonl").read_text().count("\n") == STEPS
