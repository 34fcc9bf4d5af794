"""Made-up requests to the recorder's endpoint: `python -m benchmarks.fuzz [--full]`.

`tests/support/fuzzed_endpoint.py` changes good requests to every route, guided by what code they reach (atheris), with right,
wrong, foreign and no keys. Judged: no server error, 401 or 403 (or no such route) for every key that does not open what is asked
for, and a good request is answered after each of them. Printed: the answers by status. 20 000 requests, 300 000 with --full.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

from benchmarks.thresholds import ROOT, Bars, print_head

SEEDS = (1, 2, 3, 4)


def run(requests: int, seed: int, folder: str) -> tuple[dict[int, int], str]:
    """(answers by status, what went wrong) of so many requests."""
    support = ROOT / "tests" / "support"
    words = [sys.executable, str(support / "fuzzed_endpoint.py"), str(requests), str(seed), folder]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{support}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        return {}, next(
            (line for line in done.stderr.splitlines() if "RuntimeError" in line or "Error" in line), "it ended"
        )
    return {int(status): count for status, count in json.loads(done.stdout.splitlines()[-1]).items()}, ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="300 000 requests")
    requests, bars = (300_000 if parser.parse_args().full else 20_000) // len(SEEDS), Bars()
    print_head()
    for seed in SEEDS:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            statuses, wrong = run(requests, seed, folder)
        told = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
        figure = wrong or f"{sum(statuses.values())} requests in {time.perf_counter() - started:.0f} s ({told})"
        bars.check(f"seed {seed}", not wrong and max(statuses) < 500, figure, "no server error, no door left open")
    bars.finish()


if __name__ == "__main__":
    main()
