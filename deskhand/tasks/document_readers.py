"""Readers of guests' files: spreadsheets, text documents, archives. Invariant: each takes bytes and gives JSON values, raises
`NotOfItsFormat` for what the agent made of a file, and runs in a process of its own (`isolated`).

This module imports little, as such a process does so anew each time. The libraries are python-calamine, openpyxl and python-docx,
in the optional dependencies `office`.
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

LARGEST_UNPACKED_BYTES = 64 * 2**20
LARGEST_MEMBER_BYTES = 1_000_000
MOST_MEMBERS = 100


class InvalidDocument(Exception):
    """A file that should be of some format is not: the agent's doing."""


BROKEN = (
    InvalidDocument,
    zipfile.BadZipFile,
    KeyError,
    ValueError,
    TypeError,
    AttributeError,
    IndexError,
    OSError,
    SyntaxError,
)
"""What the libraries raise for files that are not what they should be."""


def library(name: str) -> Any:
    """A library of the optional dependencies. Raises `EvaluatorError` when it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise EvaluatorError(
            f"office files are read by {name.split('.')[0]}; pip install 'deskhand[office]'"
        ) from error


def archive_entries(data: bytes) -> BytesIO:
    """A packed file (XLSX, ODS, DOCX) that does not unpack to more than `LARGEST_UNPACKED_BYTES`. Raises `NotOfItsFormat`."""
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise InvalidDocument(f"no packed document: {error}") from error
    if size > LARGEST_UNPACKED_BYTES:
        raise InvalidDocument(f"unpacks to {size} bytes, more than {LARGEST_UNPACKED_BYTES}")
    return BytesIO(data)


def sheet(data: bytes, name: str | None) -> tuple[list[str], list[list[Any]] | None]:
    """The names of all sheets, and the rows of one from A1 on (None when there is no such sheet). Raises `NotOfItsFormat`, and
    `EvaluatorError` without the library."""
    calamine = library("python_calamine")
    try:
        book = calamine.load_workbook(archive_entries(data))
        names = list(book.sheet_names)
        if (name or names[0]) not in names:
            return names, None
        rows = book.get_sheet_by_name(name or names[0]).to_python(skip_empty_area=False)
    except (calamine.CalamineError, ValueError, IndexError, OSError) as error:
        raise InvalidDocument(f"no spreadsheet: {' '.join(str(error).split())}") from error
    return names, without_empty_ends([[_seen(value) for value in row] for row in rows])


def document(data: bytes) -> tuple[list[str], list[list[list[str]]]]:
    """Texts of paragraphs that are not empty, and of tables. Raises `NotOfItsFormat`, and `EvaluatorError` without the library."""
    docx, lxml = library("docx"), library("lxml.etree")
    try:
        read = docx.Document(archive_entries(data))
        paragraphs = [text for paragraph in read.paragraphs if (text := paragraph.text.strip())]
        tables = [[[cell.text.strip() for cell in row.cells] for row in table.rows] for table in read.tables]
    except (lxml.LxmlError, KeyError, ValueError, AttributeError, IndexError, OSError) as error:
        raise InvalidDocument(f"no text document: {type(error).__name__} {' '.join(str(error).split())}") from error
    return paragraphs, tables


def _seen(value: Any) -> Any:
    """A cell as this module compares it."""
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return str(value)
    return None if value == "" else value


def without_empty_ends(rows: list[list[Any]]) -> list[list[Any]]:
    """Without empty cells at the end of rows and empty rows at the end."""
    cut = [
        row[: next((index + 1 for index in range(len(row) - 1, -1, -1) if row[index] is not None), 0)] for row in rows
    ]
    return cut[: next((index + 1 for index in range(len(cut) - 1, -1, -1) if cut[index]), 0)]


def workbook_facts(data: bytes) -> dict[str, Any]:
    """The fields of a `Book`, in a process of its own. Raises `NotOfItsFormat`."""
    openpyxl = library("openpyxl")
    try:
        computed = openpyxl.load_workbook(archive_entries(data), data_only=True)
        typed = openpyxl.load_workbook(archive_entries(data))
        values = {
            page.title: trimmed([list(row) for row in page.iter_rows(values_only=True)]) for page in computed.worksheets
        }
        formulas: dict[str, dict[str, str]] = {}
        bold: dict[str, list[str]] = {}
        for page in typed.worksheets:
            filled = [cell for row in page.iter_rows() for cell in row if cell.value is not None]
            formulas[page.title] = {cell.coordinate: cell.value for cell in filled if str(cell.value).startswith("=")}
            bold[page.title] = sorted(cell.coordinate for cell in filled if cell.font is not None and cell.font.b)
    except BROKEN as error:
        raise InvalidDocument(f"no spreadsheet: {type(error).__name__}") from error
    return {"values": values, "formulas": formulas, "bold": bold, "application": producer_application(data)}


def trimmed(rows: list[list[Any]]) -> list[list[Any]]:
    """Without empty cells at the ends of rows and empty rows at the end; whole numbers as such."""
    cut: list[list[Any]] = []
    for row in rows:
        plain = [_plain(cell) for cell in row]
        while plain and plain[-1] in (None, ""):
            plain.pop()
        cut.append(plain)
    while cut and not cut[-1]:
        cut.pop()
    return cut


def _plain(cell: Any) -> Any:
    if isinstance(cell, float) and cell.is_integer():
        return int(cell)
    return cell if cell is None or isinstance(cell, str | int | float) else str(cell)


def document_facts(data: bytes) -> dict[str, Any]:
    """The fields of a `Text`, in a process of its own. Raises `NotOfItsFormat`."""
    docx = library("docx")
    try:
        document = docx.Document(archive_entries(data))
        paragraphs = [
            (paragraph.text, paragraph.style.name, str(paragraph.alignment or "").split(" ")[0].split(".")[-1])
            for paragraph in document.paragraphs
        ]
        parts = [itertools.groupby(paragraph.runs, lambda run: bool(run.bold)) for paragraph in document.paragraphs]
        joined = ["".join(run.text for run in runs).strip() for groups in parts for is_bold, runs in groups if is_bold]
        bold = [text for text in joined if text]
        tables = [(len(table.rows), len(table.columns)) for table in document.tables]
    except BROKEN as error:
        raise InvalidDocument(f"no text document: {type(error).__name__}") from error
    while paragraphs and not paragraphs[-1][0]:
        paragraphs.pop()
    return {"paragraphs": paragraphs, "bold": bold, "tables": tables, "application": producer_application(data)}


def producer_application(data: bytes) -> str:
    """The first word of what an office file names as its application, as in "LibreOffice"; empty when it names none."""
    with zipfile.ZipFile(archive_entries(data)) as archive:
        try:
            properties = archive.read("docProps/app.xml").decode("utf-8", errors="replace")
        except KeyError:
            return ""
    found = re.search(r"<Application>\s*([A-Za-z]*)", properties)
    return found.group(1) if found else ""


def matches(data: bytes, pattern: str, ignore_case: bool, whole: bool) -> bool:
    """Whether a regular expression fits a text, all of it or (not `whole`) some piece; such a search may take without end."""
    find = re.fullmatch if whole else re.search
    return (
        find(pattern, data.decode("utf-8", errors="surrogatepass"), re.IGNORECASE if ignore_case else re.NOFLAG)
        is not None
    )


def likeness(data: bytes, wanted: str) -> float:
    """How alike two texts are, from 0 to 1 (`difflib`'s ratio); for long ones that takes without end."""
    return difflib.SequenceMatcher(None, data.decode("utf-8", errors="surrogatepass"), wanted, autojunk=False).ratio()


def archived(data: bytes) -> dict[str, str]:
    """The first plain files of a gzipped archive, in a process of its own; bytes as Latin-1. Raises `NotOfItsFormat`."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            members = [member for _, member in zip(range(MOST_MEMBERS), archive, strict=False) if member.isfile()]
            if any(member.size > LARGEST_MEMBER_BYTES for member in members):
                raise InvalidDocument("a file that is too large")
            read = {member.name.removeprefix("./"): archive.extractfile(member) for member in members}
            return {name: file.read().decode("latin-1") for name, file in read.items() if file is not None}
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise InvalidDocument(f"no archive: {type(error).__name__}") from error


LARGEST_PICTURE_PX = 20_000_000
_BLOCK_PX = 8
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")


def picture(data: bytes) -> tuple[int, int, float | None]:
    """Width, height and how similar a picture is to another; `data` is the other one's length (8 bytes), itself (it may be empty:
    no similarity) and the picture. Pictures of different sizes have nothing in common. Raises `NotOfItsFormat`."""
    length = int.from_bytes(data[:8], "big")
    found = _grey(data[8 + length :])
    height, width = found.shape
    if not length:
        return width, height, None
    wanted = _grey(data[8 : 8 + length])
    return width, height, similarity(found, wanted) if found.shape == wanted.shape else 0.0


def similarity(one: Any, other: Any) -> float:
    """Mean structural similarity of two pictures of one size, `float[H, W]` from 0 to 255, over blocks of 8x8 pixels.

    Wang, Bovik, Sheikh, Simoncelli: Image quality assessment (2004), equation 13 with its constants; blocks do not overlap.
    """
    import numpy as np

    high, wide = (max(_BLOCK_PX, side // _BLOCK_PX * _BLOCK_PX) for side in one.shape)
    padding = [(0, max(0, side - there)) for side, there in zip((high, wide), one.shape, strict=True)]

    def blocks(pixels: Any) -> Any:
        cut = np.pad(pixels, padding, mode="edge")[:high, :wide]
        parts = cut.reshape(high // _BLOCK_PX, _BLOCK_PX, wide // _BLOCK_PX, _BLOCK_PX).swapaxes(1, 2)
        return parts.reshape(-1, _BLOCK_PX * _BLOCK_PX)

    a, b = blocks(one), blocks(other)
    mean_a, mean_b = a.mean(axis=1), b.mean(axis=1)
    together = (a * b).mean(axis=1) - mean_a * mean_b
    first, second = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    light = (2 * mean_a * mean_b + first) / (mean_a**2 + mean_b**2 + first)
    return float((light * (2 * together + second) / (a.var(axis=1) + b.var(axis=1) + second)).mean())


def _grey(data: bytes) -> Any:
    import numpy as np
    from PIL import Image

    try:
        with Image.open(BytesIO(data), formats=_FORMATS) as picture:
            if picture.width * picture.height > LARGEST_PICTURE_PX:
                raise InvalidDocument(
                    f"a picture of {picture.width}x{picture.height} pixels, more than {LARGEST_PICTURE_PX}"
                )
            return np.asarray(picture.convert("L"), np.float64)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InvalidDocument(f"no picture: {type(error).__name__}") from error
