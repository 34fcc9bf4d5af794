"""What a window over the turns costs in training: `python -m benchmarks.history_policies [--full] [--model FOLDER]`.

Episodes of 30 steps on embedded desktops, twice the same tasks: with a window that grows to 10 turns and drops to 1, whose calls
mostly extend each other, and with one that slides over 5 turns, of which every call is a row of its own. A token counts as
trained on when it goes through the model in a step, as context or as target. The gradient of the merged rows is held against that
of the same calls, one row each; the processor's seconds of a step of both are measured side by side.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.exactness import gradient
from benchmarks.recording import Recording, held_out_tasks, record
from benchmarks.thresholds import Bars, print_head
from deskhand.agents.history import ChunkedHistory, SlidingHistory
from deskhand.models.load import load
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer

STEPS = 30
GROWING, SLIDING = ChunkedHistory(grow_to=10, drop_to=1), SlidingHistory(keep=5)


@dataclass(frozen=True)
class Cost:
    """Of training on one recording, per episode."""

    rows: float
    tokens: float
    """Through the model, padding left out."""
    images: float
    """Screenshots placed in rows; each is encoded once all the same."""
    sampled: float
    seconds: float
    """Of the processor, of a whole step, the best of all that were taken; other work on the machine changes little of it."""


def cost(source: str, recording: Recording, merge: bool, steps: int) -> Cost:
    """Count the rows, then take so many steps on them."""
    count = len(recording.results)
    samples = [
        TrainingSample(row, 1.0 if number % 2 else -1.0, result.episode_id)
        for number, result in enumerate(recording.results)
        for row in result.graph.sequences(merge)
    ]
    trainer = Trainer(Policy(load(source).model, banned_ids=recording.renderer.banned_ids))
    seconds = []
    for _ in range(steps):
        started = time.process_time()
        done = trainer.step(samples, recording.images)
        seconds.append(time.process_time() - started)
        if done.rejected or not done.updates:
            raise SystemExit(
                f"the trainer rejected {done.rejected} and made {done.updates} updates; nothing can be compared"
            )
    rows = [sample.sequence for sample in samples]
    return Cost(
        rows=len(rows) / count,
        tokens=sum(len(row.token_ids) for row in rows) / count,
        images=sum(len(row.spans) for row in rows) / count,
        sampled=sum(sum(row.sampled) for row in rows) / count,
        seconds=min(seconds) / count,
    )


@dataclass(frozen=True)
class Windows:
    """What was measured."""

    episodes: int
    steps: int
    """Of the shortest episode."""
    growing: Cost
    growing_single: Cost
    """The growing window's calls, one row each."""
    sliding: Cost
    cosine: float
    """Of the growing window's merged gradient and that of its calls, one row each."""


async def measure(source: str, folder: Path, *, episodes: int, desktops: int, steps: int = 2) -> Windows:
    """Record with both windows, then compare."""
    tasks = held_out_tasks(episodes)
    growing, sliding = [
        await record(source, tasks, folder / name, desktops=desktops, window=window, turns=STEPS)
        for name, window in (("growing", GROWING), ("sliding", SLIDING))
    ]
    return await asyncio.to_thread(compare, source, growing, sliding, steps)


def compare(source: str, growing: Recording, sliding: Recording, steps: int) -> Windows:
    """Costs of both and the gradients of the first."""
    merged, single = (gradient(source, growing, merge) for merge in (True, False))
    return Windows(
        episodes=len(growing.results),
        steps=min(len(result.graph.calls) for result in (*growing.results, *sliding.results)),
        growing=cost(source, growing, merge=True, steps=steps),
        growing_single=cost(source, growing, merge=False, steps=steps),
        sliding=cost(source, sliding, merge=False, steps=steps),
        cosine=float(torch.nn.functional.cosine_similarity(merged, single, dim=0)),
    )


def judge(found: Windows, bars: Bars) -> None:
    """Print the figures against their bars."""
    print(f"{found.episodes} episodes of each window; per episode:")
    named = {
        "grow to 10, drop to 1, merged": found.growing,
        "the same calls, one row each": found.growing_single,
        "sliding over 5, one row per call": found.sliding,
    }
    for name, each in named.items():
        print(
            f"  {name:33} {each.rows:5.1f} rows {each.tokens:8.0f} tokens {each.images:6.1f} screenshots "
            f"{each.sampled:6.0f} sampled {each.seconds:6.2f} s of processor a step"
        )
    fewer = found.sliding.tokens / found.growing.tokens
    bars.check("steps an episode", found.steps >= STEPS, f"{found.steps} at least", f">= {STEPS}")
    bars.check("tokens trained", fewer >= 4, f"{fewer:.2f} times fewer than sliding", ">= 4 times")
    bars.check("merged gradient", found.cosine > 0.9999, f"cosine {found.cosine:.8f}", "> 0.9999")
    print(
        f"a step on the sliding window's rows takes {found.sliding.seconds / found.growing.seconds:.2f} times the processor time"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print_head()
    with tempfile.TemporaryDirectory(prefix="deskhand-windows-") as folder:
        sizes = {"episodes": 8, "desktops": 4} if options.full else {"episodes": 2, "desktops": 2}
        found = asyncio.run(measure(options.model, Path(folder), **sizes))
    bars = Bars()
    judge(found, bars)
    bars.finish()


if __name__ == "__main__":
    main()
