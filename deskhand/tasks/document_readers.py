"""Parsers of guest files: spreadsheets, text documents, archives, images.

Run by `subprocess_call` in a subprocess, which imports this module for each call: keep the imports light. Every
reader takes bytes, returns JSON values and raises `InvalidDocument` for a file that is not of its format. The
libraries (python-calamine, openpyxl, python-docx) are in the optional dependencies `office`.
"""

from __future__ import annotations

import datetime
import difflib
import importlib
import io
import itertools
import re
import tarfile
import zipfile
from io import BytesIO
from typing import Any

from deskhand.errors import EvaluatorError

MAX_UNPACKED_BYTES = 64 * 2**20
MAX_MEMBER_BYTES = 1_000_000
MAX_MEMBERS = 100
MAX_IMAGE_PIXELS = 20_000_000
_BLOCK_PX = 8
_IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")


class InvalidDocument(Exception):
    """A guest file that is not of the expected format. The agent wrote it, so the check scores 0."""


MALFORMED = (
    InvalidDocument, zipfile.BadZipFile, KeyError, ValueError, TypeError, AttributeError, IndexError, OSError,
    SyntaxError,
)  # fmt: skip
"""Exceptions that the libraries raise for malformed files."""


def import_library(name: str) -> Any:
    """Import a library of the optional dependencies. Raises `EvaluatorError` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise EvaluatorError(f"{name.split('.')[0]} is not installed; pip install 'deskhand[office]'") from error


def archive_entries(data: bytes) -> BytesIO:
    """Return a ZIP-based file (XLSX, ODS, DOCX) that unpacks to at most `MAX_UNPACKED_BYTES`.

    Raises `InvalidDocument`.
    """
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise InvalidDocument(f"invalid ZIP-based document: {error}") from error
    if size > MAX_UNPACKED_BYTES:
        raise InvalidDocument(f"unpacks to {size} bytes; maximum: {MAX_UNPACKED_BYTES}")
    return BytesIO(data)


def read_sheet(data: bytes, name: str | None) -> tuple[list[str], list[list[Any]] | None]:
    """Return the names of all sheets and the rows of one from A1 on (None if there is no such sheet).

    `name` None selects the first sheet. Raises `InvalidDocument`.
    """
    calamine = import_library("python_calamine")
    try:
        book = calamine.load_workbook(archive_entries(data))
        names = list(book.sheet_names)
        if (name or names[0]) not in names:
            return names, None
        rows = book.get_sheet_by_name(name or names[0]).to_python(skip_empty_area=False)
    except (calamine.CalamineError, ValueError, IndexError, OSError) as error:
        raise InvalidDocument(f"invalid spreadsheet: {' '.join(str(error).split())}") from error
    return names, trim_rows([[_json_value(value) for value in row] for row in rows])


def read_text_document(data: bytes) -> tuple[list[str], list[list[list[str]]]]:
    """Return the texts of non-empty paragraphs and of table cells. Raises `InvalidDocument`."""
    docx, lxml = import_library("docx"), import_library("lxml.etree")
    try:
        document = docx.Document(archive_entries(data))
        paragraphs = [text for paragraph in document.paragraphs if (text := paragraph.text.strip())]
        tables = [[[cell.text.strip() for cell in row.cells] for row in table.rows] for table in document.tables]
    except (lxml.LxmlError, KeyError, ValueError, AttributeError, IndexError, OSError) as error:
        message = " ".join(str(error).split())
        raise InvalidDocument(f"invalid text document: {type(error).__name__} {message}") from error
    return paragraphs, tables


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return str(value)
    return None if value == "" else value


def trim_rows(rows: list[list[Any]]) -> list[list[Any]]:
    """Return rows without empty cells at their ends and without empty rows at the end."""
    trimmed = [list(row) for row in rows]
    for row in trimmed:
        while row and row[-1] in (None, ""):
            row.pop()
    while trimmed and not trimmed[-1]:
        trimmed.pop()
    return trimmed


def workbook_facts(data: bytes) -> dict[str, Any]:
    """Return the fields of `office_files.Workbook`. Raises `InvalidDocument`."""
    openpyxl = import_library("openpyxl")
    try:
        computed = openpyxl.load_workbook(archive_entries(data), data_only=True)
        typed = openpyxl.load_workbook(archive_entries(data))
        values = {
            page.title: trim_rows([[_plain(cell) for cell in row] for row in page.iter_rows(values_only=True)])
            for page in computed.worksheets
        }
        formulas: dict[str, dict[str, str]] = {}
        bold: dict[str, list[str]] = {}
        for page in typed.worksheets:
            filled = [cell for row in page.iter_rows() for cell in row if cell.value is not None]
            formulas[page.title] = {cell.coordinate: cell.value for cell in filled if str(cell.value).startswith("=")}
            bold[page.title] = sorted(cell.coordinate for cell in filled if cell.font is not None and cell.font.b)
    except MALFORMED as error:
        raise InvalidDocument(f"invalid spreadsheet: {type(error).__name__}") from error
    return {"values": values, "formulas": formulas, "bold": bold, "application": producer_application(data)}


def _plain(cell: Any) -> Any:
    if isinstance(cell, float) and cell.is_integer():
        return int(cell)
    return cell if cell is None or isinstance(cell, str | int | float) else str(cell)


def document_facts(data: bytes) -> dict[str, Any]:
    """Return the fields of `office_files.TextDocument`. Raises `InvalidDocument`."""
    docx = import_library("docx")
    try:
        document = docx.Document(archive_entries(data))
        paragraphs = [
            (paragraph.text, paragraph.style.name, str(paragraph.alignment or "").split(" ")[0].split(".")[-1])
            for paragraph in document.paragraphs
        ]
        runs_by_weight = [itertools.groupby(each.runs, lambda run: bool(run.bold)) for each in document.paragraphs]
        bold = [
            text
            for groups in runs_by_weight
            for is_bold, runs in groups
            if is_bold and (text := "".join(run.text for run in runs).strip())
        ]
        tables = [(len(table.rows), len(table.columns)) for table in document.tables]
    except MALFORMED as error:
        raise InvalidDocument(f"invalid text document: {type(error).__name__}") from error
    while paragraphs and not paragraphs[-1][0]:
        paragraphs.pop()
    return {"paragraphs": paragraphs, "bold": bold, "tables": tables, "application": producer_application(data)}


def producer_application(data: bytes) -> str:
    """Return the first word of the application that an office file names ("LibreOffice"), or ""."""
    with zipfile.ZipFile(archive_entries(data)) as archive:
        try:
            properties = archive.read("docProps/app.xml").decode("utf-8", errors="replace")
        except KeyError:
            return ""
    found = re.search(r"<Application>\s*([A-Za-z]*)", properties)
    return found.group(1) if found else ""


def regex_matches(data: bytes, pattern: str, ignore_case: bool, whole: bool) -> bool:
    """Return whether a regular expression matches a text, all of it or (not `whole`) a part. May not terminate."""
    find = re.fullmatch if whole else re.search
    text = data.decode("utf-8", errors="surrogatepass")
    return find(pattern, text, re.IGNORECASE if ignore_case else re.NOFLAG) is not None


def text_similarity(data: bytes, wanted: str) -> float:
    """Return `difflib`'s ratio of two texts, from 0 to 1. Slow for long texts."""
    return difflib.SequenceMatcher(None, data.decode("utf-8", errors="surrogatepass"), wanted, autojunk=False).ratio()


