"""Checks `file`, `text`, `json` and `csv`; `tasks.file_problems` has their functions."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from deskhand.desktop.base import StageableDesktop
from deskhand.tasks import file_problems
from deskhand.tasks.checks.base import UNREADABLE, FactCheck, FileCheckModel, GuestPath
from deskhand.tasks.task import CheckResult

Ignored = Literal["case", "blanks", "final_newline"]


class FileCheck(FactCheck):
    """A file exists or not; with `sha256`, its bytes have that digest (hex)."""

    path: GuestPath
    exists: bool = True
    sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _consistent(self) -> FileCheck:
        if self.sha256 is not None and not self.exists:
            raise ValueError("sha256 needs exists: true")
        return self

    async def measure(self, desktop: StageableDesktop) -> CheckResult:
        try:
            data = await desktop.pull(self.path)
        except UNREADABLE as error:
            if not self.exists and isinstance(error, FileNotFoundError):
                return CheckResult(1.0, f"{self.path}: does not exist")
            why = (error.strerror or "not a regular file") if self.exists else "exists"
            return CheckResult(0.0, f"{self.path}: {why}")
        if not self.exists:
            return CheckResult(0.0, f"{self.path}: exists")
        digest = hashlib.sha256(data).hexdigest()
        if self.sha256 not in (None, digest):
            return CheckResult(0.0, f"{self.path}: its sha256 is {digest}")
        return CheckResult(1.0, f"{self.path}: as expected")


class TextCheck(FileCheckModel):
    """A file's text; every given condition must hold.

    `equals` is the whole text, `contains` and `lacks` are parts, `matches` is a regular expression for the whole
    text, `lines` its lines. `ignore` ignores case, the amount of white space, or line feeds at the end, in the file
    and the condition.
    """

    find_problem = file_problems.text_problem
    needs_one_of = ("equals", "contains", "lacks", "matches", "lines")
    equals: str | None = None
    contains: list[str] = Field(default_factory=list)
    lacks: list[str] = Field(default_factory=list)
    matches: str | None = None
    lines: list[str] | None = None
    ignore: list[Ignored] = Field(default_factory=list)

    @field_validator("matches")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"invalid regular expression: {error}") from error
        return pattern


class JsonCheck(FileCheckModel):
    """The value at `at` (keys and list positions from the root; empty: the whole) of a JSON file."""

    find_problem = file_problems.json_problem
    at: list[str | int] = Field(default_factory=list)
    equals: Any
    within: float = Field(default=0.0, ge=0)
    """Tolerance for numbers."""


class CsvCheck(FileCheckModel):
    """All rows of a CSV file, without white space around cells; with `ordered: false` in any order."""

    find_problem = file_problems.csv_problem
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    rows: list[list[str]]
    ordered: bool = True
