"""Whether processes that tests look at still run."""

from __future__ import annotations

from pathlib import Path


def is_alive(process: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
