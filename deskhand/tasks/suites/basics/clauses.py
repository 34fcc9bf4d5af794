"""What a check of the suite says. Invariant: every clause says what was read and what was expected, and an end state is worth 1
when all of them hold, and otherwise 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from deskhand.tasks.outcome import Finding
from deskhand.tasks.task import CheckResult, ExampleEndStates, FileContents

_THERE_IS_NONE = "not there"


def clause(name: str, read: Any, expected: Any) -> Finding:
    """A clause that holds when the two are equal."""
    return Finding(name, float(read == expected), repr(read), repr(expected))


def same_files(name: str, read: Mapping[str, Any], expected: Mapping[str, Any]) -> Finding:
    """A clause that holds when there are just these files with these contents; it tells of those that differ."""
    either = sorted(read.keys() | expected.keys())
    wrong = [path for path in either if not (path in read and path in expected and read[path] == expected[path])]
    if not wrong:
        return Finding(name, 1.0, f"{len(read)} files as they must be", f"{len(expected)} files")
    return Finding(name, 0.0, _told(read, wrong), _told(expected, wrong))


def _told(files: Mapping[str, Any], paths: Iterable[str]) -> str:
    return "; ".join(f"{path}: {_text(files[path]) if path in files else _THERE_IS_NONE}" for path in paths)


def _text(content: Any) -> str:
    return repr(content.decode("utf-8", errors="replace") if isinstance(content, bytes) else content)


def judged(*findings: Finding, guest_trusted: bool = False) -> CheckResult:
    """The check that these clauses are."""
    wrong = [finding for finding in findings if finding.value < 1.0]
    detail = "; ".join(f"{finding.clause}: {finding.read}, not {finding.expected}" for finding in wrong)
    return CheckResult(float(not wrong), detail or "as asked", guest_trusted, findings)


def nearly(right: FileContents, target: str, **near: FileContents) -> ExampleEndStates:
    """End states around `right`, whose file `target` is what the task is about: the same with its last letter missing, with
    another name for it, and those of `near`, by their names with blanks for underscores."""
    changed = right[target].rstrip(b"\n")[:-1]
    path = PurePosixPath(target)
    other = str(path.with_stem(f"{path.stem}2"))
    return ExampleEndStates(
        {
            "the last letter is missing": {**right, target: changed},
            "it has another name": {
                other: right[target],
                **{place: data for place, data in right.items() if place != target},
            },
            **{name.replace("_", " "): files for name, files in near.items()},
        },
        right,
    )
