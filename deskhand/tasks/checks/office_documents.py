"""Checks `sheet` (XLSX, ODS) and `document` (DOCX), by what a reader of the document sees.

Their functions in `tasks.file_problems` need the optional dependencies `office`.
"""

from __future__ import annotations

from pydantic import Field, field_validator

from deskhand.tasks import file_problems
from deskhand.tasks.checks.base import FileCheckModel

Cell = str | int | float | bool | None


class SheetCheck(FileCheckModel):
    """Cell values of a spreadsheet.

    `cells` are some cells by name (null: empty), `rows` all rows from A1 on without empty ones at the end; dates are
    texts such as 2026-11-30. Numbers may differ by `within`.
    """

    find_problem = file_problems.sheet_problem
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
            file_problems.position(name)
        return cells


class DocumentCheck(FileCheckModel):
    """A text document: all non-empty `paragraphs`, all `tables`, and parts of the text (`contains`, `lacks`)."""

    find_problem = file_problems.document_problem
    needs_one_of = ("paragraphs", "tables", "contains", "lacks")
    paragraphs: list[str] | None = None
    tables: list[list[list[str]]] | None = None
    contains: list[str] = Field(default_factory=list)
    lacks: list[str] = Field(default_factory=list)
