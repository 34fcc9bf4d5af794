"""SIGKILL at any moment: no finished episode is lost, none is trained twice, the books close."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from patience import limit

from deskhand.rollout.episode_counts import EpisodeCounts
from deskhand.store.run import TRAIN, Run

SUPPORT = Path(__file__).parent.parent / "support"
ROUNDS = int(os.environ.get("DESKHAND_BENCH_KILL_ROUNDS", "5"))


def noted(journal: Path) -> list[dict]:
    """What the processes wrote; a kill may tear the last line of each."""
    found = []
    for line in journal.read_text().splitlines() if journal.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def start(folder: Path, steps: int, journal: Path, checkpoint_every: int = 1) -> subprocess.Popen:
    paths = os.pathsep.join([str(SUPPORT), str(SUPPORT.parent.parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        str(SUPPORT / "training_fixture.py"),
        str(folder),
        str(steps),
        str(journal),
        str(checkpoint_every),
    ]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def trained_in_the_end(events: list[dict]) -> list[str]:
    """Return the episodes behind the surviving weights; a process that starts at step s rolls back the later steps."""
    line: list[dict] = []
    for event in events:
        if event["kind"] == "start":
            line = [step for step in line if step["at"] < event["at"]]
        elif event["kind"] == "step":
            line.append(event)
    return [episode for step in line for episode in step["episodes"]]


def test_a_run_that_is_killed_again_and_again_loses_and_repeats_nothing(tmp_path):
    chance = random.Random(os.environ.get("DESKHAND_BENCH_KILL_SEED", "7"))
    folder, journal = tmp_path / "run", tmp_path / "calls.jsonl"
    seen: dict[str, float | None] = {}
    for _ in range(ROUNDS):
        before = sum(event["kind"] == "step" for event in noted(journal))
        process = start(folder, 10_000, journal)
        wanted = before + chance.randint(1, 3)
        while sum(event["kind"] == "step" for event in noted(journal)) < wanted:
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.01)
        time.sleep(chance.random() * 0.5)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.communicate()
        with Run.open(folder, read_only=True) as run:
            now = {row.id: row.reward for row in run.episodes(TRAIN) if row.finished_at is not None}
        assert now.items() >= seen.items(), "a finished episode was lost or changed"
        seen = now
    with Run.open(folder, read_only=True) as run:
        point = run.checkpoint()
        steps = point.step + 2 if point else 2
        oldest = [group.id for group in run.groups("queued")][:2]
    process = start(folder, steps, journal)
    output, _ = process.communicate(timeout=limit(600))
    assert process.returncode == 0, output
    with Run.open(folder) as run:
        rows = run.episodes(TRAIN)
        assert {row.id: row.reward for row in rows}.items() >= seen.items()
        EpisodeCounts.from_dict(run.episode_counts()).check(run.count_states())
        assert run.checkpoint().step == steps
        assert set(oldest) <= {group.id for group in run.groups("closed")}, "what waited for the trainer was forgotten"
        assert [line["step"] for line in run.metrics()] == list(range(1, steps + 1))
        trained = trained_in_the_end(noted(journal))
        assert len(trained) == len(set(trained)), "an episode was trained twice"
        assert set(trained) == {row.id for row in rows if row.state == "trained"}
        assert {row.state for row in rows} <= {"trained", "queued", "zero_variance", "stale", "errored"}
