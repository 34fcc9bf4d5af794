"""Spreadsheets, text documents, presentations and drawings: written for set-up, read by checks, edited in LibreOffice.

An invalid or oversized file is a wrong answer (None). Guest files are parsed in a subprocess.
"""

from __future__ import annotations

import importlib
import io
import zipfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from deskhand.actions.ops import Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import ConfigError
from deskhand.tasks import document_readers, drawing_reader
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.drawing_reader import NAMESPACES
from deskhand.tasks.outcome import Finding
from deskhand.tasks.subprocess_call import read_in_subprocess
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.hd_screen import HdScenario, Steps, click_at, press
from deskhand.tasks.suites.basics.scenario import Clauses, Oracle, clause
from deskhand.tasks.task import Task

REPLACE_BY_PX, REPLACE_ALL_PX = (200, 117), (74, 172)
"""In LibreOffice's dialog: the field from the upper left corner, the button from the upper right one."""
Cell = str | int | float | None
Sheets = dict[str, list[list[Cell]]]
Slides = Sequence[tuple[str, Sequence[str]]]
"""Titles and the lines of their lists."""
TITLE_AND_CONTENT = 1
"""python-pptx's number of this layout in its default template."""
ODG = "application/vnd.oasis.opendocument.graphics"
DRAWING_IN = (10, 6)
"""Width and height of the pages of drawings, in inches."""


def workbook(sheets: Sheets, bold: Sequence[str] = ()) -> bytes:
    """Return an XLSX file of sheets by name, rows from A1 on; `bold` are cell names. Raises `ConfigError`."""
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
    facts = await _facts(document_readers.workbook_facts, data)
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
    """A DOCX file: paragraphs as (text, style, alignment), bold texts, and tables as (rows, columns)."""

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
    facts = await _facts(document_readers.document_facts, data)
    if facts is None:
        return None
    pairs: dict[str, Any] = {name: [tuple(each) for each in facts[name]] for name in ("paragraphs", "tables")}
    return TextDocument(**(facts | pairs))


def presentation(slides: Slides) -> bytes:
    """Return a PPTX file. Raises `ConfigError` without python-pptx."""
    made = _library("pptx").Presentation()
    for title, lines in slides:
        slide = made.slides.add_slide(made.slide_layouts[TITLE_AND_CONTENT])
        slide.shapes.title.text = title
        slide.placeholders[1].text = "\n".join(lines)
    buffer = io.BytesIO()
    made.save(buffer)
    return buffer.getvalue()


@dataclass(frozen=True)
class Presentation:
    """A PPTX file: the paragraphs of each text of each slide, in the order of the file."""

    slides: list[list[list[str]]]
    application: str
    """The application that saved the file, as the file names it."""


async def read_presentation(data: bytes | None) -> Presentation | None:
    """Parse a PPTX file; None if it is invalid. Raises `EvaluatorError`."""
    facts = await _facts(document_readers.presentation_facts, data)
    return Presentation(**facts) if facts is not None else None


Shape = dict[str, Any]
"""A shape of a drawing: "kind" ("rect" or "ellipse"), "text", "fill" ("#rrggbb"), and "box": x, y, width and height, in
inches, which LibreOffice stores exactly if they are tenths."""
Pages = Sequence[tuple[str, Sequence[Shape]]]
"""The names of a drawing's pages, and their shapes from the back to the front."""


def drawing(pages: Pages, application: str = "Deskhand") -> bytes:
    """Return an ODG file, with pages of `DRAWING_IN`, that names this application as the one that saved it."""
    fills = sorted({shape["fill"] for _, shapes in pages for shape in shapes})
    spaces = " ".join(f'xmlns:{prefix}="{name}"' for prefix, name in NAMESPACES.items())
    look = 'draw:fill="solid" draw:textarea-vertical-align="middle" draw:auto-grow-height="false"'
    automatic = "".join(
        f'<style:style style:name="g{fill[1:]}" style:family="graphic" style:parent-style-name="standard">'
        f'<style:graphic-properties {look} draw:fill-color="{fill}"/></style:style>'
        for fill in fills
    )
    automatic += (
        '<style:style style:name="T" style:family="paragraph"><style:paragraph-properties fo:text-align="center"/>'
        '<style:text-properties fo:font-size="18pt"/></style:style>'
    )
    drawn = "".join(
        f'<draw:page draw:name="{escape(name)}" draw:master-page-name="Default">{"".join(map(_drawn, shapes))}'
        "</draw:page>"
        for name, shapes in pages
    )
    width, height = DRAWING_IN
    layout = (
        '<office:styles><style:style style:name="standard" style:family="graphic"/></office:styles>'
        '<office:automatic-styles><style:page-layout style:name="P"><style:page-layout-properties fo:margin="0.2in" '
        f'fo:page-width="{width}in" fo:page-height="{height}in" style:print-orientation="landscape"/>'
        '</style:page-layout></office:automatic-styles><office:master-styles><style:master-page style:name="Default" '
        'style:page-layout-name="P"/></office:master-styles>'
    )
    parts = {
        "content": f"<office:automatic-styles>{automatic}</office:automatic-styles>"
        f"<office:body><office:drawing>{drawn}</office:drawing></office:body>",
        "styles": layout,
        "meta": f"<office:meta><meta:generator>{application}/1</meta:generator></office:meta>",
    }
    entry = '<manifest:file-entry manifest:full-path="{}" manifest:media-type="{}"/>'
    listed = "".join(entry.format(f"{part}.xml", "text/xml") for part in parts)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in {
            "mimetype": ODG,
            **{
                f"{part}.xml": f'<?xml version="1.0" encoding="UTF-8"?><office:document-{part} {spaces} '
                f'office:version="1.3">{text}</office:document-{part}>'
                for part, text in parts.items()
            },
            "META-INF/manifest.xml": '<manifest:manifest xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:'
            f'manifest:1.0" manifest:version="1.3">{entry.format("/", ODG)}{listed}</manifest:manifest>',
        }.items():
            archive.writestr(zipfile.ZipInfo(name), text)  # of a fixed date: equal drawings are equal files
    return buffer.getvalue()


