"""Processor time and memory of two commits in one run.

`python -m benchmarks.versions [--full] [--baseline COMMIT] [--part PART]`

The baseline is checked out into a temporary folder (`git worktree`) and runs with the same Python. Where a policy
plays or is trained, both trees load the bundled checkpoint of the baseline, weights and tokenizer: this tree's own may
have been built again since, and is then another policy. Every part runs alternately in both trees; figures are medians
of CPU time, which other load disturbs less than wall time. Printed, each with its ratio:

1. start: `deskhand --help` and `deskhand doctor`, with their child processes;
2. step: one step of an agent on an instant desktop, 1280x720: screen, recorder, an engine that takes patches in the
form in which the tree's engines take them, store;
3. recorder: a call over HTTP with one new screenshot, with 1 and 32 sessions, for engines that take patches as bytes,
that take them as float32 values (no threshold: engines of this tree take bytes), and that take none. A tree without
stored bytes is compared by its values;
4. trainer: a training step of the policy on sequences of unlike lengths with the settings of the demo, its memory, and
the largest difference of log-probs between the commits. A trainer that uses the engine's image features has such an
engine, as in a run;
5. with --full, seven steps of the demo: peak memory and episodes per minute.

--smoke compares this tree with itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning import MAX_MIB
from benchmarks.recorder import overheads_ms
from benchmarks.recorder_vs_areal import Proxy, deskhand
from benchmarks.thresholds import ROOT, Thresholds, parser_of, print_head

BASELINE = "5fc41c0"
PARTS = Path(__file__).parent / "peers" / "version_parts.py"
ENDPOINT = Path("benchmarks") / "peers" / "deskhand_endpoint.py"
CHECKPOINT = Path("deskhand") / "models" / "tiny" / "weights"
MAX_HELP_S, MAX_DOCTOR_S = 0.4, 1.5
MAX_DIFFERENCE = 1e-4
"""Nats; log-probs of float32 models."""


@dataclass(frozen=True)
class Size:
    """Amount of work. `sessions`: how many, and the calls of each."""

    rounds: int
    screen: tuple[int, int]
    steps: int
    rows: int
    sessions: tuple[tuple[int, int], ...]
    demo_steps: int


SIZES = {
    "smoke": Size(1, (160, 128), 2, 6, ((2, 2),), 0),
    "small": Size(3, (1280, 720), 6, 48, ((1, 12), (32, 2)), 0),
    "full": Size(5, (1280, 720), 10, 48, ((1, 24), (32, 3)), 7),
}


@dataclass(frozen=True)
class Tree:
    """A checkout, and the checkpoint that it loads."""

    name: str
    root: Path
    checkpoint: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": f"{self.root}:{self.root / 'tests' / 'support'}", "OMP_NUM_THREADS": "1"}

    def engine(self, kind: str) -> str:
        """Return this tree's name of an engine of `deskhand_endpoint`. Older trees have `looking`, which takes values,
        and `blind`."""
        return kind if kind == "blind" or '"bytes"' in (self.root / ENDPOINT).read_text() else "looking"


@contextmanager
def trees(baseline: str | None) -> Iterator[tuple[Tree, Tree]]:
    """Yield the baseline, checked out into a temporary folder, and this tree. Without a baseline both are this tree."""
    if baseline is None:
        tree = Tree("this tree", ROOT, ROOT / CHECKPOINT)
        yield tree, tree
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(root), baseline], check=True, capture_output=True)
        try:
            yield Tree(baseline, root, root / CHECKPOINT), Tree("this tree", ROOT, root / CHECKPOINT)
        finally:
            subprocess.run([*git, "remove", "--force", str(root)], check=True, capture_output=True)


def used_by(words: list[str], tree: Tree) -> tuple[str, float, float]:
    """Run a command in a tree; return its output, its CPU seconds with those of its children, and its peak in MiB."""
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            words, cwd=tree.root, env=tree.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, text=True
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        said = out.read()
    if process.returncode:
        raise RuntimeError(f"{' '.join(words)[:200]} in {tree.name} ended with {process.returncode}: {said[-1500:]}")
    return said, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def part(name: str, tree: Tree, **settings: Any) -> dict[str, Any]:
    """Run a part of `version_parts` in a tree."""
    said, _, _ = used_by([sys.executable, str(PARTS), name, json.dumps(settings)], tree)
    return json.loads(said.splitlines()[-1])


def alternately(rounds: int, both: tuple[Tree, Tree], measure: Callable[[Tree], Any]) -> list[list[Any]]:
    """Return the measurements of both trees, taken in turn."""
    found: list[list[Any]] = [[], []]
    for number in range(rounds):
        for index in (0, 1) if number % 2 == 0 else (1, 0):
            found[index].append(measure(both[index]))
    return found


class Comparison:
    """Prints medians of both trees and checks their ratio."""

    def __init__(self, thresholds: Thresholds) -> None:
        self.thresholds = thresholds

    def show(self, name: str, found: list[list[float]], unit: str, max_ratio: float | None = None) -> float:
        """Print two medians; `max_ratio` is the threshold of this tree's share. Return this tree's median."""
        before, now = (statistics.median(each) for each in found)
        ratio = now / before if before else float("nan")
        print(f"{name:52s} {before:10.2f} -> {now:10.2f} {unit:8s} ratio {ratio:5.2f}", flush=True)
        if max_ratio is not None:
            self.thresholds.check(name, ratio <= max_ratio, f"{ratio:.2f} of the baseline", f"<= {max_ratio:g}")
        return now


def start(size: Size, both: tuple[Tree, Tree], shown: Comparison) -> None:
    """The command line's own cost."""
    for command, limit in ((["--help"], MAX_HELP_S), (["doctor"], MAX_DOCTOR_S)):
        words = [sys.executable, "-m", "deskhand", *command]
        found = alternately(size.rounds, both, lambda tree, words=words: used_by(words, tree)[1])
        now = shown.show(f"deskhand {command[0]}", found, "CPU-s")
        shown.thresholds.check(f"deskhand {command[0]}", now <= limit, f"{now:.2f} CPU-s", f"<= {limit} CPU-s")


