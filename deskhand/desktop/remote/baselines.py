"""What each machine showed when it was clean for the first time. Invariant: a later reset is compared with that look, by whichever
desktop object or process it is made, so that what an episode left is never taken for what was always there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import TypeAdapter

from deskhand.errors import ConfigError

FILE = "machine_baselines.json"
"""In a run's folder."""
State = dict[str, list[str]]
"""Titles of windows and paths of files, by kind."""
_STATES = TypeAdapter(dict[str, State])


class BaselineStore:
    """By a machine's address; kept in `file`, where there is one, over the end of this process.

    Raises `ConfigError` for a file that is damaged."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self._of: dict[str, State] = {}
        if file is not None and file.exists():
            try:
                self._of = _STATES.validate_json(file.read_bytes())
            except (OSError, ValueError):
                raise ConfigError(
                    f"{file}: not what was written there; remove it to look at the machines anew"
                ) from None

    def get(self, address: str) -> State | None:
        return self._of.get(address)

    def save(self, address: str, state: State) -> None:
        """Blocks for the time of a small write."""
        self._of[address] = state
        if self.file is not None:
            partial = self.file.with_suffix(f".{os.getpid()}.partial")
            partial.write_text(json.dumps(self._of, indent=1), encoding="utf-8")
            partial.replace(self.file)
