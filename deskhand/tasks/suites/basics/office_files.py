"""Spreadsheets and text documents that set-up writes and checks read. Invariant: what is no such file, or unpacks to too much, is
a wrong answer (None), and guests' files are only ever read in a process of its own.
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
_MISSING = "office files are written and read by openpyxl and python-docx; pip install 'deskhand[office]'"


def workbook(sheets: Sheets, bold: Sequence[str] = ()) -> bytes:
    """An XLSX file of sheets by name, rows from A1 on; `bold` are cells ("A1"). Raises `ConfigError` without the library."""
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
    """What a check reads of an XLSX file: by sheet the values as computed, the formulas, and which cells are bold ("A1")."""

    values: Sheets
    formulas: dict[str, dict[str, str]]
    bold: dict[str, list[str]]
    application: str
    """What the file says it was saved by."""


async def read_workbook(data: bytes | None) -> Workbook | None:
    """None for what is no XLSX file. Raises `EvaluatorError`."""
    try:
        return (
            Workbook(
                **await asyncio.to_thread(
                    subprocess_call.call_in_subprocess, f"{document_readers.__name__}:workbook_facts", data
                )
            )
            if data
            else None
        )
    except InvalidDocument:
        return None


def text_document(
    paragraphs: Sequence[str],
    *,
    headings: Mapping[int, int] | None = None,
    aligned: Mapping[int, str] | None = None,
    bold: str = "",
    table: tuple[int, int] | None = None,
) -> bytes:
    """A DOCX file. `headings` are levels and `aligned` names as in "CENTER", both by paragraph from 0; `bold` is a piece of text,
    `table` the rows and columns of an empty one at the end. Raises `ConfigError` without the library."""
    document = _library("docx").Document()
    for index, text in enumerate(paragraphs):
        level = (headings or {}).get(index)
        paragraph = document.add_paragraph(style=f"Heading {level}" if level else None)
        before, piece, after = text.partition(bold) if bold else (text, "", "")
        for run in (before, piece, after):
            if run:
                paragraph.add_run(run).bold = True if run is piece else None
        if index in (aligned or {}):
            paragraph.alignment = _library("docx.enum.text").WD_ALIGN_PARAGRAPH[(aligned or {})[index]]
    if table is not None:
        document.add_table(*table)
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


@dataclass(frozen=True)
class TextDocument:
    """What a check reads of a DOCX file: (text, style, alignment) of its paragraphs, the words in bold, and its tables' sizes as
    (rows, columns)."""

    paragraphs: list[tuple[str, str, str]]
    bold: list[str]
    tables: list[tuple[int, int]]
    application: str
    """What the file says it was saved by."""

    @property
    def lines(self) -> list[str]:
        return [text for text, _, _ in self.paragraphs]


async def read_document(data: bytes | None) -> TextDocument | None:
    """None for what is no DOCX file. Raises `EvaluatorError`."""
    try:
        facts = (
            await asyncio.to_thread(
                subprocess_call.call_in_subprocess, f"{document_readers.__name__}:document_facts", data
            )
            if data
            else None
        )
    except InvalidDocument:
        return None
    if facts is None:
        return None
    paragraphs = [(text, style, alignment) for text, style, alignment in facts["paragraphs"]]
    return TextDocument(
        paragraphs, facts["bold"], [(rows, columns) for rows, columns in facts["tables"]], facts["application"]
    )


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(_MISSING) from error
