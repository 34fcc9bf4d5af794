"""Small spreadsheets, text documents and presentations, made for the tests."""

from __future__ import annotations

import io
import zipfile
from html import escape

import docx
import pptx

Rows = list[list[str | float | bool | None]]
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_RELATION = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_OFFICE = "urn:oasis:names:tc:opendocument:xmlns"


def zipped(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def xlsx(**sheets: Rows) -> bytes:
    """A workbook whose cells are texts, numbers, truths or empty."""
    numbered = list(enumerate(sheets, 1))
    listed = "".join(f'<sheet name="{name}" sheetId="{n}" r:id="r{n}"/>' for n, name in numbered)
    files = {
        "[Content_Types].xml": _content_types(len(numbered)),
        "_rels/.rels": _relations({"r1": ("officeDocument", "xl/workbook.xml")}),
        "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_RELATION}"><sheets>{listed}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": _relations(
            {f"r{n}": ("worksheet", f"worksheets/sheet{n}.xml") for n, _ in numbered}
        ),
    }
    for number, rows in enumerate(sheets.values(), 1):
        body = ""
        for r, row in enumerate(rows, 1):
            cells = "".join(_xlsx_cell(f"{chr(65 + c)}{r}", value) for c, value in enumerate(row) if value is not None)
            body += f'<row r="{r}">{cells}</row>'
        files[f"xl/worksheets/sheet{number}.xml"] = (
            f'<worksheet xmlns="{_MAIN}"><sheetData>{body}</sheetData></worksheet>'
        )
    return zipped(files)


def _content_types(sheets: int) -> str:
    """Of a workbook with so many sheets."""
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    parts = [
        ("workbook", "sheet.main"),
        *((f"worksheets/sheet{number}", "worksheet") for number in range(1, sheets + 1)),
    ]
    listed = "".join(f'<Override PartName="/xl/{name}.xml" ContentType="{kind}.{what}+xml"/>' for name, what in parts)
    default = '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    return f'<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">{default}{listed}</Types>'


def _relations(targets: dict[str, tuple[str, str]]) -> str:
    """Of ids to kinds and targets."""
    lines = [
        f'<Relationship Id="{name}" Type="{_RELATION}/{kind}" Target="{target}"/>'
        for name, (kind, target) in targets.items()
    ]
    return f'<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{"".join(lines)}</Relationships>'


def _xlsx_cell(name: str, value: str | float | bool) -> str:
    if isinstance(value, bool):
        return f'<c r="{name}" t="b"><v>{int(value)}</v></c>'
    if isinstance(value, str):
        return f'<c r="{name}" t="inlineStr"><is><t>{escape(value)}</t></is></c>'
    return f'<c r="{name}"><v>{value}</v></c>'


def ods(**sheets: Rows) -> bytes:
    tables = ""
    for name, rows in sheets.items():
        body = "".join(f"<table:table-row>{''.join(map(_ods_cell, row))}</table:table-row>" for row in rows)
        tables += f'<table:table table:name="{name}">{body}</table:table>'
    spaces = " ".join(f'xmlns:{name}="{_OFFICE}:{name}:1.0"' for name in ("office", "table", "text"))
    body = f"<office:body><office:spreadsheet>{tables}</office:spreadsheet></office:body>"
    kind = "application/vnd.oasis.opendocument.spreadsheet"
    entry = f'<manifest:file-entry manifest:full-path="/" manifest:media-type="{kind}"/>'
    files = {
        "mimetype": kind,
        "META-INF/manifest.xml": (
            f'<manifest:manifest xmlns:manifest="{_OFFICE}:manifest:1.0">{entry}</manifest:manifest>'
        ),
        "content.xml": f"<office:document-content {spaces}>{body}</office:document-content>",
    }
    return zipped(files)


def _ods_cell(value: str | float | bool | None) -> str:
    if value is None:
        return "<table:table-cell/>"
    if isinstance(value, bool):
        return f'<table:table-cell office:value-type="boolean" office:boolean-value="{str(value).lower()}"/>'
    if isinstance(value, str):
        return f'<table:table-cell office:value-type="string"><text:p>{escape(value)}</text:p></table:table-cell>'
    return f'<table:table-cell office:value-type="float" office:value="{value}"/>'


def text_document(paragraphs: list[str], table: list[list[str]] | None = None) -> bytes:
    """A DOCX file."""
    written = docx.Document()
    for text in paragraphs:
        written.add_paragraph(text)
    if table is not None:
        grid = written.add_table(len(table), len(table[0]))
        for row, texts in enumerate(table):
            for column, text in enumerate(texts):
                grid.cell(row, column).text = text
    buffer = io.BytesIO()
    written.save(buffer)
    return buffer.getvalue()


def presentation(title: str) -> bytes:
    """A presentation of one slide."""
    written = pptx.Presentation()
    shape = written.slides.add_slide(written.slide_layouts[5]).shapes.title
    assert shape is not None
    shape.text = title
    buffer = io.BytesIO()
    written.save(buffer)
    return buffer.getvalue()
