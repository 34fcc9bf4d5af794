"""Training runs on one GPU: `python -m benchmarks.gpu_training --full [--part PART] [--minutes N]`.

- `step`: two steps of `deskhand train` with Qwen3-VL-4B's shapes, random weights and LoRA. Every reply is a click and
  rewards are random, so that the steps train. Printed: where the time of a step is spent.
- `learning`: a policy with 44 million random weights on as many desktops as the machine has room for, at most 64. It
  imitates the oracle with `deskhand sft` in the first half of the minutes and is evaluated. If it solves tasks, it is
  then trained by their rewards, otherwise by random ones, which only measures the throughput.

Without a GPU the shapes are tiny and run on the processor, which only shows that the command works.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from benchmarks import random_checkpoint
from benchmarks.gpu import AnyClick, Babbler, tiny_values
from benchmarks.thresholds import ROOT, Thresholds, parser_of, print_head
from deskhand.agents.desktop_agent import AgentConfig
from deskhand.desktop.host_capacity import max_desktops
from deskhand.models import architectures
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.eval_loop import build_eval_report
from deskhand.store.run import DEMONSTRATIONS, Run

HISTORY = {"history_max_turns": 6, "history_keep_turns": 3, "max_new_tokens": 48}
"""Settings of `RandomAgent`, and of the section `agent`."""
MIN_SUCCESS = 0.05
"""Success after imitation from which groups have different rewards often enough to train by them."""
EVALUATION_MINUTES = 2.0
"""Time after the last step for its checkpoint and for the evaluations of the first and the last version."""
STOP_S = 60.0
"""Time that an interrupted command has to store its run."""
SHARES = (
    "rollout_wait", "train_step", "publish", "publish_probe", "vision_probe", "checkpoint", "evaluation", "other",
)  # fmt: skip
"""Phases of a step that do not overlap."""


class RandomAgent(Babbler):
    """Agent whose random model plays whole episodes."""

    def __init__(self) -> None:
        super().__init__(AgentConfig.model_validate(HISTORY), action_format=AnyClick())  # type: ignore[arg-type]


def random_reward(result: EpisodeResult) -> float:
    """Return 0 or 1 by the episode's id, so that nearly every group has a gradient."""
    return float(crc32(result.episode_id.encode()) % 2)


@dataclass(frozen=True)
class Place:
    """Where a part runs, and for how long."""

    folder: Path
    device: str
    dtype: str
    minutes: float
    is_small: bool

    @property
    def settings(self) -> dict[str, Any]:
        return {"device": self.device, "dtype": self.dtype}


def run_deskhand(log: Path, words: Sequence[str | Path], settings: dict[str, Any], limit_s: float) -> bool:
    """Run a command of Deskhand with output to `log`; return whether it ended before `limit_s`, when it is interrupted.

    Raises `SystemExit` with the last lines of the log if it fails.
    """
    command = [sys.executable, "-m", "deskhand", *map(str, words)]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    with log.open("a") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
            return False
        finally:
            process.kill()
            process.wait()
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {code}; the end of its log:\n{log.read_text()[-2000:]}")
    return True


def print_steps(steps: Sequence[dict[str, Any]]) -> None:
    """Print the mean of every time and rate over the steps after the first, or of the only one."""
    timed = steps[1:] or steps
    step_s = sum(entry["time/step"] for entry in timed) / len(timed)
    names = sorted({name for entry in timed for name in entry if name.startswith("time/")})
    print(f"\n{len(timed)} steps, {step_s:.2f} s each; a share is of phases that do not overlap\n")
    print("| phase | seconds per step | share |\n| --- | --- | --- |")
    for name in names:
        seconds = sum(entry.get(name, 0.0) for entry in timed) / len(timed)
        phase = name.removeprefix("time/")
        share = f"{100 * seconds / step_s:.1f} %" if phase in SHARES else ""
        if phase not in ("step", "elapsed"):
            print(f"| {phase} | {seconds:.3f} | {share} |")
    print()
    for name in sorted({name for entry in timed for name in entry if name.startswith("perf/")}):
        print(f"{name}: {sum(entry.get(name, 0.0) for entry in timed) / len(timed):.4g}")
    peak = max(entry.get("memory/device_peak_mib") or 0.0 for entry in steps)
    print(f"peak memory of the device: {peak:.0f} MiB", flush=True)


