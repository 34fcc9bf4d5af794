"""Clauses of the suite's checks, and example end states around a correct one.

Every clause reports what was read and what was expected; an end state scores 1 if all hold, else 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from deskhand.tasks.outcome import Finding
from deskhand.tasks.task import CheckResult, ExampleEndStates, FileContents


def clause(name: str, read: Any, expected: Any) -> Finding:
    """Return a clause that holds if the two are equal."""
    return Finding(name, float(read == expected), repr(read), repr(expected))


def same_files(name: str, read: Mapping[str, Any], expected: Mapping[str, Any]) -> Finding:
    """Return a clause that holds if exactly these files have these contents; it reports those that differ."""
    paths = sorted(read.keys() | expected.keys())
    wrong = [path for path in paths if not (path in read and path in expected and read[path] == expected[path])]
    if not wrong:
        return Finding(name, 1.0, f"{len(read)} files as expected", f"{len(expected)} files")
    return Finding(name, 0.0, _describe(read, wrong), _describe(expected, wrong))


def _describe(files: Mapping[str, Any], paths: Iterable[str]) -> str:
    return "; ".join(f"{path}: {_text(files[path]) if path in files else 'missing'}" for path in paths)


def _text(content: Any) -> str:
    return repr(content.decode("utf-8", errors="replace") if isinstance(content, bytes) else content)


def combine_clauses(*findings: Finding, untrusted_source: bool = False) -> CheckResult:
    """Return the check that all clauses hold."""
    wrong = [finding for finding in findings if finding.value < 1.0]
    detail = "; ".join(f"{finding.clause}: {finding.read}, not {finding.expected}" for finding in wrong)
    return CheckResult(float(not wrong), detail or "as expected", untrusted_source, findings)


def near_misses(right: FileContents, target: str, **negatives: FileContents) -> ExampleEndStates:
    """Return end states around `right`: the file `target` without its last letter, under another name, and `negatives`.

    Underscores in the names of `negatives` become spaces.
    """
    path = PurePosixPath(target)
    renamed = {str(path.with_stem(f"{path.stem}2")): right[target]}
    return ExampleEndStates(
        {
            "the last letter is missing": {**right, target: right[target].rstrip(b"\n")[:-1]},
            "it has another name": renamed | {name: data for name, data in right.items() if name != target},
            **{name.replace("_", " "): files for name, files in negatives.items()},
        },
        right,
    )
