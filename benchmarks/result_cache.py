"""Results of earlier runs, for benchmarks that take hours and may be interrupted: `ResultCache`.

A result is kept as long as the sources that made it are unchanged, whatever it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.thresholds import ROOT


class ResultCache:
    """Results by key, in a file of JSON lines named by the benchmark and the content of its `sources`."""

    def __init__(self, name: str, sources: Iterable[str]) -> None:
        digest = hashlib.sha256()
        for path in sorted(file for source in sources for file in ROOT.glob(source) if file.is_file()):
            digest.update(f"{path.relative_to(ROOT)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.path = Path(home, "deskhand", "benchmarks", f"{name}-{digest.hexdigest()[:16]}.jsonl")
        self._results: dict[str, Any] = {}
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                self._results[row["key"]] = row

    def get(self, key: str) -> Any | None:
        """Return an earlier result, or None."""
        row = self._results.get(key)
        return row["result"] if row else None

    def put(self, key: str, result: Any) -> None:
        """Keep a result, which must be JSON."""
        self._results[key] = {"key": key, "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), "result": result}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self._results[key]) + "\n")
