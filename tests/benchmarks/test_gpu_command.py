"""The benchmark of one device, at its tiny size: it plays, trains, publishes, and its peak is the planner's."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from patience import limit

from benchmarks.thresholds import ROOT


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_the_command_measures_everything_it_names(mode: str) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--only", mode]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=limit(200))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no GPU is used" in done.stdout
    assert re.search(r"episodes/min: [1-9]\d*\.\d \(4 of 4", done.stdout), done.stdout
    assert re.search(rf"^{mode}: 0\.[1-9]\d*e6 weights, 0\.\d*[1-9]\d*e6 trained", done.stdout, re.MULTILINE), (
        "few are counted in millions"
    )
    assert re.search(r"^weights +[1-9]\.\d\d MiB", done.stdout, re.MULTILINE), done.stdout
    for name in ("sampled", "trained", "MFU", "publish", "sum, device"):
        assert re.search(rf"^{name}:? ", done.stdout, re.MULTILINE), name
    assert re.search(rf"^pass  {mode}: measured peak", done.stdout, re.MULTILINE), done.stdout
    assert done.stdout.rstrip().endswith("all bars met")