def read_archive(data: bytes) -> dict[str, str]:
    """Return the first `MAX_MEMBERS` regular files of a gzipped tar archive, bytes as Latin-1.

    Raises `InvalidDocument`.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            members = [member for _, member in zip(range(MAX_MEMBERS), archive, strict=False) if member.isfile()]
            if any(member.size > MAX_MEMBER_BYTES for member in members):
                raise InvalidDocument(f"a file in the archive is larger than {MAX_MEMBER_BYTES} bytes")
            files = {member.name.removeprefix("./"): archive.extractfile(member) for member in members}
            return {name: file.read().decode("latin-1") for name, file in files.items() if file is not None}
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise InvalidDocument(f"invalid archive: {type(error).__name__}") from error


def compare_images(data: bytes) -> tuple[int, int, float | None]:
    """Return the width and height of an image and its similarity to a reference (0 if the sizes differ).

    `data` is the length of the reference (8 bytes, big-endian), the reference (empty: similarity is None), the image.
    Raises `InvalidDocument`.
    """
    length = int.from_bytes(data[:8], "big")
    found = _grayscale(data[8 + length :])
    height, width = found.shape
    if not length:
        return width, height, None
    wanted = _grayscale(data[8 : 8 + length])
    return width, height, similarity(found, wanted) if found.shape == wanted.shape else 0.0


def similarity(one: Any, other: Any) -> float:
    """Return the mean structural similarity of two images of one size, `float[H, W]` from 0 to 255.

    Wang, Bovik, Sheikh, Simoncelli: Image quality assessment (2004), equation 13 with its constants, over blocks of 8x8
    pixels that do not overlap.
    """
    import numpy as np

    height, width = (max(_BLOCK_PX, side // _BLOCK_PX * _BLOCK_PX) for side in one.shape)
    padding = [(0, max(0, side - actual)) for side, actual in zip((height, width), one.shape, strict=True)]

    def blocks(pixels: Any) -> Any:
        cut = np.pad(pixels, padding, mode="edge")[:height, :width]
        parts = cut.reshape(height // _BLOCK_PX, _BLOCK_PX, width // _BLOCK_PX, _BLOCK_PX).swapaxes(1, 2)
        return parts.reshape(-1, _BLOCK_PX * _BLOCK_PX)

    a, b = blocks(one), blocks(other)
    mean_a, mean_b = a.mean(axis=1), b.mean(axis=1)
    covariance = (a * b).mean(axis=1) - mean_a * mean_b
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    luminance = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    return float((luminance * (2 * covariance + c2) / (a.var(axis=1) + b.var(axis=1) + c2)).mean())


def _grayscale(data: bytes) -> Any:
    import numpy as np
    from PIL import Image

    try:
        with Image.open(BytesIO(data), formats=_IMAGE_FORMATS) as image:
            if image.width * image.height > MAX_IMAGE_PIXELS:
                raise InvalidDocument(f"{image.width}x{image.height} pixels; maximum: {MAX_IMAGE_PIXELS}")
            return np.asarray(image.convert("L"), np.float64)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InvalidDocument(f"invalid image: {type(error).__name__}") from error
