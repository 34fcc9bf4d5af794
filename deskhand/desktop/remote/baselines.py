"""Windows and files of each machine when it was first seen clean.

Used by `waa_desktop`: a later reset compares against this baseline, across desktop objects and processes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import TypeAdapter

from deskhand.errors import ConfigError

BASELINES_FILE = "machine_baselines.json"
"""File in a run directory."""
State = dict[str, list[str]]
"""Window titles and file paths, by kind."""
_STATES = TypeAdapter(dict[str, State])


class BaselineStore:
    """Baselines by machine URL, stored in `file` if there is one. Raises `ConfigError` if the file is damaged."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self._states: dict[str, State] = {}
        if file is not None and file.exists():
            try:
                self._states = _STATES.validate_json(file.read_bytes())
            except (OSError, ValueError):
                raise ConfigError(f"{file}: damaged; remove it to record the machines again") from None

    def get(self, address: str) -> State | None:
        return self._states.get(address)

    def save(self, address: str, state: State) -> None:
        """Blocks for a small file write."""
        self._states[address] = state
        if self.file is not None:
            partial = self.file.with_suffix(f".{os.getpid()}.partial")
            partial.write_text(json.dumps(self._states, indent=1), encoding="utf-8")
            partial.replace(self.file)
