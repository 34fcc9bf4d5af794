"""Fault matrix: `python -m benchmarks.faults [--full] [ROW ...]`.

Each row injects one class of faults (quota, network, machine, process, disk, evaluator, guest, model text) between
Deskhand's clients and servers; `benchmarks/fault_rows` has one coroutine per row. Printed per row: faults per 1,000
steps, faults survived (work continued or the episode was errored as expected, with no action lost or repeated),
errored episodes, and mean time to recover. Some rows use a fake clock.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import structlog

from benchmarks.fault_rows import alerts, local, network, proxies, quotas, text, training
from benchmarks.fault_rows.parts import Row
from benchmarks.thresholds import Thresholds, parser_of, print_head

ROWS: dict[int, Callable[[float, Path], Awaitable[Row]]] = {
    int(name.removeprefix("row_")): getattr(module, name)
    for module in (quotas, network, local, text, proxies, training, alerts)
    for name in vars(module)
    if name.startswith("row_")
}
QUICK = (1, 14)
"""Rows of a smoke run; the tests run every row separately."""
HEAD = "| row | fault | steps | faults in 1 000 steps | survived | errored | mean time to recover | result | took |"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


async def run(numbers: list[int], size: float) -> list[Row]:
    """Run rows one after the other."""
    found = []
    for number in numbers:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            row = await ROWS[number](size, Path(folder))
        print(_line((*row.cells(), f"{time.monotonic() - began:.1f} s")), flush=True)
        found.append(row)
    return found


def _numbers(text: str) -> range:
    """Parse "19" or "20-32". Raises `ArgumentTypeError`, printed by the parser."""
    first, _, last = text.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a row nor a range of rows such as 20-32")
    found = range(int(first), int(last or first) + 1)
    missing = sorted(set(found) - ROWS.keys())
    if missing or not found:
        raise argparse.ArgumentTypeError(f"no such row in {text}: {missing}")
    return found


def main() -> None:
    parser = parser_of(__doc__, "10^5 actions, 5 000 episodes, 30 s of partition, five rounds of kills")
    parser.add_argument(
        "rows",
        nargs="*",
        type=_numbers,
        metavar="ROW",
        help=f"rows to run, such as 19 or 20-32 (default: all of {', '.join(map(str, sorted(ROWS)))})",
    )
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    thresholds = Thresholds()
    print_head()
    print(f"{HEAD}\n{_line(['---'] * (HEAD.count('|') - 1))}")
    asked = {number for numbers in arguments.rows for number in numbers}
    chosen = sorted(asked or (QUICK if arguments.size == "smoke" else ROWS))
    rows = asyncio.run(run(chosen, 1.0 if arguments.size == "full" else 0.0))
    for row in rows:
        if row.wrong:
            thresholds.missed.append(f"row {row.number}")
    steps, injected = sum(row.steps for row in rows), sum(row.injected for row in rows)
    survived = sum(row.survived for row in rows)
    recovery = [seconds for row in rows for seconds in row.recovery_s]
    middle = f"{1000 * sum(recovery) / len(recovery):.1f} ms" if recovery else "-"
    shown = (
        f"{survived} of {injected} faults survived, {sum(row.unscored for row in rows)} episodes errored, "
        f"mean time to recover {middle}"
    )
    rate = f"{1000 * sum(row.injected for row in rows if row.steps) / max(1, steps):.1f}"
    for row in rows:
        print("".join(f"      row {row.number}: {line}\n" for line in row.details), end="", flush=True)
    thresholds.check(
        f"{len(rows)} rows, {steps} steps, {rate} faults in 1 000 steps", not thresholds.missed, shown, "all rows ok"
    )
    thresholds.finish()


if __name__ == "__main__":
    main()