def time_steps(place: Place, thresholds: Thresholds) -> None:
    """Train two steps of random weights and print where their time is spent."""
    values = tiny_values() if place.is_small else architectures.QWEN3_VL_4B
    model, run_dir, steps = place.folder / "model", place.folder / "run", 1 if place.is_small else 2
    weights = random_checkpoint.write(model, values, place.device, place.dtype)
    print(f"{weights / 1e6:.1f} million random weights, LoRA, {place.dtype} on {place.device}")
    settings = {
        **place.settings,
        **{f"agent.{key}": value for key, value in HISTORY.items()},
        "model": model,
        "device_memory_gib": "null",
        "suite.families": "[editor_append, editor_replace, terminal_count, code_copy]",
        "agent.class": "benchmarks.gpu_training:RandomAgent",
        "agent.prompt_style": "compact",
        "reward": "benchmarks.gpu_training:random_reward",
        "loop.total_steps": steps,
        "loop.groups_per_step": 1 if place.is_small else 2,
        "loop.group_size": 4,
        "loop.max_concurrent_episodes": 2 if place.is_small else 8,
        "loop.save_every": steps,
        "loop.eval_every": 0,
        "evaluation.num_episodes": 0,
        "loop.health.max_failed_vision_probes": 0,
        "loop.health.max_failed_publish_probes": 0,
    }
    words = ("train", "qwen3vl_4b_lora_80gb", run_dir)
    ended = run_deskhand(place.folder / "log", words, settings, 60 * place.minutes)
    with Run.open(run_dir, read_only=True) as run:
        done = [entry for entry in run.metrics() if "time/step" in entry]
    if done:
        print_steps(done)
    thresholds.check("training steps", ended and len(done) == steps, f"{len(done)}", f"{steps}")


