"""The dialects of actions, asked much: `python -m benchmarks.actions [--full]`.

Round trips: ops of every kind that a dialect carries are said and read back, by Hypothesis; nothing may be lost or changed without
a word. Mutated replies: what is read must be ops or a `ParseError`, whatever the text; while replies are read, Python's audit
events say whether anything was executed, opened or started. Printed: refused shares, the median time to read a reply.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from hypothesis import HealthCheck, Phase, given, seed, settings

from benchmarks import action_cases as cases
from benchmarks.thresholds import Bars, print_head
from deskhand.actions import conformance, formats

FULL_ROUND_TRIPS, FULL_REPLIES = 100_000, 1_000_000
ROUND_TRIPS, REPLIES = 500, 20_000
BATCH = 20
"""Ops that Hypothesis draws at a time; more of them would cost it as much each, fewer would cost more."""
CHUNK = 10_000
"""Ops that Hypothesis remembers at a time."""
TOGETHER = 4
"""Ops of a batch that are also said in one reply."""
_FORBIDDEN = ("exec", "open", "import", "os.", "subprocess.", "socket.", "ctypes.", "shutil.", "pty.")

_executed: list[str] | None = None


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    nameless = event == "open" and arguments[:1] == (
        "",
    )  # Python's parser looks for the file of code that it cannot read
    if _executed is not None and event.startswith(_FORBIDDEN) and not nameless:
        _executed.append(f"{event} {arguments!r}"[:200])


@contextmanager
def audited() -> Iterator[list[str]]:
    """Collects the events of code that is executed, files that are opened and programs that are started inside."""
    global _executed
    found: list[str] = []
    _executed = found
    try:
        yield found
    finally:
        _executed = None


sys.addaudithook(_audit)


@dataclass
class Found:
    """What was seen of one dialect."""

    name: str
    round_trips: int = 0
    refused: int = 0
    losses: list[str] = field(default_factory=list)
    replies: int = 0
    understood: int = 0
    exceptions: list[str] = field(default_factory=list)
    executed: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """To read each reply."""


def round_trips(name: str, count: int) -> Found:
    """Say and read back `count` ops of any kind that the dialect carries, each in a reply of its own."""
    dialect, found = formats.get(name), Found(name)
    batches = cases.in_any_view(partial(cases.batch_of_ops, count=BATCH), dialect)
    for number in range(-(-count // CHUNK)):
        asked = settings(
            max_examples=-(-min(CHUNK, count - number * CHUNK) // BATCH),
            database=None,
            deadline=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )

        @seed(number)
        @asked
        @given(batches)
        def check(case: tuple[cases.ScreenView, list[object]]) -> None:
            view, ops = case
            for op in ops:
                found.round_trips += 1
                found.refused += cases.round_trip(dialect, view, [op]) is None
            cases.round_trip(dialect, view, cases.going_on(ops)[:TOGETHER])

        try:
            check()
        except Exception as error:
            found.losses.append(f"{name}: {error}")
            break
    return found


def replies(name: str, count: int) -> Found:
    """Read `count` mutations of the corpus and of emitted replies."""
    dialect, found, chance = formats.get(name), Found(name), random.Random(name)
    texts = [case.text for case in conformance.load_cases(name) if case.text]
    texts += [dialect.emit([cases.plain_op(kind, cases.VIEWS[0])], cases.VIEWS[0]) for kind in cases.carried(dialect)]
    for text in texts:
        cases.read_or_refused(dialect, text, cases.VIEWS[0])
    for number in range(count):
        text, view = cases.spoiled(chance.choice(texts), texts, chance), cases.VIEWS[number % len(cases.VIEWS)]
        began = time.perf_counter()
        with audited() as executed:
            try:
                found.understood += not isinstance(cases.read_or_refused(dialect, text, view), Exception)
            except Exception as error:
                found.exceptions.append(f"{name}: {type(error).__name__}: {error} for {text!r}")
        found.seconds.append(time.perf_counter() - began)
        found.executed += executed
        found.replies += 1
    return found


def shown(names: Sequence[str], trips: Sequence[Found], read: Sequence[Found], bars: Bars) -> None:
    """Print a line for each dialect and the bars."""
    print(f"{'dialect':20} {'round trips':>12} {'refused':>8} {'replies':>9} {'read':>6} {'median':>9}")
    for name, said, heard in zip(names, trips, read, strict=True):
        refused, understood = said.refused / said.round_trips, heard.understood / heard.replies
        median_us = 1e6 * statistics.median(heard.seconds)
        print(f"{name:20} {said.round_trips:12} {refused:8.1%} {heard.replies:9} {understood:6.1%} {median_us:6.0f} us")
    losses = [loss for found in trips for loss in found.losses]
    exceptions = [error for found in read for error in found.exceptions]
    executed = [event for found in read for event in found.executed]
    for text in (*losses, *exceptions[:5], *executed[:5]):
        print(text)
    total = sum(found.round_trips for found in trips)
    bars.check(f"silent losses in {total} round trips", not losses, f"{len(losses)}", "0")
    total = sum(found.replies for found in read)
    bars.check(f"exceptions but ParseError in {total} replies", not exceptions, f"{len(exceptions)}", "0")
    bars.check("executed, opened or started while reading", not executed, f"{len(executed)}", "0")
    median_ms = 1e3 * statistics.median(second for found in read for second in found.seconds)
    bars.check("median time to read a reply", median_ms < 1, f"{median_ms:.3f} ms", "< 1 ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    print_head()
    names = formats.available_formats()
    count, spoiled = (FULL_ROUND_TRIPS, FULL_REPLIES) if options.full else (ROUND_TRIPS, REPLIES)
    bars = Bars()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        trips = list(pool.map(partial(round_trips, count=count), names))
        read = list(pool.map(partial(replies, count=-(-spoiled // len(names))), names))
    shown(names, trips, read, bars)
    bars.finish()


if __name__ == "__main__":
    main()
