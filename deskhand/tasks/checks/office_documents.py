"""Checks `sheet` (XLSX, ODS) and `document` (DOCX), by what a reader of the document sees.

The parsers run in a subprocess (`tasks.document_readers`) and need the optional dependencies `office`.
"""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from deskhand.tasks import document_readers, subprocess_call
from deskhand.tasks.checks.base import FileCheckModel, quoted
from deskhand.tasks.checks.files import TextCheck, values_equal

_CELL = re.compile(r"([A-Z]{1,3})([1-9][0-9]{0,6})")
Cell = str | int | float | bool | None


def position(cell: str) -> tuple[int, int]:
    """Return the row and column, from 0, of a cell name. Raises `ValueError`."""
    match = _CELL.fullmatch(cell)
    if match is None:
        raise ValueError(f"invalid cell name {cell!r}; use a name such as B12")
    column = 0
    for letter in match[1]:
        column = column * 26 + ord(letter) - ord("A") + 1
    return int(match[2]) - 1, column - 1


class SheetCheck(FileCheckModel):
    """Cell values of a spreadsheet.

    `cells` are some cells by name (null: empty), `rows` all rows from A1 on without empty ones at the end; dates are
    texts such as 2026-11-30. Numbers may differ by `within`.
    """

    needs_one_of = ("sheets", "cells", "rows")
    sheet: str | None = None
    """Name of the sheet (default: the first)."""
    sheets: list[str] | None = None
    """Names of all sheets, in order."""
    cells: dict[str, Cell] = Field(default_factory=dict)
    rows: list[list[Cell]] | None = None
    within: float = Field(default=1e-9, ge=0)

    @field_validator("cells")
    @classmethod
    def _valid_names(cls, cells: dict[str, Cell]) -> dict[str, Cell]:
        for name in cells:
            position(name)
        return cells

    def find_problem(self, data: bytes) -> str | None:
        names, rows = subprocess_call.call_in_subprocess(f"{document_readers.__name__}:read_sheet", data, self.sheet)
        if self.sheets is not None and names != self.sheets:
            return f"its sheets are {quoted(names)}"
        if rows is None:
            return f"has no sheet {self.sheet!r}; its sheets are {quoted(names)}"
        for name, wanted in self.cells.items():
            row, column = position(name)
            value = rows[row][column] if row < len(rows) and column < len(rows[row]) else None
            if not values_equal(value, wanted, self.within):
                return f"{name} is {quoted(value)}"
        if self.rows is not None and not values_equal(rows, document_readers.trim_rows(self.rows), self.within):
            return f"its rows are {quoted(rows)}"
        return None


class DocumentCheck(FileCheckModel):
    """A text document: all non-empty `paragraphs`, all `tables`, and parts of the text (`contains`, `lacks`)."""

    needs_one_of = ("paragraphs", "tables", "contains", "lacks")
    paragraphs: list[str] | None = None
    tables: list[list[list[str]]] | None = None
    contains: list[str] = Field(default_factory=list)
    lacks: list[str] = Field(default_factory=list)

    def find_problem(self, data: bytes) -> str | None:
        paragraphs, tables = subprocess_call.call_in_subprocess(f"{document_readers.__name__}:read_text_document", data)
        if self.paragraphs is not None and paragraphs != [text.strip() for text in self.paragraphs]:
            return f"its paragraphs are {quoted(paragraphs)}"
        if self.tables is not None and tables != self.tables:
            return f"its tables are {quoted(tables)}"
        if not self.contains and not self.lacks:
            return None
        pieces = TextCheck(path=self.path, contains=self.contains, lacks=self.lacks)
        return pieces.find_text_problem(
            "\n".join([*paragraphs, *(cell for table in tables for row in table for cell in row)])
        )