def learn(place: Place, thresholds: Thresholds) -> None:
    """Imitate the oracle, evaluate, and train; print success and throughput."""
    ends = time.monotonic() + 60 * place.minutes
    model, cores = place.folder / "model", len(os.sched_getaffinity(0))
    values = tiny_values() if place.is_small else random_checkpoint.MEDIUM
    weights = random_checkpoint.write(model, values, place.device, "float32")
    desktops = 2 if place.is_small else max(1, min(64, max_desktops()[0] * 2 // 3))
    print(f"{weights / 1e6:.1f} million weights, {place.dtype} on {place.device}, {desktops} desktops on {cores} cores")
    settings = {
        **place.settings,
        "loop.max_concurrent_episodes": desktops,
        "evaluation.max_concurrent_episodes": desktops,
        "evaluation.num_episodes": 3 if place.is_small else 150,
        "engine.max_num_seqs": desktops,
        "policy.max_tokens_per_mb": 16384,
        "policy.max_vision_patches_per_mb": 16384,
        "trainer.torch_threads": "null",
    }
    source = imitate(place, model, settings, desktops, 30 * place.minutes)
    success = evaluate(place, source, settings) if source != model else 0.0
    by_reward = success >= MIN_SUCCESS
    group_size = 2 if place.is_small else 8
    left = place.minutes if place.is_small else max(2.0, (ends - time.monotonic()) / 60)
    settings |= {
        "model": source,
        "max_minutes": max(1.0, left - EVALUATION_MINUTES),
        "loop.total_steps": 1 if place.is_small else 1000,
        "loop.groups_per_step": 1 if place.is_small else max(4, desktops // group_size),
        "loop.group_size": group_size,
        "loop.save_every": 1000,
        "trainer.learning_rate": 2e-4,
        "loop.health.max_failed_vision_probes": 0,
    }
    if by_reward:
        print("trained by the rewards of its tasks")
    else:
        print("trained by random rewards, because it solves too few tasks: only the throughput has a meaning")
        settings |= {"reward": "benchmarks.gpu_training:random_reward", "evaluation.num_episodes": 0}
    run_dir = place.folder / "run"
    run_deskhand(place.folder / "log", ("train", "tiny_cpu", run_dir), settings, 60 * left)
    with Run.open(run_dir, read_only=True) as run:
        done, last = [entry for entry in run.metrics() if "time/step" in entry], run.checkpoint()
        if by_reward and last is not None:
            for version in (0, last.version):
                print(f"success at version {version}: {build_eval_report(run, f'version-{version}').success}")
    if done:
        print_steps(done)
    thresholds.check("training steps", bool(done), f"{len(done)}", ">= 1")


def imitate(place: Place, model: Path, settings: dict[str, Any], desktops: int, seconds: float) -> Path:
    """Return the last checkpoint of a supervised warm start of at most so many seconds, or `model` if it has none."""
    folder = place.folder / "warm"
    settings = settings | {
        "model": model,
        "policy.train_vision": "true",
        "sft.num_demonstrations": 8 if place.is_small else 32 * desktops,
        "sft.total_steps": 4 if place.is_small else 20_000,
        "sft.episodes_per_batch": 2 if place.is_small else 32,
        "sft.learning_rate": 5e-4,
        "sft.save_every": 2 if place.is_small else 50,
        "sft.log_every": 2 if place.is_small else 50,
        "sft.val_fraction": 0,
    }
    words, began = ("sft", "tiny_cpu", folder), time.monotonic()
    run_deskhand(place.folder / "log", words, settings, 10 * seconds if place.is_small else seconds)
    if not (folder / "run.sqlite").exists():
        print("no demonstration was played in time")
        return model
    with Run.open(folder, read_only=True) as run:
        played, last, losses = run.episodes(DEMONSTRATIONS), run.checkpoint(), run.metrics()
    step = 0 if last is None else last.step
    print(f"warm start: {len(played)} episodes of the oracle, {step} updates in {time.monotonic() - began:.0f} s")
    if losses:
        print(f"loss: {losses[0]['train/loss']:.3f} -> {losses[-1]['train/loss']:.3f} nat per token")
    return model if last is None or not last.step else last.path


def evaluate(place: Place, source: Path, settings: dict[str, Any]) -> float:
    """Return the success of a checkpoint on held-out tasks."""
    folder = place.folder / "evaluation"
    words = ("eval", folder, "--config", "tiny_cpu", "--policy", source)
    began = time.monotonic()
    run_deskhand(place.folder / "log", words, settings, 60 * place.minutes)
    seconds = time.monotonic() - began
    with Run.open(folder, read_only=True) as run:
        rows = run.episodes()
        (name,) = {row.phase for row in rows}
        success = build_eval_report(run, name).success
    print(f"success after imitation: {success} ({len(rows)} episodes in {seconds:.0f} s, with the start)", flush=True)
    return success.value


PARTS = {"step": time_steps, "learning": learn}


def main() -> None:
    parser = parser_of(__doc__, "on cuda:0, where there is one")
    parser.add_argument("--part", choices=sorted(PARTS), help="the only part to run")
    parser.add_argument("--minutes", type=float, default=10.0, help="time limit of a part (default: 10)")
    arguments = parser.parse_args()
    print_head()
    is_small = arguments.size != "full" or not torch.cuda.is_available()
    if is_small:
        print("no GPU is used: the smallest size on the processor, which shows that the command works")
    device, dtype = ("cpu", "float32") if is_small else ("cuda:0", "bfloat16")
    thresholds = Thresholds()
    for name in [arguments.part] if arguments.part else PARTS:
        print(f"\n{name}", flush=True)
        with tempfile.TemporaryDirectory(prefix="deskhand-gpu-") as folder:
            PARTS[name](Place(Path(folder), device, dtype, arguments.minutes, is_small), thresholds)
    thresholds.finish()


if __name__ == "__main__":
    main()
