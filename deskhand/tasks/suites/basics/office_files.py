"""Write spreadsheets and text documents for set-up, and read them for checks.

An invalid or oversized file is a wrong answer (None). Guest files are parsed in a subprocess.
"""

from __future__ import annotations

import asyncio
import importlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deskhand.errors import ConfigError
from deskhand.tasks import document_readers, subprocess_call
from deskhand.tasks.document_readers import InvalidDocument

Cell = str | int | float | None
Sheets = dict[str, list[list[Cell]]]
_MISSING = "openpyxl and python-docx are not installed; pip install 'deskhand[office]'"


def workbook(sheets: Sheets, bold: Sequence[str] = ()) -> bytes:
    """Return an XLSX file of sheets by name, rows from A1 on; `bold` are cell names. Raises `ConfigError` without
    openpyxl.
    """
    openpyxl = _library("openpyxl")
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        page = book.create_sheet(name)
        for row in rows:
            page.append(row)
        for name in bold:
            page[name].font = openpyxl.styles.Font(bold=True)
        for letter in "ABCDEF":
            page.column_dimensions[letter].width = 16
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


@dataclass(frozen=True)
class Workbook:
    """What a check reads of an XLSX file, by sheet: computed values, formulas and bold cells ("A1")."""

    values: Sheets
    formulas: dict[str, dict[str, str]]
    bold: dict[str, list[str]]
    application: str
    """The application that saved the file, as the file names it."""


async def read_workbook(data: bytes | None) -> Workbook | None:
    """Parse an XLSX file; None if it is invalid. Raises `EvaluatorError`."""
    facts = await _facts("workbook_facts", data)
    return Workbook(**facts) if facts is not None else None


def text_document(
    paragraphs: Sequence[str],
    *,
    headings: Mapping[int, int] | None = None,
    aligned: Mapping[int, str] | None = None,
    bold: str = "",
    table: tuple[int, int] | None = None,
) -> bytes:
    """Return a DOCX file. Raises `ConfigError` without python-docx.

    `headings` are levels and `aligned` alignments such as "CENTER", both by paragraph from 0; `bold` is a part of the
    text, `table` the rows and columns of an empty table at the end.
    """
    document = _library("docx").Document()
    for index, text in enumerate(paragraphs):
        level = (headings or {}).get(index)
        paragraph = document.add_paragraph(style=f"Heading {level}" if level else None)
        before, bold_part, after = text.partition(bold) if bold else (text, "", "")
        for run in (before, bold_part, after):
            if run:
                paragraph.add_run(run).bold = True if run is bold_part else None
        if index in (aligned or {}):
            paragraph.alignment = _library("docx.enum.text").WD_ALIGN_PARAGRAPH[(aligned or {})[index]]
    if table is not None:
        document.add_table(*table)
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


@dataclass(frozen=True)
class TextDocument:
    """What a check reads of a DOCX file: (text, style, alignment) of its paragraphs, bold texts, and table sizes as
    (rows, columns).
    """

    paragraphs: list[tuple[str, str, str]]
    bold: list[str]
    tables: list[tuple[int, int]]
    application: str
    """The application that saved the file, as the file names it."""

    @property
    def lines(self) -> list[str]:
        return [text for text, _, _ in self.paragraphs]


async def read_document(data: bytes | None) -> TextDocument | None:
    """Parse a DOCX file; None if it is invalid. Raises `EvaluatorError`."""
    facts = await _facts("document_facts", data)
    if facts is None:
        return None
    paragraphs = [(text, style, alignment) for text, style, alignment in facts["paragraphs"]]
    return TextDocument(
        paragraphs, facts["bold"], [(rows, columns) for rows, columns in facts["tables"]], facts["application"]
    )


async def _facts(reader: str, data: bytes | None) -> dict[str, Any] | None:
    if not data:
        return None
    name = f"{document_readers.__name__}:{reader}"
    try:
        return await asyncio.to_thread(subprocess_call.call_in_subprocess, name, data)
    except InvalidDocument:
        return None


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(_MISSING) from error
