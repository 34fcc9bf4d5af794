"""Whether every click and key arrives: `python -m benchmarks.input_delivery [--full] [--toolkits A,B] [--events N]`.

Clients of five toolkits count the input that reaches them (`benchmarks/input_clients`), each on a desktop of its own,
several at once, without and with eight busy processes. An event is a click or a key stroke. Steps click buttons from
afar and twice at once, click a text field or a cell and type into it in one action or in two, replace text by a
shortcut, type doubled characters and characters without a key, and type into another window in between. Lost: the
client did not get it, or a field or cell has another text than was typed. Doubled: it got more than was sent. Latency
is that of a step, including the settled screen. Clients that are missing are named with their Debian packages.

At full size counts are kept in `runs/input_delivery.jsonl`; a run ends after `MAX_MINUTES`, and a later one of the same
commit continues.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from benchmarks.desktop_parts import processor_s
from benchmarks.input_clients import OTHER_WINDOW, PACKAGES, SPEC, Client, is_installed
from benchmarks.thresholds import ROOT, Thresholds, commit, parser_of, print_head
from deskhand.actions.ops import Click, Key, Op, Type
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import DeskhandError

EVENTS = {"smoke": 40, "small": 500, "full": 10_000}
"""Events by size, for each toolkit and load."""
MIN_EVENTS, MIN_TOTAL = 5000, 100_000
"""For each toolkit and load, and together, at full size."""
MAX_EVENTS = 1250
"""On one desktop; then a new one is started."""
MAX_MINUTES = 20.0
MAX_FAILURES = 5
"""Desktops of a toolkit and load that may fail, as for want of a processor; their events are not counted."""
COUNTS = ROOT / "runs" / "input_delivery.jsonl"
LOADS = {"idle": 0, "a busy process": 1, "eight busy processes": 8}
"""Number of busy processes by load."""
DEFAULT_LOADS, SMOKE_LOADS = "idle,eight busy processes", "idle,a busy process"
"""A smoke run goes on beside other tests, which eight busy processes would delay."""
HEAD = (
    "| toolkit | load | load average | events | clicks | keys | lost | doubled "
    "| click step, ms | type step, ms | CPU per step, ms |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)
ARRIVAL_S = 5.0
WORDS = ("aabbcc", "66*2", "Tool", "hello world", "x+y=z", "A1", "book keeper", "0.5", "mississippi", "Q&A")
SPARE_WORDS = ("é ж 中", "naïve ñ", "αβγ")
BUTTONS = [f"b{index}" for index in range(12)]


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run `count` processes that compute without end."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@dataclass
class Tally:
    """What was sent to a client, what it did not get or got twice, and milliseconds of steps by kind."""

    clicks: int = 0
    keys: int = 0
    lost: int = 0
    doubled: int = 0
    processor_s: float = 0.0
    steps: int = 0
    step_ms: dict[str, list[float]] = field(default_factory=dict)
    loads: list[float] = field(default_factory=list)
    """Load averages of the machine."""
    examples: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Why desktops failed and were replaced."""

    @property
    def sent(self) -> int:
        return self.clicks + self.keys

    def count(self, expected: Counter[str], found: Counter[str], what: str) -> None:
        missing, surplus = expected - found, found - expected
        self.lost += missing.total()
        self.doubled += surplus.total()
        if missing or surplus:
            self.examples.append(f"{what}: missing {dict(missing)}, surplus {dict(surplus)}")

    def add(self, other: Tally) -> None:
        for name in ("clicks", "keys", "lost", "doubled", "processor_s", "steps", "loads", "examples", "failures"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for kind, times in other.step_ms.items():
            self.step_ms[kind] = self.step_ms.get(kind, []) + times

    def row(self, toolkit: str, load: str) -> str:
        times = " | ".join(
            f"{statistics.median(self.step_ms[kind]):.0f}" if kind in self.step_ms else "" for kind in ("click", "type")
        )
        used, average = 1000 * self.processor_s / max(1, self.steps), statistics.mean(self.loads)
        counts = f"{self.sent} | {self.clicks} | {self.keys} | {self.lost} | {self.doubled}"
        return f"| {toolkit} | {load} | {average:.0f} | {counts} | {times} | {used:.0f} |"


class Player:
    """Performs timed steps on one desktop."""

    def __init__(self, desktop: LocalDesktop, tally: Tally) -> None:
        self.desktop = desktop
        self.tally = tally
        self._next = 0

    async def step(self, kind: str, ops: list[Op]) -> None:
        self._next += 1
        start = time.perf_counter()
        await self.desktop.perform(ops, action_id=str(self._next))
        self.tally.step_ms.setdefault(kind, []).append(1000 * (time.perf_counter() - start))
        self.tally.steps += 1
        for op in ops:
            self.tally.clicks += op.count if isinstance(op, Click) else 0
            self.tally.keys += len(op.text) if isinstance(op, Type) else isinstance(op, Key)


async def _check(client: Client, tally: Tally, expected: Counter[str], name: str, text: str) -> None:
    """Count what the client got, and whether the field or cell `name` has a text; waits for what is expected."""
    found: Counter[str] = Counter()
    texts: dict[str, str] = {}
    deadline = time.monotonic() + ARRIVAL_S
    while True:
        for entry in await client.take():
            kind, _, rest = entry.partition(" ")
            if kind == "text":
                place, _, texts[place] = rest.partition(" ")
            else:
                found[entry] += 1
        if time.monotonic() > deadline or not (expected - found or texts.get(name) != text):
            break
        await asyncio.sleep(0.05)
    tally.count(expected, found, repr(text))
    if not expected - found and texts.get(name) != text:
        tally.lost += 1
        tally.examples.append(f"{name} has {texts.get(name)!r} instead of {text!r}")


def _text(rng: random.Random) -> str:
    words: list[str] = rng.choices(WORDS, k=rng.randint(1, 5))
    if rng.random() < 0.2:
        words.append(rng.choice(SPARE_WORDS))
    return " ".join(words)


async def play(client: Client, events: int, tally: Tally, rng: random.Random) -> None:
    """Send about `events` events and count what arrives."""
    player, points = Player(client.desktop, tally), client.points
    other_keys = await client.heard()
    while tally.sent < events:
        names = rng.sample(BUTTONS, 3)
        for name in names:
            await player.step("click", [Click(points[name])])
        await player.step("double click", [Click(points[names[1]], count=2)])
        field_name = rng.choice(("e0", "e1"))
        text = _text(rng)
        replace: list[Op] = [Key(("ctrl", "a")), Type(text)]
        match rng.randrange(3):
            case 0:
                await player.step("click and type", [Click(points[field_name]), *replace])
            case 1:
                await player.step("click", [Click(points[field_name])])
                await player.step("shortcut", [Key(("ctrl", "a"))])
                await player.step("type", [Type(text)])
            case _:
                other_keys += 1
                ops = [Click(OTHER_WINDOW), Type("x"), Click(points[field_name]), *replace]
                await player.step("other window", ops)
        expected = sum((client.clicks(name) for name in (*names, field_name)), client.clicks(names[1], 2))
        expected.update(f"key {character}" for character in f"a{text}")
        await _check(client, tally, expected, field_name, text)
    heard = await client.heard()
    tally.count(Counter({"x": other_keys}), Counter({"x": heard}), "the other window")


async def play_cells(client: Client, events: int, tally: Tally, rng: random.Random) -> None:
    """Send about `events` events to cells. Their texts begin with different numbers, so that none is completed."""
    player, number = Player(client.desktop, tally), 1000
    while tally.sent < events:
        number += 1
        name, text = rng.choice(sorted(client.points)), f"{number} {_text(rng)}"
        if rng.random() < 0.5:
            await player.step("click and type", [Click(client.points[name]), Type(f"{text}\n")])
        else:
            await player.step("click", [Click(client.points[name])])
            await player.step("type", [Type(f"{text}\n")])
        expected = client.clicks(name)
        expected.update(f"key {character}" for character in f"{text}\r")
        await _check(client, tally, expected, name, text)


async def measure(toolkit: str, load: str, events: int, seed: str) -> Tally | None:
    """Return the tally of one toolkit on a new desktop; None if its client is not installed."""
    tally, desktop = Tally(), LocalDesktop()
    try:
        await desktop.reset(SPEC)
        if not await is_installed(desktop, toolkit):
            return None
        client = Client(desktop, toolkit)
        await client.start()
        pids = desktop.processes()
        used_s = processor_s(pids)
        await (play_cells if toolkit == "LibreOffice" else play)(client, events, tally, random.Random(seed))
        tally.processor_s = processor_s(pids) - used_s
        tally.loads.append(os.getloadavg()[0])
    finally:
        await desktop.close()
    return tally


class Counts:
    """The tallies by (toolkit, load); at full size kept in `COUNTS`, with those of earlier runs of this commit."""

    def __init__(self, *, is_kept: bool) -> None:
        self._is_kept, self._commit = is_kept, commit()
        self._end_at = time.monotonic() + 60 * MAX_MINUTES
        self.tallies: dict[tuple[str, str], Tally] = {}
        for line in COUNTS.read_text().splitlines() if is_kept and COUNTS.exists() else ():
            of_commit, toolkit, load, values = json.loads(line)
            if of_commit == self._commit:
                self._add(toolkit, load, Tally(**values))

    def _add(self, toolkit: str, load: str, tally: Tally) -> None:
        self.tallies.setdefault((toolkit, load), Tally()).add(tally)

    def missing(self, toolkit: str, load: str, events: int) -> int:
        """Return how many of so many events remain to be sent; none when the time is over."""
        sent = self.tallies[toolkit, load].sent if (toolkit, load) in self.tallies else 0
        return max(0, events - sent) if time.monotonic() < self._end_at else 0

    async def fill(self, toolkit: str, load: str, events: int) -> None:
        """Send events to clients of a toolkit until there are so many, in parts."""
        while missing := self.missing(toolkit, load, events):
            try:
                tally = await measure(toolkit, load, min(MAX_EVENTS, missing), f"{toolkit} {load} {missing}")
            except DeskhandError as error:
                if len(self.tallies.get((toolkit, load), Tally()).failures) >= MAX_FAILURES:
                    raise
                tally = Tally(failures=[str(error)], loads=[os.getloadavg()[0]])
            if tally is None:
                return
            self._add(toolkit, load, tally)
            if self._is_kept:
                COUNTS.parent.mkdir(exist_ok=True)
                with COUNTS.open("a") as file:
                    file.write(f"{json.dumps([self._commit, toolkit, load, asdict(tally)])}\n")


async def fill_all(counts: Counts, load: str, toolkits: list[str], events: int, at_once: int) -> None:
    """Send events to clients of all toolkits, to some of them at once."""
    free = asyncio.Semaphore(at_once)

    async def fill(toolkit: str) -> None:
        async with free:
            await counts.fill(toolkit, load, events)

    if any(counts.missing(toolkit, load, events) for toolkit in toolkits):
        with busy_processes(LOADS[load]):
            await asyncio.gather(*map(fill, toolkits))


def main() -> None:
    parser = parser_of(__doc__, "10,000 events for each toolkit and load")
    parser.add_argument("--toolkits", default=",".join(PACKAGES), help="default: all")
    parser.add_argument("--loads", help=f"some of {', '.join(LOADS)} (default: {DEFAULT_LOADS})")
    parser.add_argument("--events", type=int, help="for each toolkit and load, instead of the size's")
    parser.add_argument("--at-once", metavar="N", type=int, default=3, help="desktops that are played at once (3)")
    options = parser.parse_args()
    print_head()
    is_full, is_smoke = options.size == "full", options.size == "smoke"
    loads = (options.loads or (SMOKE_LOADS if is_smoke else DEFAULT_LOADS)).split(",")
    toolkits = options.toolkits.split(",")
    thresholds, total, counts = Thresholds(), Tally(), Counts(is_kept=is_full)
    events = options.events or EVENTS[options.size]
    for part in (events,) if is_smoke else (events // 2, events):  # a run without enough time has some of each
        for load in loads:
            asyncio.run(fill_all(counts, load, toolkits, part, options.at_once))
    print(HEAD)
    for load in loads:
        for toolkit in toolkits:
            tally = counts.tallies.get((toolkit, load))
            if tally is None:
                thresholds.check(toolkit, False, "not installed", f"apt-get install {PACKAGES[toolkit]}")
                continue
            print(tally.row(toolkit, load), flush=True)
            total.add(tally)
    print()
    for (toolkit, load), tally in counts.tallies.items():
        for failure in tally.failures:
            print(f"      {toolkit}, {load}: a desktop failed, its events are not counted: {failure}", flush=True)
        for example in tally.examples[:5]:
            print(f"      {toolkit}, {load}: {example}", flush=True)
    if is_full:
        fewest = min((tally.sent for tally in counts.tallies.values()), default=0)
        thresholds.check("events of each toolkit and load", fewest >= MIN_EVENTS, f"{fewest}", f">= {MIN_EVENTS}")
        thresholds.check("events", total.sent >= MIN_TOTAL, f"{total.sent}", f">= {MIN_TOTAL}")
    thresholds.check("lost", total.lost == 0, f"{total.lost} of {total.sent}", "0")
    thresholds.check("doubled", total.doubled == 0, f"{total.doubled} of {total.sent}", "0")
    thresholds.finish()


if __name__ == "__main__":
    main()
