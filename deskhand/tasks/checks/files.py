"""Checks `file`, `text`, `json` and `csv`.

Values are equal if type and value are: 1 is not "1" and not true.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from deskhand.desktop.base import StageableDesktop
from deskhand.tasks import subprocess_call
from deskhand.tasks.checks.base import UNREADABLE, FileCheckModel, InvalidDocument, quoted
from deskhand.tasks.task import CheckResult

Ignored = Literal["case", "blanks", "final_newline"]


class FileCheck(FileCheckModel):
    """A file exists or not; with `sha256`, its bytes have that digest (hex)."""

    exists: bool = True
    sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _consistent(self) -> FileCheck:
        if self.sha256 is not None and not self.exists:
            raise ValueError("sha256 needs exists: true")
        return self

    async def measure(self, desktop: StageableDesktop) -> CheckResult:
        if not self.exists:
            try:
                await desktop.pull(self.path)
            except FileNotFoundError:
                return CheckResult(1.0, f"{self.path}: does not exist")
            except UNREADABLE:
                pass
            return CheckResult(0.0, f"{self.path}: exists")
        return await super().measure(desktop)

    def find_problem(self, data: bytes) -> str | None:
        digest = hashlib.sha256(data).hexdigest()
        return f"its sha256 is {digest}" if self.sha256 not in (None, digest) else None


class TextCheck(FileCheckModel):
    """A file's text; every given condition must hold.

    `equals` is the whole text, `contains` and `lacks` are parts, `matches` is a regular expression for the whole
    text, `lines` its lines. `ignore` ignores case, the amount of white space, or line feeds at the end, in the file
    and the condition.
    """

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

    def _normalize(self, text: str) -> str:
        if "case" in self.ignore:
            text = text.casefold()
        if "blanks" in self.ignore:
            text = "\n".join(" ".join(line.split()) for line in text.split("\n"))
        return text.rstrip("\n") if "final_newline" in self.ignore else text

    def find_problem(self, data: bytes) -> str | None:
        return self.find_text_problem(text_of(data))

    def find_text_problem(self, text: str) -> str | None:
        """Return what is wrong with a text, or None."""
        found = self._normalize(text)
        if self.equals is not None and found != self._normalize(self.equals):
            return f"is {quoted(text)}"
        for piece in self.contains:
            if self._normalize(piece) not in found:
                return f"does not contain {quoted(piece)}"
        for piece in self.lacks:
            if self._normalize(piece) in found:
                return f"contains {quoted(piece)}"
        if self.matches is not None and not subprocess_call.matches(
            self.matches, found, ignore_case="case" in self.ignore
        ):
            return f"{quoted(text)} does not match {self.matches}"
        if self.lines is not None and found.splitlines() != [self._normalize(line) for line in self.lines]:
            return f"its lines are {quoted(found.splitlines())}"
        return None


class JsonCheck(FileCheckModel):
    """The value at `at` (keys and list positions from the root; empty: the whole) of a JSON file."""

    at: list[str | int] = Field(default_factory=list)
    equals: Any
    within: float = Field(default=0.0, ge=0)
    """Tolerance for numbers."""

    def find_problem(self, data: bytes) -> str | None:
        value = json_of(data)
        for key in self.at:
            inside = isinstance(value, dict) if isinstance(key, str) else isinstance(value, list)
            if not inside or (key not in value if isinstance(key, str) else not -len(value) <= key < len(value)):
                return f"has nothing at {key!r}"
            value = value[key]
        return None if values_equal(value, self.equals, self.within) else f"has {quoted(value)}"


class CsvCheck(FileCheckModel):
    """All rows of a CSV file, without white space around cells; with `ordered: false` in any order."""

    delimiter: str = Field(default=",", min_length=1, max_length=1)
    rows: list[list[str]]
    ordered: bool = True

    def find_problem(self, data: bytes) -> str | None:
        try:
            read = list(csv.reader(io.StringIO(text_of(data)), delimiter=self.delimiter))
        except csv.Error as error:
            raise InvalidDocument(f"invalid CSV: {error}") from error
        rows = [[cell.strip() for cell in row] for row in read if row]
        same = rows == self.rows if self.ordered else sorted(rows) == sorted(self.rows)
        return None if same else f"its rows are {quoted(rows)}"


def text_of(data: bytes) -> str:
    """Return UTF-8 text, with or without a byte order mark. Raises `InvalidDocument`."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidDocument(f"invalid UTF-8: {error.reason} at byte {error.start}") from error


def json_of(data: bytes) -> Any:
    """Return the value of a JSON file. Raises `InvalidDocument`."""
    try:
        return json.loads(text_of(data))
    except (ValueError, RecursionError) as error:
        raise InvalidDocument(f"invalid JSON: {error}") from error


def values_equal(found: Any, wanted: Any, within: float = 0.0) -> bool:
    """Return whether two JSON values are equal by type and value; numbers may differ by `within`."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    if isinstance(found, int | float) and isinstance(wanted, int | float):
        return found == wanted or math.isclose(found, wanted, rel_tol=0.0, abs_tol=within)
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(values_equal(a, b, within) for a, b in zip(found, wanted, strict=True))
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(values_equal(found[key], wanted[key], within) for key in wanted)
    return type(found) is type(wanted) and found == wanted
