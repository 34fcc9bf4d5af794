"""What the image-swap canary costs, and that it ends a blind run: `python -m benchmarks.vision_probe [--full] [--folder FOLDER]`.

Cost: episodes of the policy in the box on embedded desktops are trained on again and again, as a step of the demo would, and
before each step the canary is asked, in turn, of the very same rows; medians of both, side by side. The loop asks it every
`loop.health.vision_probe_every` steps. A canary takes the same rows whatever the step has, so its cost is judged with --full, at the 48
episodes of a step of the demo.

Blindness: `deskhand train` with weights whose picture features are all zero (the vision tower's last layers are), and with those
in the box. The first has to end by itself with its episodes kept, the second must not.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.recording import Recording, held_out_tasks, record
from benchmarks.thresholds import ROOT, Bars, print_head
from deskhand.config.loop import HealthConfig
from deskhand.config.trainer import PolicyConfig, TrainerConfig
from deskhand.models.load import TINY_FOLDER, load
from deskhand.store.run import Run
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer
from deskhand.trainer.vision_probe import image_sensitivity

FAMILIES = ("terminal_run", "terminal_close", "calculator_number")
"""Those of the demo."""
RUN = (
    "families=[terminal_run]",
    "loop.groups_per_step=1",
    "loop.group_size=4",
    "loop.total_steps=4",
    "evaluation.num_episodes=0",
)


def cost(recording: Recording, rounds: int) -> tuple[float, float, float]:
    """(median seconds of a step, median seconds of a canary, nats that swapped pictures changed at first)."""
    trainer = Trainer(
        Policy(load("tiny").model, PolicyConfig(train_vision=False), recording.renderer.banned_ids),
        TrainerConfig(torch_threads=1),
    )
    samples = [
        TrainingSample(row, 1.0 if number % 2 else -1.0, result.episode_id)
        for number, result in enumerate(recording.results)
        for row in result.graph.sequences()
    ]
    steps, canaries, seen = list[float](), list[float](), list[float | None]()
    for _ in range(rounds + 1):
        started = time.perf_counter()
        seen.append(image_sensitivity(trainer.policy, samples, recording.images, HealthConfig().vision_probe_samples))
        canaries.append(time.perf_counter() - started)
        steps.append(trainer.step(samples, recording.images).seconds)
    if seen[0] is None:
        raise SystemExit("no two episodes show different pictures of one size; nothing can be swapped")
    return statistics.median(steps[1:]), statistics.median(canaries[1:]), seen[0]


def blinded(folder: Path) -> Path:
    """The policy in the box without its sight: nothing of a picture leaves its vision tower."""
    shutil.copytree(TINY_FOLDER, folder)
    weights = load_file(folder / "model.safetensors")
    for name, value in weights.items():
        if "merger" in name:
            value.zero_()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def train(model: str, folder: Path, every: int) -> tuple[int, int, int, str]:
    """(exit code, steps taken, episodes kept, last words) of `deskhand train` with that model."""
    shutil.rmtree(folder, ignore_errors=True)
    words = [
        sys.executable,
        "-m",
        "deskhand",
        "train",
        "configs/tiny_cpu.yaml",
        "--folder",
        str(folder),
        "--set",
        f"model={model}",
    ]
    for setting in (*RUN, f"loop.health.vision_probe_every={every}"):
        words += ["--set", setting]
    done = subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    with Run.open(folder, read_only=True) as run:
        last = run.checkpoint()
        kept = sum(run.has_record(row.id) for row in run.episodes())
    return (
        done.returncode,
        last.step if last else 0,
        kept,
        (done.stderr.strip() or done.stdout.strip()).splitlines()[-1],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path("runs/evidence/canary"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    print_head()
    bars = Bars()
    episodes, rounds = (48, 9) if options.full else (12, 3)
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="deskhand-canary-") as made:
        recording = asyncio.run(record("tiny", held_out_tasks(episodes, FAMILIES), Path(made) / "frames", desktops=4))
        step_s, canary_s, seen = cost(recording, rounds)
        every = HealthConfig().vision_probe_every
        print(
            f"{episodes} episodes: a step takes {step_s:.3f} s, a canary {canary_s:.3f} s ({canary_s / step_s:.1%} of a step)"
        )
        share = canary_s / (every * step_s)
        figure = f"{share:.2%} of the steps' time at one canary every {every} steps"
        if options.full:
            bars.check("cost", share <= 0.02, figure, "<= 2 %")
        else:
            print(f"cost: {figure}")
        least = HealthConfig().min_image_sensitivity
        bars.check(
            "the policy in the box sees", seen > least, f"swapped pictures change {seen:.2f} nats", f"> {least:g}"
        )
        source = blinded(Path(made) / "blind")
        code, steps, kept, said = train(str(source), options.folder / "blind", every=1)
        print(f"blind run: {said}")
        ended = code == 2 and steps == 2 and "does not see" in said and kept > 0
        bars.check(
            "blind run ends", ended, f"exit code {code} at step {steps}, {kept} episodes kept", "2 at step 2, kept"
        )
        code, steps, kept, _ = train("tiny", options.folder / "seeing", every=1)
        bars.check("seeing run goes on", code == 0 and steps == 4, f"exit code {code} at step {steps}", "0 at step 4")
    bars.finish()


if __name__ == "__main__":
    main()
