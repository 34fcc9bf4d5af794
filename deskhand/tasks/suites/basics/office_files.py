"""Spreadsheets and text documents that set-up writes and checks read. Invariant: what is no such file, or unpacks to too much, is a
wrong answer (None), never an error of the judge.
"""

from __future__ import annotations

import asyncio
import io
import zipfile
from dataclasses import dataclass
from typing import Any

from deskhand.errors import ConfigError
from deskhand.tasks.checks.part import NotOfItsFormat, packed

Cell = str | int | float | None
Sheets = dict[str, list[list[Cell]]]
_MISSING = "office files are written and read by openpyxl and python-docx; pip install 'deskhand[office]'"
_BROKEN = (NotOfItsFormat, zipfile.BadZipFile, KeyError, ValueError, TypeError, AttributeError, IndexError, OSError, SyntaxError)


def workbook(sheets: Sheets) -> bytes:
    """An XLSX file of sheets by name, rows from A1 on. Raises `ConfigError` without the library."""
    openpyxl = _library("openpyxl")
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        page = book.create_sheet(name)
        for row in rows:
            page.append(row)
        for letter in "ABCDEF":
            page.column_dimensions[letter].width = 16
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


@dataclass(frozen=True)
class Book:
    """What a check reads of an XLSX file: by sheet the values as computed, the formulas, and which cells are bold ("A1")."""

    values: Sheets
    formulas: dict[str, dict[str, str]]
    bold: dict[str, list[str]]


async def read_workbook(data: bytes | None) -> Book | None:
    """None for what is no XLSX file. Raises `ConfigError` without the library."""
    return await asyncio.to_thread(_read_workbook, data) if data else None


def _read_workbook(data: bytes) -> Book | None:
    openpyxl = _library("openpyxl")
    try:
        computed = openpyxl.load_workbook(packed(data), data_only=True)
        typed = openpyxl.load_workbook(packed(data))
        values = {page.title: trimmed([list(row) for row in page.iter_rows(values_only=True)]) for page in computed.worksheets}
        formulas: dict[str, dict[str, str]] = {}
        bold: dict[str, list[str]] = {}
        for page in typed.worksheets:
            filled = [cell for row in page.iter_rows() for cell in row if cell.value is not None]
            formulas[page.title] = {cell.coordinate: cell.value for cell in filled if str(cell.value).startswith("=")}
            bold[page.title] = sorted(cell.coordinate for cell in filled if cell.font is not None and cell.font.b)
    except _BROKEN:
        return None
    return Book(values, formulas, bold)


def trimmed(rows: list[list[Cell]]) -> list[list[Cell]]:
    """Without empty cells at the ends of rows and empty rows at the end; whole numbers as such."""
    cut: list[list[Cell]] = []
    for row in rows:
        plain = [int(cell) if isinstance(cell, float) and cell.is_integer() else cell for cell in row]
        while plain and plain[-1] in (None, ""):
            plain.pop()
        cut.append(plain)
    while cut and not cut[-1]:
        cut.pop()
    return cut


def text_document(paragraphs: list[str]) -> bytes:
    """A DOCX file. Raises `ConfigError` without the library."""
    document = _library("docx").Document()
    for text in paragraphs:
        document.add_paragraph(text)
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


@dataclass(frozen=True)
class Text:
    """What a check reads of a DOCX file: (text, style, alignment) of its paragraphs, the words in bold, and its tables' sizes as
    (rows, columns)."""

    paragraphs: list[tuple[str, str, str]]
    bold: list[str]
    tables: list[tuple[int, int]]

    @property
    def lines(self) -> list[str]:
        return [text for text, _, _ in self.paragraphs]


async def read_document(data: bytes | None) -> Text | None:
    """None for what is no DOCX file. Raises `ConfigError` without the library."""
    return await asyncio.to_thread(_read_document, data) if data else None


def _read_document(data: bytes) -> Text | None:
    docx = _library("docx")
    try:
        document = docx.Document(packed(data))
        paragraphs = [
            (paragraph.text, paragraph.style.name, str(paragraph.alignment or "").split(" ")[0].split(".")[-1])
            for paragraph in document.paragraphs
        ]
        bold = [run.text.strip() for paragraph in document.paragraphs for run in paragraph.runs if run.bold and run.text.strip()]
        tables = [(len(table.rows), len(table.columns)) for table in document.tables]
    except _BROKEN:
        return None
    while paragraphs and not paragraphs[-1][0]:
        paragraphs.pop()
    return Text(paragraphs, bold, tables)


def _library(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(_MISSING) from error
