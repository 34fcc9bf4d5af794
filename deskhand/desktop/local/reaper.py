"""The warden: a small process that outlives its owner by a moment and cleans up. Invariant: it ends when its owner has.

Its standard input is a pipe that the owner holds open; end of file means that the owner has gone, whatever it died of.
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
