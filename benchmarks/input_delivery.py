"""Whether every click and key arrives: `python -m benchmarks.input_delivery [--full] [--toolkits A,B] [--events N]`.

Clients of five toolkits count the input that reaches them (`benchmarks/input_clients`), on an idle machine and with
eight busy processes. An event is a click or a key stroke. Steps click buttons from afar and twice at once, click a
text field and type into it in one action or in two, replace text by a shortcut, type doubled characters and characters
without a key, and type into another window in between. Lost: the client did not get it, or a field or cell has another
text than was typed. Doubled: it got more than was sent. Latency is that of a step, including the settled screen.
Clients that are missing are named with their Debian packages.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.desktop_parts import processor_s
from benchmarks.input_clients import OTHER_WINDOW, PACKAGES, SPEC, Client, is_installed
from benchmarks.input_clients.calc import COLUMNS, ROWS, Calc
from benchmarks.thresholds import Thresholds, parser_of, print_head
from deskhand.actions.ops import Click, Key, Op, Type
from deskhand.desktop.local.desktop import LocalDesktop

EVENTS = {"smoke": 40, "small": 500, "full": 10_000}
"""Events by size, for each toolkit and load."""
LOADS = {"idle": 0, "eight busy processes": 8}
ARRIVAL_S = 5.0
WORDS = ("aabbcc", "66*2", "Tool", "hello world", "x+y=z", "A1", "book keeper", "0.5", "mississippi", "Q?")
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

    sent: int = 0
    lost: int = 0
    doubled: int = 0
    processor_s: float = 0.0
    steps: int = 0
    step_ms: dict[str, list[float]] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)

    def count(self, expected: Counter[str], found: Counter[str], what: str) -> None:
        missing, surplus = expected - found, found - expected
        self.lost += missing.total()
        self.doubled += surplus.total()
        if missing or surplus:
            self.examples.append(f"{what}: missing {dict(missing)}, surplus {dict(surplus)}")

    def row(self, toolkit: str, load: str) -> str:
        times = " | ".join(
            f"{statistics.median(self.step_ms[kind]):.0f}" if kind in self.step_ms else "" for kind in ("click", "type")
        )
        used = 1000 * self.processor_s / max(1, self.steps)
        return f"| {toolkit} | {load} | {self.sent} | {self.lost} | {self.doubled} | {times} | {used:.0f} |"


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
            self.tally.sent += op.count if isinstance(op, Click) else len(op.text) if isinstance(op, Type) else 1


async def _arrived(client: Client, expected: Counter[str]) -> tuple[Counter[str], dict[str, str]]:
    """Return the counts of what the client got, and the last text of each field; waits for what is expected."""
    found: Counter[str] = Counter()
    texts: dict[str, str] = {}
    deadline = time.monotonic() + ARRIVAL_S
    while True:
        for entry in await client.take():
            kind, _, rest = entry.partition(" ")
            if kind == "text":
                name, _, texts[name] = rest.partition(" ")
            else:
                found[entry] += 1
        if not expected - found or time.monotonic() > deadline:
            return found, texts
        await asyncio.sleep(0.05)


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
        text = rng.choice(SPARE_WORDS if rng.random() < 0.2 else WORDS)
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
        found, texts = await _arrived(client, expected)
        tally.count(expected, found, repr(text))
        if not expected - found and texts.get(field_name) != text:
            tally.lost += 1
            tally.examples.append(f"{field_name} has {texts.get(field_name)!r} instead of {text!r}")
    heard = await client.heard()
    tally.count(Counter({"x": other_keys}), Counter({"x": heard}), "the other window")


async def play_calc(calc: Calc, events: int, tally: Tally, rng: random.Random) -> None:
    """Send about `events` events to LibreOffice, and compare the saved cells after each pass over them."""
    player, number = Player(calc.desktop, tally), 1000
    while tally.sent < events:
        expected: dict[int, int] = {}
        for index in rng.sample(range(COLUMNS * ROWS), COLUMNS * ROWS):
            number += 1
            if rng.random() < 0.5:
                await player.step("click and type", [Click(calc.points[index]), Type(f"{number}\n")])
            else:
                await player.step("click", [Click(calc.points[index])])
                await player.step("type", [Type(f"{number}\n")])
            expected[index] = number
            if tally.sent >= events:
                break
        if lost := await calc.missing(expected):
            tally.lost += lost
            tally.examples.append(f"{lost} of {len(expected)} numbers are not in their cells")


async def measure(toolkit: str, load: str, events: int, seed: int) -> Tally | None:
    """Return the tally of one toolkit at one load; None if its client is not installed."""
    tally, desktop = Tally(), LocalDesktop()
    try:
        await desktop.reset(SPEC)
        if not await is_installed(desktop, toolkit):
            return None
        client = Calc(desktop) if toolkit == "LibreOffice" else Client(desktop, toolkit)
        await client.start()
        pids, rng = desktop.processes(), random.Random(seed)
        with busy_processes(LOADS[load]):
            tally.processor_s = -processor_s(pids)
            if isinstance(client, Calc):
                await play_calc(client, events, tally, rng)
            else:
                await play(client, events, tally, rng)
            tally.processor_s += processor_s(pids)
    finally:
        await desktop.close()
    return tally


def main() -> None:
    parser = parser_of(__doc__, "10,000 events for each toolkit and load: several hours")
    parser.add_argument("--toolkits", default=",".join(PACKAGES), help="default: all")
    parser.add_argument("--loads", default=",".join(LOADS), help="default: all")
    parser.add_argument("--events", type=int, help="for each toolkit and load, instead of the size's")
    options = parser.parse_args()
    print_head()
    thresholds, rows, total = Thresholds(), [], Tally()
    for load in options.loads.split(","):
        for toolkit in options.toolkits.split(","):
            tally = asyncio.run(measure(toolkit, load, options.events or EVENTS[options.size], len(rows)))
            if tally is None:
                thresholds.check(toolkit, False, "not installed", f"apt-get install {PACKAGES[toolkit]}")
                continue
            for example in tally.examples[:5]:
                print(f"      {toolkit}, {load}: {example}", flush=True)
            rows.append(tally.row(toolkit, load))
            print(rows[-1], flush=True)
            total.sent, total.lost = total.sent + tally.sent, total.lost + tally.lost
            total.doubled += tally.doubled
    print("\n| toolkit | load | events | lost | doubled | click step, ms | type step, ms | CPU per step, ms |")
    print("|---|---|---|---|---|---|---|---|")
    print("\n".join(rows))
    thresholds.check("lost", total.lost == 0, f"{total.lost} of {total.sent}", "0")
    thresholds.check("doubled", total.doubled == 0, f"{total.doubled} of {total.sent}", "0")
    thresholds.finish()


if __name__ == "__main__":
    main()
