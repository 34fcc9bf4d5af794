"""Parsers of guest files: spreadsheets, text documents, presentations, archives, images, JSON.

Run by `subprocess_call` in a subprocess, which imports this module for each call: keep the imports light. Every
reader takes bytes, returns JSON values and raises `InvalidDocument` for a file that is not of its format. The
libraries (python-calamine, openpyxl, python-docx, python-pptx) are in the optional dependencies `office`.

Invariant: whatever a library raises for a guest's bytes is `InvalidDocument`; errors of this module are not.
"""

from __future__ import annotations

import base64
import datetime
import difflib
import importlib
import io
import itertools
import json
import re
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

from deskhand.errors import EvaluatorError

MAX_UNPACKED_BYTES = 64 * 2**20
MAX_MEMBER_BYTES = 1_000_000
MAX_MEMBERS = 100
MAX_IMAGE_PIXELS = 16_000_000
MAX_JSON_DEPTH = 100
_BLOCK_PX = 8
_STRIP_BLOCKS = 32
_IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")


class InvalidDocument(Exception):
    """A guest file that is not of the expected format. The agent wrote it, so the check scores 0."""


@contextmanager
def parsing(what: str) -> Iterator[None]:
    """Raise `InvalidDocument` for anything that a library raises for malformed bytes.

    Libraries raise almost any class: `zlib.error`, `RuntimeError`, calamine a `BaseException`. Exceeded limits pass.
    """
    try:
        yield
    except (InvalidDocument, EvaluatorError, MemoryError, RecursionError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        message = " ".join(f"{type(error).__name__} {error}".split())[:300]
        raise InvalidDocument(f"invalid {what}: {message}") from error


def import_library(name: str) -> Any:
    """Import a library of the optional dependencies. Raises `EvaluatorError` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise EvaluatorError(f"{name.split('.')[0]} is not installed; pip install 'deskhand[office]'") from error


def archive_entries(data: bytes) -> BytesIO:
    """Return a ZIP-based file (XLSX, ODS, DOCX, PPTX) that unpacks to at most `MAX_UNPACKED_BYTES`.

    Raises `InvalidDocument`.
    """
    with parsing("ZIP-based document"), zipfile.ZipFile(BytesIO(data)) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > MAX_UNPACKED_BYTES:
        raise InvalidDocument(f"unpacks to {size} bytes; maximum: {MAX_UNPACKED_BYTES}")
    return BytesIO(data)


def read_sheet(data: bytes, name: str | None) -> tuple[list[str], list[list[Any]] | None]:
    """Return the names of all sheets and the rows of one from A1 on (None if there is no such sheet).

    `name` None selects the first sheet. Raises `InvalidDocument`.
    """
    calamine = import_library("python_calamine")
    with parsing("spreadsheet"):
        book = calamine.load_workbook(archive_entries(data))
        names = list(book.sheet_names)
        if (name or names[0]) not in names:
            return names, None
        rows = book.get_sheet_by_name(name or names[0]).to_python(skip_empty_area=False)
    return names, trim_rows([[_json_value(value) for value in row] for row in rows])


def read_text_document(data: bytes) -> tuple[list[str], list[list[list[str]]]]:
    """Return the texts of non-empty paragraphs and of table cells. Raises `InvalidDocument`."""
    docx = import_library("docx")
    with parsing("text document"):
        document = docx.Document(archive_entries(data))
        paragraphs = [text for paragraph in document.paragraphs if (text := paragraph.text.strip())]
        tables = [[[cell.text.strip() for cell in row.cells] for row in table.rows] for table in document.tables]
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
    with parsing("spreadsheet"):
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
    return {"values": values, "formulas": formulas, "bold": bold, "application": producer_application(data)}


def read_cells(data: bytes, name: str | None, cells: list[str]) -> dict[str, Any]:
    """Return the sheet's title, the formulas and formats of `cells`, and the numbers of all cells of the sheet.

    `name` None selects the first sheet. Raises `InvalidDocument`, also if the file is not XLSX.
    """
    openpyxl = import_library("openpyxl")
    with parsing("XLSX file"):
        typed = openpyxl.load_workbook(archive_entries(data))
        computed = openpyxl.load_workbook(archive_entries(data), data_only=True)
        title = name or typed.sheetnames[0]
        if title not in typed.sheetnames:
            raise InvalidDocument(f"has no sheet {title!r}")
        values = {cell.coordinate: cell.value for row in computed[title].iter_rows() for cell in row}
        page = typed[title]
        texts = {cell: page[cell].value for cell in cells if page[cell].data_type == "f"}
        return {
            "sheet": title,
            "formulas": {cell: str(getattr(value, "text", value)) for cell, value in texts.items()},
            "formats": {cell: _format(page[cell]) for cell in cells},
            "numbers": {
                cell: value
                for cell, value in values.items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            },
        }


def _format(cell: Any) -> dict[str, Any]:
    font, fill = cell.font, cell.fill
    return {
        "bold": bool(font.b),
        "italic": bool(font.i),
        "underline": font.u not in (None, "none"),
        "strike": bool(font.strike),
        "size": font.sz,
        "font": font.name,
        "number_format": cell.number_format,
        "fill": _color(fill.fgColor) if fill.fill_type == "solid" else fill.fill_type or "none",
        "color": _color(font.color),
        "align": cell.alignment.horizontal or "general",
    }


def _color(color: Any) -> str:
    """Return RRGGBB, "none", or what a color refers to."""
    if color is None:
        return "none"
    if color.type == "rgb":
        return str(color.rgb)[-6:]
    return (
        "none" if color.type == "theme" and color.theme in (0, 1) and not color.tint else f"{color.type} {color.value}"
    )


def _plain(cell: Any) -> Any:
    if isinstance(cell, float) and cell.is_integer():
        return int(cell)
    return cell if cell is None or isinstance(cell, str | int | float) else str(cell)


def document_facts(data: bytes) -> dict[str, Any]:
    """Return the fields of `office_files.TextDocument`. Raises `InvalidDocument`."""
    docx = import_library("docx")
    with parsing("text document"):
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
    while paragraphs and not paragraphs[-1][0]:
        paragraphs.pop()
    return {"paragraphs": paragraphs, "bold": bold, "tables": tables, "application": producer_application(data)}


def presentation_facts(data: bytes) -> dict[str, Any]:
    """Return the fields of `office_files.Presentation`. Raises `InvalidDocument`."""
    pptx = import_library("pptx")
    with parsing("presentation"):
        shapes = [
            [shape for shape in slide.shapes if shape.has_text_frame]
            for slide in pptx.Presentation(archive_entries(data)).slides
        ]
        slides = [[[each.text for each in shape.text_frame.paragraphs] for shape in inside] for inside in shapes]
    return {"slides": slides, "application": producer_application(data)}


def producer_application(data: bytes) -> str:
    """Return the first word of the application that an office file names ("LibreOffice"), or ""."""
    with parsing("ZIP-based document"), zipfile.ZipFile(archive_entries(data)) as archive:
        try:
            properties = archive.read("docProps/app.xml").decode("utf-8", errors="replace")
        except KeyError:
            return ""
    found = re.search(r"<Application>\s*([A-Za-z]*)", properties)
    return found.group(1) if found else ""


def regex_matches(data: bytes, pattern: str) -> bool:
    """Return whether a regular expression matches a part of a text without white space at its ends."""
    return re.search(pattern, data.decode("utf-8", errors="replace").strip()) is not None


def is_similar_text(data: bytes, wanted: str, threshold: float) -> bool:
    """Return whether `difflib`'s ratio of two texts, without white space at their ends, is at least `threshold`."""
    text = data.decode("utf-8", errors="replace").strip()
    matcher = difflib.SequenceMatcher(None, text, wanted, autojunk=False)
    # the upper bounds are fast; the ratio takes minutes for long texts
    return all(each() >= threshold for each in (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio))


def read_archive(data: bytes) -> dict[str, str]:
    """Return the first `MAX_MEMBERS` regular files of a gzipped tar archive, bytes as Latin-1.

    Raises `InvalidDocument`.
    """
    with parsing("archive"), tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        members = [member for _, member in zip(range(MAX_MEMBERS), archive, strict=False) if member.isfile()]
        if any(member.size > MAX_MEMBER_BYTES for member in members):
            raise InvalidDocument(f"a file in the archive is larger than {MAX_MEMBER_BYTES} bytes")
        files = {member.name.removeprefix("./"): archive.extractfile(member) for member in members}
        return {name: file.read().decode("latin-1") for name, file in files.items() if file is not None}


def read_json(data: bytes) -> Any:
    """Return the value of a JSON file in UTF-8, with or without a byte order mark.

    Raises `InvalidDocument`, also for values nested deeper than `MAX_JSON_DEPTH`: a reader of the value may recurse.
    """
    with parsing("JSON"):
        value = json.loads(data.decode("utf-8-sig"))
    layer, depth = [value], 0
    while layer := [child for node in layer for child in _children(node)]:
        depth += 1
        if depth > MAX_JSON_DEPTH:
            raise InvalidDocument(f"invalid JSON: nested deeper than {MAX_JSON_DEPTH}")
    return value


def _children(node: Any) -> list[Any]:
    return node if isinstance(node, list) else list(node.values()) if isinstance(node, dict) else []


def read_bookmarks(data: bytes) -> list[tuple[str, str]]:
    """Return (name, URL) of each bookmark in Chromium's file, at any depth, in order. Raises `InvalidDocument`."""

    def bookmarks(node: Any) -> Iterator[tuple[str, str]]:
        if isinstance(node, dict) and node.get("type") == "url":
            yield str(node.get("name")), str(node.get("url"))
            return
        for child in _children(node):
            yield from bookmarks(child)

    return list(bookmarks(read_json(data)))


def compare_images(data: bytes, reference: bytes) -> tuple[int, int, float | None]:
    """Return the width and height of an image and its similarity to a reference (0 if the sizes differ).

    An empty reference gives None. Raises `InvalidDocument`, and `EvaluatorError` for the reference.
    """
    try:
        wanted = _grayscale(reference) if reference else None
    except InvalidDocument as error:
        raise EvaluatorError(f"reference image: {error}") from error
    found = _grayscale(data)
    height, width = found.shape
    if wanted is None:
        return width, height, None
    return width, height, similarity(found, wanted) if found.shape == wanted.shape else 0.0


def similarity(one: Any, other: Any) -> float:
    """Return the mean structural similarity of two images of one size, `array[H, W]` from 0 to 255.

    Wang, Bovik, Sheikh, Simoncelli: Image quality assessment (2004), equation 13 with its constants, over blocks of 8x8
    pixels that do not overlap. Computed in strips, because the blocks of a whole image take 16 times its memory.
    """
    import numpy as np

    height, width = (max(_BLOCK_PX, side // _BLOCK_PX * _BLOCK_PX) for side in one.shape)
    padding = [(0, max(0, side - actual)) for side, actual in zip((height, width), one.shape, strict=True)]

    def blocks(pixels: Any, top: int) -> Any:
        strip = pixels[top : top + _STRIP_BLOCKS * _BLOCK_PX].astype(np.float64)
        parts = strip.reshape(-1, _BLOCK_PX, width // _BLOCK_PX, _BLOCK_PX).swapaxes(1, 2)
        return parts.reshape(-1, _BLOCK_PX * _BLOCK_PX)

    cut = [np.pad(pixels, padding, mode="edge")[:height, :width] for pixels in (one, other)]
    tops = range(0, height, _STRIP_BLOCKS * _BLOCK_PX)
    scores = [_block_similarity(*(blocks(pixels, top) for pixels in cut)) for top in tops]
    return float(np.concatenate(scores).mean())


def _block_similarity(a: Any, b: Any) -> Any:
    """Return the structural similarity of each pair of blocks; both `float[blocks, pixels]`."""
    mean_a, mean_b = a.mean(axis=1), b.mean(axis=1)
    covariance = (a * b).mean(axis=1) - mean_a * mean_b
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    luminance = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    return luminance * (2 * covariance + c2) / (a.var(axis=1) + b.var(axis=1) + c2)


def _grayscale(data: bytes) -> Any:
    import numpy as np

    return np.asarray(_decode(data, "L", MAX_IMAGE_PIXELS, _IMAGE_FORMATS))


def rgb_pixels(data: bytes, max_pixels: int) -> tuple[int, int, str]:
    """Return the width, height and pixels (RGB in base64) of a PNG. Raises `InvalidDocument`."""
    image = _decode(data, "RGB", max_pixels, ("PNG",))
    return image.width, image.height, base64.b64encode(image.tobytes()).decode()


def _decode(data: bytes, mode: str, max_pixels: int, formats: tuple[str, ...]) -> Any:
    from PIL import Image

    with parsing("image"), Image.open(BytesIO(data), formats=formats) as image:
        if image.width * image.height > max_pixels:  # before the pixels are decoded
            raise InvalidDocument(f"{image.width}x{image.height} pixels; maximum: {max_pixels}")
        return image.convert(mode)
