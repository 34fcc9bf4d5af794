"""Environments of foreign programs (`scripts/environment`), made the first time that a test needs one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNREACHABLE = (
    "Could not fetch", "No matching distribution", "name resolution", "Network is unreachable", "timed out",
)  # fmt: skip


def python_of(name: str, switch: str | None = None, source: Path | None = None, interpreter: str | None = None) -> Path:
    """The Python of an environment, of a source tree if one is given.

    The test is skipped where the variable `switch` is 0; without a switch, where the package index cannot be reached.
    """
    if switch and os.environ.get(switch) == "0":
        pytest.skip(f"{switch}=0: the tests against a real {name} are left out")
    words = ["bash", str(ROOT / "scripts" / "environment"), name, *([str(source)] if source else [])]
    environment = os.environ if interpreter is None else {**os.environ, "PYTHON": interpreter}
    done = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=environment)
    if not switch and done.returncode != 0 and any(sign in done.stderr for sign in UNREACHABLE):
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip()) / "bin" / "python"


def packages_of(name: str, switch: str | None = None) -> Path:
    """The packages of an environment that are used beside those of this Python, as entries of its path."""
    (found,) = (python_of(name, switch, interpreter=sys.executable).parents[1] / "lib").glob("python3.*/site-packages")
    return found


@contextmanager
def beside_packages_of(name: str) -> Iterator[None]:
    """Import the packages of an environment where this Python has none of the same name."""
    packages = str(packages_of(name))
    sys.path.append(packages)
    try:
        yield
    finally:
        sys.path.remove(packages)