def _drawn(shape: Shape) -> str:
    places = zip(("x", "y", "width", "height"), shape["box"], strict=True)
    place = " ".join(f'svg:{side}="{length}in"' for side, length in places)
    text = f"<text:p text:style-name='T'>{escape(shape['text'])}</text:p>"
    return f'<draw:{shape["kind"]} draw:style-name="g{shape["fill"][1:]}" {place}>{text}</draw:{shape["kind"]}>'


@dataclass(frozen=True)
class Drawing:
    """An ODG file: names of pages and their shapes, as `Shape`s with boxes to 0.01 inches."""

    pages: list[tuple[str, list[Shape]]]
    application: str
    """The application that saved the file, as the file names it."""


async def read_drawing(data: bytes | None) -> Drawing | None:
    """Parse an ODG file; None if it is invalid. Raises `EvaluatorError`."""
    facts = await _facts(drawing_reader.drawing_facts, data)
    return Drawing([(name, shapes) for name, shapes in facts["pages"]], facts["application"]) if facts else None


class OfficeScenario(HdScenario):
    """One document, open in LibreOffice."""

    path: str
    program: Literal["calc", "writer", "impress", "draw"]
    probe = ("down", "ctrl+home")
    """Keys that change the screen and change it back, by which set-up finds out that the program reads keys."""

    @property
    def name(self) -> str:
        return self.path.split("/")[-1]

    def content(self) -> bytes:
        """Return the file at the start."""
        raise NotImplementedError

    async def setup(self, desktop: StageableDesktop) -> None:
        await desktop.push(self.path, self.content())
        await desktop.launch(["soffice", "--norestore", "--nologo", f"--{self.program}", self.path])
        await desktop.wait_window(self.name, timeout_s=hd_screen.WINDOW_TIMEOUT_S)
        await hd_screen.wait_responsive(desktop, *self.probe)

    def office_task(
        self, instruction: str, clauses: Clauses, steps: Steps, forged: Callable[[], bytes], **fields: Any
    ) -> Task:
        """Return a task. `steps` are the oracle's before saving; `forged` returns a correct file of another program."""
        defaults = {"max_steps": 12, "metadata": {"file": self.path}, "forged_files": {self.path: forged}}
        oracle = hd_screen.until_written(self.path, steps, press("ctrl+s"))
        return self.build_task(instruction, clauses=clauses, oracle=oracle, **(defaults | fields))


def saved_by_application(document: Workbook | TextDocument | Presentation | Drawing | None) -> Finding:
    """Return the clause that LibreOffice saved the file; set-up's file and forged ones name another application."""
    return clause("the application that saved the file", document.application if document else None, "LibreOffice")


def replace_all(old: str, new: str) -> Oracle:
    """Return the steps of LibreOffice's dialog to replace a text everywhere, which is the same in all its programs."""
    title = "Find and Replace"

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield press("ctrl+h")
        window = await hd_screen.wait_shown(desktop, title)
        yield [Type(old)]
        yield [click_at(window.x + REPLACE_BY_PX[0], window.y + REPLACE_BY_PX[1]), Type(new)]
        yield [click_at(window.x + window.width - REPLACE_ALL_PX[0], window.y + REPLACE_ALL_PX[1])]
        await hd_screen.wait_still(desktop)
        while any(title in window.title for window in await desktop.windows()):
            yield press("esc")  # first the result, then the dialog
            await hd_screen.wait_still(desktop, 0.3)

    return steps


async def _facts(reader: Callable[[bytes], dict[str, Any]], data: bytes | None) -> dict[str, Any] | None:
    if not data:
        return None
    try:
        return await read_in_subprocess(reader, data)
    except InvalidDocument:
        return None


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{name.split('.')[0]} is not installed; pip install 'deskhand[office]'") from error