def steps(size: Size, both: tuple[Tree, Tree], shown: Comparison) -> None:
    """The cost of an agent's step, and that both trees stored the same screens."""
    width, height = size.screen
    settings = {"width": width, "height": height, "episodes": 3, "steps": size.steps}
    found = alternately(size.rounds, both, lambda tree: part("step", tree, **settings))
    shown.show(f"a step, {width}x{height}", [[one["ms"] for one in each] for each in found], "CPU-ms", 0.5)
    stored = {(one["stored"], one["first"]) for each in found for one in each}
    shown.thresholds.check(
        "stored screens", len(stored) == 1, f"{len(stored)} different sets", "the same in both trees"
    )


async def _calls(size: Size, both: tuple[Tree, Tree], shown: Comparison) -> None:
    """The cost of a call over HTTP for the server's process."""
    kinds = (
        ("bytes", "patches as bytes", 1 / 1.5),
        ("values", "patches as values", None),
        ("blind", "no patches", 1 / 1.5),
    )
    for kind, name, max_ratio in kinds:
        before, now = (deskhand(tree.engine(kind), tree.root) for tree in both)
        async with before as before, now as now:
            for sessions, count in size.sessions:
                found: list[list[float]] = [[], []]
                for number in range(size.rounds):
                    for index, proxy in enumerate((before, now)):
                        found[index].append(await cost_ms(proxy, size.screen, sessions, count, f"{kind}-{number}"))
                shown.show(f"a call, {sessions} sessions, engine takes {name}", found, "CPU-ms", max_ratio)


async def cost_ms(proxy: Proxy, screen: tuple[int, int], sessions: int, count: int, label: str) -> float:
    """Return the CPU milliseconds of a call with one new screenshot, the first call of each session included."""
    shown = 1 + int(label.rpartition("-")[2])  # other screens in each round
    before = proxy.cpu_s()
    await overheads_ms(proxy, screen, sessions, count, shown, label)
    return 1e3 * (proxy.cpu_s() - before) / (sessions * (count + 1))


def calls(size: Size, both: tuple[Tree, Tree], shown: Comparison) -> None:
    asyncio.run(_calls(size, both, shown))


