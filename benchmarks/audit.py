"""The audit of every family: `python -m benchmarks.audit` (`--full`: all of the suite `basics`, otherwise those of small screens).

Idlers, near misses and cheats play each task beside its oracle (see `deskhand tasks audit`). Printed: what each scores, and at the
end every score that must not be. Exits with 1 when there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from deskhand.cli import audit
from deskhand.tasks.audit import LIMITS
from deskhand.tasks.suites.basics import FAMILIES
from deskhand.tasks.task import seed_for

WIDE_PX = 1280


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="also the families on the wide screen")
    options = parser.parse_args()
    tasks = [family.generate(seed_for("train", 1)) for family in FAMILIES.values()]
    chosen = [task for task in tasks if options.full or task.width < WIDE_PX]
    began = time.monotonic()
    rows, skipped = asyncio.run(audit.run(chosen, [], None, lambda line: print(line, flush=True)))
    wrong = [line for row in rows for line in row.wrong]
    for line in [*skipped, *wrong]:
        print(line)
    cheats = [name for name, limit in LIMITS.items() if limit == "zero"]
    paid = sum((row.values.get(name) or 0.0) > 0 for row in rows for name in cheats)
    print(
        f"{len(rows)} families, {len(cheats)} agents that may earn nothing: {paid} of {len(rows) * len(cheats)} were paid"
    )
    solved = sum(row.values.get("oracle") == 1.0 for row in rows)
    print(f"{solved} of {len(rows)} oracles score 1 ({time.monotonic() - began:.0f} s)")
    print("missed: scores that must not be" if wrong or skipped else "no score that must not be")
    sys.exit(bool(wrong or skipped))


if __name__ == "__main__":
    main()
