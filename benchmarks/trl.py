"""Processor time of GRPO steps, next to TRL's `GRPOTrainer`: `python -m benchmarks.trl [--full]`.

Both train the bundled policy with the same prompts, screenshots, rewards and settings, one thread each, in processes of
their own that take turns (`benchmarks.peers.grpo_steps`). A step samples 8 completions for each of 6 prompts with a
screenshot of 320x256 and makes one update. Printed are medians of CPU time, which other load disturbs less than wall
time, without the first step of each process:

1. generation: from messages to sampled tokens, Deskhand's with the recorder;
2. update: all the rest, with preprocessing, gradient and optimizer.

TRL samples with transformers' `generate`; its users with GPUs sample with vLLM, so nothing follows for GPUs. TRL and
what it needs besides Deskhand's own packages come from `scripts/environment trl`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import sysconfig
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.grpo_steps import Work
from benchmarks.thresholds import ROOT, Thresholds, parser_of, print_head

SIZES = {
    "smoke": (1, Work(1, 2, 4, 64, 64, 2)),
    "small": (1, Work(6, 8, 24, 320, 256, 4)),
    "full": (3, Work(6, 8, 24, 320, 256, 6)),
}
"""Processes of each side, and their work."""
MIN_RATIO = 4.0


def packages() -> Path:
    """Return the folder with TRL's packages, installed if they are missing."""
    environment = {**os.environ, "PYTHON": os.path.realpath(sys.executable)}
    words = ["bash", str(ROOT / "scripts" / "environment"), "trl"]
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return Path(done.stdout.strip(), *Path(sysconfig.get_path("purelib")).relative_to(sys.prefix).parts)


def run(side: str, work: Work, folder: Path) -> dict[str, Any]:
    """Run one side in a process of its own and return its `grpo_steps.Measured`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if side == "trl":
        path = [str(ROOT), str(Path(sysconfig.get_path("purelib"))), str(folder)]
        environment["PYTHONPATH"] = os.pathsep.join(path)
    words = [sys.executable, "-m", "benchmarks.peers.grpo_steps", side, json.dumps(asdict(work))]
    done = subprocess.run(
        words, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{side} ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    options, thresholds = parser_of(__doc__, "three processes of each side, six steps each").parse_args(), Thresholds()
    rounds, work = SIZES[options.size]
    folder = packages()
    print_head()
    found: dict[str, list[dict[str, Any]]] = {"deskhand": [], "trl": []}
    for _ in range(rounds):
        for side, runs in found.items():
            runs.append(run(side, work, folder))
    prompts = {side: {one for each in runs for one in each["prompt_tokens"]} for side, runs in found.items()}
    same = prompts["deskhand"] == prompts["trl"]
    thresholds.check("prompts", same, f"{prompts['deskhand']} and {prompts['trl']} tokens a step", "equal")
    print("| CPU-s of a step | Deskhand | TRL | ratio |\n| --- | --- | --- | --- |")
    ratios = dict[str, float]()
    for name in ("generation", "update"):
        ours, theirs = (
            statistics.median(one for each in runs for one in each[f"{name}_s"][1:]) for runs in found.values()
        )
        ratios[name] = theirs / ours
        print(f"| {name} | {ours:.2f} | {theirs:.2f} | {theirs / ours:.2f} |")
    for name, unit in (("sampled_tokens", "tokens"), ("peak_mib", "MiB")):
        values = [
            [one for each in runs for one in ([each[name]] if name == "peak_mib" else each[name][1:])]
            for runs in found.values()
        ]
        ours, theirs = map(statistics.median, values)
        print(f"| {name} ({unit}) | {ours:.0f} | {theirs:.0f} | {theirs / ours:.2f} |")
    for name, ratio in ratios.items():
        thresholds.check(
            name, ratio >= MIN_RATIO, f"TRL takes {ratio:.2f} times Deskhand's CPU time", f">= {MIN_RATIO:g}"
        )
    thresholds.finish()


if __name__ == "__main__":
    main()