def trainer(size: Size, both: tuple[Tree, Tree], shown: Comparison) -> None:
    """The cost of a training step, and how far the log-probs of the trees differ."""
    width, height = (320, 256) if size.rows > 6 else size.screen
    with tempfile.TemporaryDirectory() as folder:

        def measure(tree: Tree) -> dict[str, Any]:
            out = Path(folder) / f"{tree.root.name}-{both.index(tree)}.npz"
            settings = {
                "checkpoint": str(tree.checkpoint),
                "rows": size.rows,
                "steps": 3,
                "width": width,
                "height": height,
                "out": str(out),
            }
            found = part("trainer", tree, **settings)
            with np.load(out) as scored:
                return {**found, "logprobs": [scored[name] for name in scored.files]}

        found = alternately(size.rounds, both, measure)
    shown.show("a training step", [[one["s"] for one in each] for each in found], "CPU-s", 1 / 1.25)
    shown.show("memory after training steps", [[one["rss_mib"] for one in each] for each in found], "MiB")
    first, second = (each[0] for each in found)
    pairs = zip(first["logprobs"], second["logprobs"], strict=True)
    difference = max(float(np.abs(one - other).max()) for one, other in pairs)
    shown.thresholds.check(
        "log-probs", difference <= MAX_DIFFERENCE, f"{difference:.1e} nats apart", f"<= {MAX_DIFFERENCE:g}"
    )
    print(f"loss of the first step: {first['loss']:.7f} -> {second['loss']:.7f}")


def demo(size: Size, both: tuple[Tree, Tree], shown: Comparison) -> None:
    """Seven steps of the demo."""
    if not size.demo_steps:
        return

    def measure(tree: Tree) -> tuple[float, float]:
        with tempfile.TemporaryDirectory() as folder:
            run_dir, config = f"{folder}/run", str(tree.root / "configs" / "tiny_cpu.yaml")
            old = tree.name == BASELINE
            names = ("loop.steps", "evaluation.episodes") if old else ("loop.total_steps", "evaluation.num_episodes")
            words = [sys.executable, "-m", "deskhand", "train", config, *(["--folder"] if old else []), run_dir]
            values = (f"model={tree.checkpoint}", f"{names[0]}={size.demo_steps}", f"{names[1]}=0")
            _, _, peak_mib = used_by([*words, *(word for value in values for word in ("--set", value))], tree)
            with sqlite3.connect(f"{run_dir}/run.sqlite") as database:
                rows = database.execute(
                    "SELECT COUNT(*), MIN(started_at), MAX(finished_at) FROM episodes "
                    "WHERE group_id IS NOT NULL AND value IS NOT NULL"
                ).fetchone()
        return peak_mib, 60 * rows[0] / (rows[2] - rows[1])

    found = alternately(min(2, size.rounds), both, measure)
    peak = shown.show("peak memory of the demo", [[peak for peak, _ in each] for each in found], "MiB")
    shown.thresholds.check("peak memory of the demo", peak <= MAX_MIB, f"{peak:.0f} MiB", f"<= {MAX_MIB} MiB")
    rates = [[rate for _, rate in each] for each in found]
    now = shown.show("episodes per minute of the demo", rates, "")
    gain = now / statistics.median(rates[0])
    shown.thresholds.check("episodes per minute of the demo", gain >= 1.5, f"{gain:.2f} times", ">= 1.5 times")


MEASUREMENTS = {"start": start, "step": steps, "recorder": calls, "trainer": trainer, "demo": demo}


def main() -> None:
    parser = parser_of(__doc__, "more rounds, and seven steps of the demo")
    parser.add_argument("--baseline", default=BASELINE, help=f"commit to compare with (default: {BASELINE})")
    parser.add_argument("--part", choices=MEASUREMENTS, help="the only part to run")
    options, thresholds = parser.parse_args(), Thresholds()
    parts = [options.part] if options.part else list(MEASUREMENTS)
    size, shown = SIZES[options.size], Comparison(thresholds)
    print_head()
    with trees(None if options.size == "smoke" else options.baseline) as both:
        print(f"baseline: {both[0].name}")
        for part in parts:
            MEASUREMENTS[part](size, both, shown)
    thresholds.finish()


if __name__ == "__main__":
    main()
