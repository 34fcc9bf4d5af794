"""Whole episodes on real embedded desktops, with a scripted policy; the benchmark at its smallest size."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_oracle_episodes_leave_no_process_and_books_that_close():
    command = [sys.executable, "-m", "benchmarks.rollout", "--episodes", "4", "--desktops", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "books: started=4 in_flight=0" in done.stdout
    assert "pass  processes left behind: 0" in done.stdout
