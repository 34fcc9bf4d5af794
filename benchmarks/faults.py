"""The fault matrix: `python -m benchmarks.faults [--full] [ROW ...]`.

Quotas, networks, machines, processes, disks, judges, guests and model text fail as they do in the field, between our own clients
and our own servers; `benchmarks/fault_rows` has a coroutine for each row. Where it says so, time is a fake clock's. Each row says
how many faults came on 1 000 steps, how many of them were survived (the work went on, or ended unscored as it should, with nothing
done twice and nothing lost), how many episodes ended unscored, and how long it took until the same thing worked again.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import structlog

from benchmarks.fault_rows import local, network, quotas
from benchmarks.fault_rows.parts import Row
from benchmarks.thresholds import Bars, parser_of, print_head

ROWS: dict[int, Callable[[float, Path], Awaitable[Row]]] = {
    int(name.removeprefix("row_")): getattr(module, name)
    for module in (quotas, network, local)
    for name in vars(module)
    if name.startswith("row_")
}
QUICK = (1, 14)
"""Rows of a smoke run; the tests run each on its own."""
HEAD = (
    "row",
    "fault",
    "steps",
    "faults in 1 000 steps",
    "survived",
    "unscored",
    "mean time to recover",
    "result",
    "took",
)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


async def run(numbers: list[int], size: float) -> list[Row]:
    """The rows of these numbers, one after the other."""
    found = []
    for number in numbers:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            row = await ROWS[number](size, Path(folder))
        print(_line((*row.cells(), f"{time.monotonic() - began:.1f} s")), flush=True)
        found.append(row)
    return found


def main() -> None:
    parser = parser_of(__doc__, "10^5 actions, 5 000 episodes, 30 s of partition, five rounds of kills")
    parser.add_argument(
        "rows", nargs="*", type=int, metavar="ROW", help=f"of {', '.join(map(str, sorted(ROWS)))}; all if none is named"
    )
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    bars = Bars()
    print_head()
    print(_line(HEAD))
    print(_line(["---"] * len(HEAD)))
    chosen = sorted(arguments.rows or (QUICK if arguments.size == "smoke" else ROWS))
    rows = asyncio.run(run(chosen, 1.0 if arguments.size == "full" else 0.0))
    for row in rows:
        if row.wrong:
            bars.missed.append(f"row {row.number}")
    steps, injected = sum(row.steps for row in rows), sum(row.injected for row in rows)
    survived = sum(row.survived for row in rows)
    recovery = [seconds for row in rows for seconds in row.recovery_s]
    middle = f"{1000 * sum(recovery) / len(recovery):.1f} ms" if recovery else "-"
    shown = f"{survived} of {injected} faults survived, {sum(row.unscored for row in rows)} episodes unscored, mean {middle} to recover"
    rate = f"{1000 * sum(row.injected for row in rows if row.steps) / max(1, steps):.1f}"
    bars.check(
        f"{len(rows)} rows, {steps} steps, {rate} faults in 1 000 steps",
        not bars.missed,
        shown,
        "every row as it has to be",
    )
    bars.finish()


if __name__ == "__main__":
    main()
