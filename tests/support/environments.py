"""Environments of foreign programs (`scripts/environment`), made the first time that a test needs one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNREACHABLE = (
    "Could not fetch", "No matching distribution", "name resolution", "Network is unreachable", "timed out",
)  # fmt: skip


def python_of(name: str, switch: str | None = None, source: Path | None = None) -> Path:
    """The Python of an environment, of a source tree if one is given.

    The test is skipped where the variable `switch` is 0; without a switch, where the package index cannot be reached.
    """
    if switch and os.environ.get(switch) == "0":
        pytest.skip(f"{switch}=0: the tests against a real {name} are left out")
    words = ["bash", str(ROOT / "scripts" / "environment"), name, *([str(source)] if source else [])]
    done = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if not switch and done.returncode != 0 and any(sign in done.stderr for sign in UNREACHABLE):
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip()) / "bin" / "python"
