"""Reaper: a small process that outlives its owner and cleans up.

Its standard input is a pipe held open by the owner; end of file means that the owner has died.
"""

from __future__ import annotations

import sys
from pathlib import Path

from deskhand.desktop.local.runtime_dir import remove


def main() -> None:
    """`argv`: the owner's token, its folder."""
    token, folder = sys.argv[-2], Path(sys.argv[-1])
    sys.stdin.buffer.read()
    remove(token, folder)
