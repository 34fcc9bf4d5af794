"""Thousands of episodes of one process: `python -m benchmarks.training_soak [--full] [--desktops local]` (2,000
episodes; otherwise 200).

`deskhand train` runs as a user runs it, on painted desktops whose episodes take milliseconds, or on local desktops with
the bundled policy. From outside, its memory, descriptors, threads and child processes are sampled every second, and its
episodes are counted in the run's database. The second quarter is compared with the last; the first warms up caches.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from benchmarks.fault_rows.parts import SUPPORT
from benchmarks.thresholds import ROOT, Thresholds, parser_of, print_head
from deskhand.store.run import TRAIN, Run

MAX_GROWTH = 0.15
"""Of the memory, between the second quarter and the last."""
MAX_SLOWDOWN = 2.0
SAMPLE_S = 1.0
EPISODES_PER_STEP = 8
"""Lower bound; groups without signal add to it."""


@dataclass(frozen=True)
class Sample:
    """The process at one moment; `episodes` have ended."""

    at_s: float
    anonymous_mib: float
    descriptors: int
    threads: int
    children: int
    episodes: int = 0


def look(process: psutil.Process, since: float) -> Sample | None:
    """Return the state of a process, None if it has ended."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
        values = dict(line.split(":", 1) for line in status.splitlines())
        anonymous = int(values["RssAnon"].split()[0]) / 1024
        descriptors = len(os.listdir(f"/proc/{process.pid}/fd"))
        return Sample(time.monotonic() - since, anonymous, descriptors, int(values["Threads"]), len(process.children()))
    except (OSError, KeyError, psutil.Error):
        return None


def watch(words: Sequence[str], environment: dict[str, str], folder: Path) -> tuple[int, list[Sample]]:
    """Run a command to its end; return its exit code and its samples, with the episodes that had ended."""
    began, began_at = time.monotonic(), time.time()
    samples: list[Sample] = []
    with (folder.parent / "output.txt").open("w") as output:
        running = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        process = psutil.Process(running.pid)
        while running.poll() is None:
            if (sample := look(process, began)) is not None:
                samples.append(sample)
            time.sleep(SAMPLE_S)
    if not (folder / "run.sqlite").exists():
        return running.returncode, []
    with Run.open(folder, read_only=True) as run:
        ended = sorted(row.finished_at - began_at for row in run.episodes(TRAIN) if row.finished_at is not None)
    return running.returncode, [replace(sample, episodes=bisect(ended, sample.at_s)) for sample in samples]


def quarters(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Return the samples during training, by quarters of the episodes."""
    last = max((sample.episodes for sample in samples), default=0)
    during = [sample for sample in samples if 0 < sample.episodes < last]
    found: list[list[Sample]] = [[], [], [], []]
    for sample in during:
        found[min(3, 4 * sample.episodes // last)].append(sample)
    return found


def judge(samples: Sequence[Sample], wanted: int, thresholds: Thresholds) -> None:
    """Compare the second quarter with the last."""
    total = max((sample.episodes for sample in samples), default=0)
    thresholds.check("episodes", total >= wanted, str(total), f"at least {wanted}")
    found = quarters(samples)
    if not all(found):
        thresholds.check("samples", False, f"{len(samples)}", "some in every quarter")
        return
    print("      quarter | episodes/min | anonymous MiB (median, max) | descriptors | threads | children", flush=True)
    rates = []
    for number, part in enumerate(found, 1):
        lasted = max(part[-1].at_s - part[0].at_s, SAMPLE_S)
        rates.append(60 * (part[-1].episodes - part[0].episodes) / lasted)
        memory = [sample.anonymous_mib for sample in part]
        most = [max(getattr(sample, name) for sample in part) for name in ("descriptors", "threads", "children")]
        print(
            f"      {number} | {rates[-1]:.0f} | {statistics.median(memory):.0f}, {max(memory):.0f} | "
            + " | ".join(map(str, most)),
            flush=True,
        )
    second, last = ([sample.anonymous_mib for sample in part] for part in (found[1], found[3]))
    before, after = statistics.median(second), statistics.median(last)
    limit = f"grows by {100 * MAX_GROWTH:.0f} % at most"
    thresholds.check("memory", after <= (1 + MAX_GROWTH) * before, f"{before:.0f} to {after:.0f} MiB", limit)
    for name, spare in (("descriptors", 4), ("threads", 4), ("children", 2)):
        before, after = (statistics.median(getattr(sample, name) for sample in found[at]) for at in (1, 3))
        thresholds.check(name, after <= before + spare, f"{before:.0f} then {after:.0f}", f"{spare} more at most")
    figure = f"{rates[1]:.0f} then {rates[3]:.0f} episodes/min"
    thresholds.check("speed", MAX_SLOWDOWN * rates[3] >= rates[1], figure, f"{MAX_SLOWDOWN:g}x slower at most")


def soak(folder: Path, episodes: int, desktops: str) -> tuple[int, list[Sample]]:
    """Train for at least `episodes` episodes in a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(SUPPORT))
    import painted_run

    steps = -(-episodes // EPISODES_PER_STEP)
    if desktops == "painted":
        config = painted_run.config_file(folder, steps=steps, evaluations=0)
        overrides = []
    else:
        config = ROOT / "configs" / "tiny_cpu.yaml"
        settings = {"evaluation.num_episodes": 0, "loop.total_steps": -(-episodes // 48), "max_minutes": "null"}
        overrides = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    words = painted_run.command("train", str(config), str(folder / "run"), *overrides)
    return watch(words, painted_run.environment(), folder / "run")


def main() -> None:
    parser: argparse.ArgumentParser = parser_of(__doc__, "2,000 episodes")
    parser.add_argument("--desktops", choices=("painted", "local"), default="painted")
    parser.add_argument("--episodes", type=int, help="another number of episodes")
    options = parser.parse_args()
    episodes = options.episodes or {"smoke": 40, "small": 200, "full": 2000}[options.size]
    print_head()
    with tempfile.TemporaryDirectory() as name:
        code, samples = soak(Path(name), episodes, options.desktops)
        output = (Path(name) / "output.txt").read_text()
    thresholds = Thresholds()
    thresholds.check("exit code", code == 0, str(code) if code == 0 else output[-2000:], "0")
    judge(samples, episodes, thresholds)
    thresholds.finish()


if __name__ == "__main__":
    main()
