"""Results of earlier runs, for benchmarks that take hours and may be interrupted: `ResultCache`.

A result is kept as long as the sources that made it are unchanged, whatever it is: those of the benchmark, and with
`family_digest` those of the family that was played, so that a change of one family leaves the results of the others.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.thresholds import ROOT
from deskhand.tasks.task import Family


def digest_of(paths: Iterable[Path]) -> str:
    """Return a digest of the names and contents of files."""
    digest = hashlib.sha256()
    for path in sorted(path for path in paths if path.is_file()):
        digest.update(f"{path.relative_to(ROOT)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
    return digest.hexdigest()[:16]


def family_digest(family: str, package: str = "deskhand.tasks.suites") -> str:
    """Return a digest of the module of a package that has a family, or a table `WAYS` with it, and of what this module
    imports from the package; of the whole package if there is none."""
    for name, module in sorted(sys.modules.items()):
        if name.startswith(f"{package}.") and not hasattr(module, "__path__"):
            families = {value.name for value in vars(module).values() if isinstance(value, Family)}
            if family in families.union(getattr(module, "WAYS", ())):
                return digest_of(module_files(name, package))
    return digest_of((ROOT / package.replace(".", "/")).glob("**/*.py"))


@functools.cache
def module_files(module: str, package: str) -> frozenset[Path]:
    """Return the files of a module and of the modules of the package that it imports, also indirectly. Packages
    (`__init__.py`), which list their modules, are left out."""
    found, left = dict[str, Path](), [module]
    while left:
        name = left.pop()
        file = ROOT / f"{name.replace('.', '/')}.py"
        if name not in found and file.exists():
            found[name] = file
            left += (each for each in _imports(file) if each.startswith(f"{package}."))
    return frozenset(found.values())


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


class ResultCache:
    """Results by key, in a file of JSON lines named by the benchmark and the content of its `sources`, which are
    patterns of files."""

    def __init__(self, name: str, sources: Iterable[str]) -> None:
        digest = digest_of(file for source in sources for file in ROOT.glob(source))
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.path = Path(home, "deskhand", "benchmarks", f"{name}-{digest}.jsonl")
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
