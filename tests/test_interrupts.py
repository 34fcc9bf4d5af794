"""Ctrl-C in every phase of `deskhand train`: one line, exit code 130, no process left, and the run resumes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import painted_run
import pytest
from forked_command import Interrupt, command
from patience import limit

from deskhand.rollout.episode_counts import EpisodeCounts
from deskhand.store.run import Run

STEPS = 1
PHASES = {
    "reading the settings": ("config/load.py", "load_config"),
    "opening the log": ("store/run_log.py", "log_to_run"),
    "loading the model": ("models/load.py", "load"),
    "the first checkpoint": ("trainer/checkpoint.py", "CheckpointManager._replace"),
    "storing an episode": ("store/run.py", "Run.finish_episode", 3),
    "an update": ("trainer/trainer.py", "Trainer.step"),
    "writing a checkpoint": ("trainer/checkpoint.py", "CheckpointManager._replace", 2),
    "the report": ("reporting/html_report.py", "write"),
    "the table": ("reporting/terminal.py", "comparison"),
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("config")
    return painted_run.config_file(folder, steps=STEPS, evaluations=1, eval_every=1)


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_is_one_line_and_the_run_resumes(phase: str, config: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    ended = command(tmp_path, "train", str(config), str(run_dir), prepare=Interrupt(*PHASES[phase]).install)
    assert ended.code == 130, (ended.out, ended.err)
    # On a loaded machine the step may outlast the command's patience.
    errors = ended.err.replace("\nfinishing the training step; Ctrl-C again stops at once\n", "")
    (line,) = errors.split("\n")[1:-1]
    assert errors == f"\n{line}\n"
    assert not ended.left
    kept = (run_dir / "run.sqlite").exists()
    resume = ("train", "--resume", str(run_dir)) if kept else ("train", str(config), str(run_dir))
    if phase != "the table":
        expected = f"resume with: deskhand {' '.join(resume)}" if kept else "nothing to resume"
        assert line in (f"interrupted; {expected}", *(["interrupted"] if not kept else []))
    resumed = command(tmp_path, *resume)
    assert resumed.code == 0, (line, resumed.out, resumed.err)
    with Run.open(run_dir) as run:
        EpisodeCounts.from_dict(run.episode_counts()).check(run.count_states())
        assert [entry["step"] for entry in run.metrics()] == list(range(1, STEPS + 1))
        assert not run.episodes(state="in_flight")


class TwiceDuringALongStep(Interrupt):
    """Ctrl-C twice, while the trainer's thread computes for half a minute."""

    def _interrupt(self) -> None:
        for _ in range(2):
            super()._interrupt()
            time.sleep(1)
        time.sleep(30)


def test_a_second_ctrl_c_does_not_wait_for_the_training_step(config: Path, tmp_path: Path) -> None:
    twice = TwiceDuringALongStep("trainer/trainer.py", "Trainer.step")
    ended = command(tmp_path, "train", str(config), str(tmp_path / "run"), prepare=twice.install)
    assert ended.code == 130
    assert ended.err == "\ninterrupted; stopped at once, resume with deskhand train --resume RUN_DIR\n"
    assert command(tmp_path, "train", "--resume", str(tmp_path / "run")).code == 0
    with Run.open(tmp_path / "run") as run:
        EpisodeCounts.from_dict(run.episode_counts()).check(run.count_states())


IMPORTING = """
import runpy, signal, sys
sys.path.insert(0, sys.argv.pop(1))
from forked_command import Interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)
Interrupt("deskhand/cli/train.py", "<module>").install()
runpy.run_module("deskhand", run_name="__main__", alter_sys=True)
"""


def test_ctrl_c_during_the_first_imports_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING, str(Path(__file__).parent / "support"), "--help"],
        env=painted_run.environment(),
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
        timeout=limit(60),
    )
    assert (done.returncode, done.stderr) == (130, "\ninterrupted\n"), done.stderr
