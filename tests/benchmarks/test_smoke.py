"""Every benchmark runs to its end at its smallest size. Its figures are not judged: other work may go on beside it.

`DESKHAND_TEST_FULL=1` also runs those that take longest and that mostly do what others do.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from full import FULL
from task_files import SHARED

from benchmarks import evidence
from benchmarks.thresholds import ROOT

TESTED_WHOLE = {"exactness", "gpu", "gpu_options", "gpu_training"}
"""`test_gpu_pages.py` runs them and reads what they print."""
LONG = {"carry_over", "learning_methods", "miniwob", "ppo", "scaling", "training_soak", "trl", "versions"}
FOLDERS = {"carry_over", "learning", "learning_methods", "miniwob", "ppo"}
UNREACHABLE = (
    "No matching distribution found",
    "Temporary failure in name resolution",
    "Network is unreachable",
    "timed out",
)


@pytest.mark.parametrize("name", sorted(set(evidence.names()) - TESTED_WHOLE - (set() if FULL else LONG)))
def test_a_benchmark_runs_at_its_smallest_size(name, tmp_path):
    if name == "osworld_tasks" and not (SHARED / "osworld").is_dir():
        pytest.skip("OSWorld's task files are not beside the checkout (../shared)")
    words = ["-m", f"benchmarks.{name}", "--smoke", *(["--folder", str(tmp_path)] if name in FOLDERS else [])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    if done.returncode and any(sign in said for sign in UNREACHABLE):
        pytest.skip(f"the package index cannot be reached: {said.strip().splitlines()[-1]}")
    assert done.returncode in (0, 1), said
    assert "Traceback" not in said, said
    assert re.search(r"^(all thresholds met|missed: .+)$", done.stdout.splitlines()[-1]), said
