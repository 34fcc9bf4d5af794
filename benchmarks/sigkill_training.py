"""SIGKILL in the middle of training: `python -m benchmarks.sigkill_training [--full] [--folder FOLDER]`.

`deskhand train` runs the policy in the box on embedded desktops. It is killed with its whole process group at random moments,
from its first second on, and resumed each time. After every kill: the books close and agree with the stored episodes, no finished
episode is lost or changed, the last checkpoint is sound and holds exactly the episodes that the store says went into it. In the
end the run is let to its last step. 5 kills, with --full 30.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.thresholds import ROOT, Bars, print_head
from deskhand.errors import ConfigError, RecordError
from deskhand.rollout.episode_counts import EpisodeCounts
from deskhand.store.run import TRAIN, Checkpoint, Run
from deskhand.trainer.checkpoint import verify

SETTINGS = (
    "loop.groups_per_step=1",
    "loop.group_size=4",
    "loop.max_concurrent_episodes=4",
    "evaluation.num_episodes=0",
    "trainer.learning_rate=1.0e-5",
    "families=[terminal_run, terminal_close]",
)
LONGEST_S = 35.0
"""A kill comes at a random moment of so many seconds after the start."""
PATIENCE_S = 300.0


@dataclass
class Found:
    """What was seen over all kills."""

    kills: int = 0
    early: int = 0
    """Kills before anything was stored."""
    wrong: list[str] = field(default_factory=list)
    finished: dict[str, float | None] = field(default_factory=dict)
    """Reward by episode, of all that ever ended."""
    taught: dict[str, int] = field(default_factory=dict)
    """The step that each trained episode went into."""
    steps: int = 0


def start(folder: Path, steps: int, log: Path) -> subprocess.Popen[bytes]:
    """`deskhand train`, new or resumed, in a session of its own."""
    command = [sys.executable, "-m", "deskhand", "train"]
    if (folder / "run.sqlite").exists():
        command += ["--folder", str(folder), "--resume", "--set", f"loop.total_steps={steps}", "--set", "minutes=null"]
    else:
        command += [
            "configs/tiny_cpu.yaml",
            "--folder",
            str(folder),
            "--set",
            f"loop.total_steps={steps}",
            "--set",
            "minutes=null",
        ]
        for setting in SETTINGS:
            command += ["--set", setting]
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ},
        )


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for the process and all that it has started in its group."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def inspect(folder: Path, found: Found) -> None:
    """Compare what the folder holds with what was seen in it before."""
    if not (folder / "run.sqlite").exists():
        found.early += 1
        return
    with Run.open(folder, read_only=True) as run:
        rows = run.episodes(TRAIN)
        ended = {row.id: row.reward for row in rows if row.finished_at is not None}
        lost = [name for name, reward in found.finished.items() if name not in ended or ended[name] != reward]
        if lost:
            found.wrong.append(f"kill {found.kills}: {len(lost)} finished episodes are lost or changed")
        try:
            EpisodeCounts.from_dict(run.episode_counts()).check(run.count_states())
        except RecordError as error:
            found.wrong.append(f"kill {found.kills}: {error}")
        trained = {row.id: row.step for row in rows if row.state == "trained" and row.step is not None}
        twice = [name for name, step in trained.items() if found.taught.get(name, step) != step]
        undone = [name for name in found.taught if name not in trained]
        if twice or undone:
            found.wrong.append(
                f"kill {found.kills}: {len(twice)} episodes trained again, {len(undone)} no longer trained"
            )
        found.finished, found.taught = ended, trained
        found.wrong += [f"kill {found.kills}: {line}" for line in _checkpoints(run, trained)]
        last = run.checkpoint()
        found.steps = last.step if last else 0


def _checkpoints(run: Run, trained: dict[str, int]) -> list[str]:
    """What is wrong with the checkpoints that the store points at and the trainer keeps."""
    wrong = []
    known: list[Checkpoint] = run.checkpoints()
    for before, each in zip([None, *known], known, strict=False):
        if not each.path.is_dir():
            if each is known[-1]:
                wrong.append(f"the last checkpoint, step {each.step}, is gone")
            continue
        try:
            held = set(verify(each.path)["state"].get("trained", []))
        except ConfigError as error:
            wrong.append(str(error))
            continue
        said = {name for name, step in trained.items() if (before.step if before else -1) < step <= each.step}
        if held != said:
            wrong.append(f"step {each.step}: {len(held ^ said)} episodes differ between the checkpoint and the store")
    return wrong


def measure(folder: Path, kills: int, seed: int = 0) -> Found:
    """Kill and resume, then let it end two steps later."""
    chance, found = random.Random(seed), Found()
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_name(folder.name + ".log")
    log.unlink(missing_ok=True)
    for _ in range(kills):
        process = start(folder, 10_000, log)
        time.sleep(chance.uniform(1.0, LONGEST_S))
        if process.poll() is not None:
            found.wrong.append(f"it ended by itself with {process.returncode}: {log.read_text()[-300:].strip()}")
            break
        kill(process)
        found.kills += 1
        inspect(folder, found)
        print(
            f"kill {found.kills}: step {found.steps}, {len(found.finished)} episodes, {len(found.taught)} trained",
            flush=True,
        )
    process = start(folder, found.steps + 2, log)
    try:
        code = process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        kill(process)
        code = -1
    if code:
        found.wrong.append(f"the last resume ended with {code}: {log.read_text()[-300:].strip()}")
    inspect(folder, found)
    with Run.open(folder, read_only=True) as run:
        if [entry["step"] for entry in run.metrics()] != list(range(1, found.steps + 1)):
            found.wrong.append("the metrics do not hold every step once")
    return found


def judge(found: Found, kills: int, bars: Bars) -> None:
    """Print the figures against their bars."""
    print(f"{found.early} of the kills came before anything was stored")
    bars.check(
        "resumes", found.kills == kills and not found.wrong, f"{found.kills} kills", f"{kills}, every resume goes on"
    )
    lost = (
        "; ".join(found.wrong)
        or f"{len(found.finished)} episodes kept, {len(found.taught)} trained once, {found.steps} steps"
    )
    bars.check("nothing lost, nothing twice", not found.wrong, lost, "nothing wrong after any kill")
    bars.check("it trained between kills", found.steps >= 2, f"{found.steps} steps", ">= 2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path("runs/evidence/kill_training"))
    options = parser.parse_args()
    print_head()
    kills = 30 if options.full else 5
    bars = Bars()
    judge(measure(options.folder, kills), kills, bars)
    bars.finish()


if __name__ == "__main__":
    main()
