"""Checks `sheet` (XLSX, ODS) and `document` (DOCX), by what a reader of the document sees.

Their functions in `tasks.file_problems` need the optional dependencies `office`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from deskhand.tasks import file_problems, formulas
from deskhand.tasks.checks.base import CheckModel, FileCheckModel

Color = Annotated[str, StringConstraints(pattern="^(none|[0-9A-Fa-f]{6})$")]
Cell = str | int | float | bool | None


class CellFormula(CheckModel):
    """What the formula of a cell must be.

    `matches` is a regular expression for its whole text in A1 notation, without spaces and $. `refers_to` are cells
    and ranges: the formula must name all of them and follow their numbers, so that neither a constant nor a formula
    over half of the range passes.
    """

    matches: str | None = None
    refers_to: list[str] = Field(default_factory=list)
    needs_one_of = ("matches", "refers_to")

    @field_validator("matches")
    @classmethod
    def _valid_pattern(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"invalid regular expression: {error}") from None
        return pattern

    @field_validator("refers_to")
    @classmethod
    def _valid_references(cls, references: list[str]) -> list[str]:
        for reference in references:
            formulas.parse_reference(reference)
        return references


class CellFormat(CheckModel):
    """How a cell is formatted; colors are RRGGBB, `fill` and `color` none if they are the default's."""

    bold: bool | None = None
    italic: bool | None = None
    underline: bool | None = None
    strike: bool | None = None
    size: float | None = None
    font: str | None = None
    number_format: str | list[str] | None = None
    """The format code, or several of which one must be used."""
    fill: Color | None = None
    color: Color | None = None
    align: Literal["left", "center", "right", "general", "justify", "fill"] | None = None
    needs_one_of = (
        "bold", "italic", "underline", "strike", "size", "font", "number_format", "fill", "color", "align",
    )  # fmt: skip


class SheetCheck(FileCheckModel):
    """Cells of a spreadsheet.

    `cells` are values of some cells by name (null: empty), `rows` all rows from A1 on without empty ones at the end;
    dates are texts such as 2026-11-30. Numbers may differ by `within`. `formulas` and `formats` are by cell or range
    (XLSX only); a formula is `any`, or a `CellFormula`.
    """

    find_problem = file_problems.sheet_problem
    needs_one_of = ("sheets", "cells", "rows", "formulas", "formats")
    sheet: str | None = None
    """Name of the sheet (default: the first)."""
    sheets: list[str] | None = None
    """Names of all sheets, in order."""
    cells: dict[str, Cell] = Field(default_factory=dict)
    rows: list[list[Cell]] | None = None
    formulas: dict[str, Literal["any", "none"] | CellFormula] = Field(default_factory=dict)
    formats: dict[str, CellFormat] = Field(default_factory=dict)
    within: float = Field(default=1e-9, ge=0)

    @model_validator(mode="after")
    def _require_xlsx(self) -> Self:
        if (self.formulas or self.formats) and not self.path.lower().endswith((".xlsx", ".xlsm")):
            raise ValueError("formulas and formats can be read of .xlsx files only")
        return self

    @field_validator("formulas", "formats")
    @classmethod
    def _valid_ranges(cls, cells: dict[str, Any]) -> dict[str, Any]:
        for name in cells:
            if formulas.parse_reference(name)[0] is not None:
                raise ValueError(f"{name!r} names a sheet; set the key sheet")
        return cells

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
