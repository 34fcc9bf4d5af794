"""Judges that do what judges should not, found by name in another process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def half(*arguments: object) -> float:
    print("what a judge prints is not what it says")
    return 0.5


async def quarter() -> float:
    return 0.25


def counted(path: str, then: str) -> float:
    """Writes down that it was asked, then does as told."""
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")
    if then == "hang":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        Path(path).with_suffix(".children").write_text(f"{child.pid} {os.getpid()}")
        time.sleep(3600)
    if then == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if then == "raise":
        raise ValueError("no such ledger")
    if then == "recover":
        return 1.0 if len(Path(path).read_text().splitlines()) > 1 else 1 / 0
    if then == "nap":
        time.sleep(4)
        return 1.0
    return {"nan": float("nan"), "none": None, "zero": 0}[then]  # pyright: ignore[reportReturnType]
