"""Files that an agent could write to stop, crash or slow down the judge, by the kind of check that reads them."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import packed_documents as packed
from PIL import Image

MIB = 2**20


def database(*statements: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        connection = sqlite3.connect(Path(folder) / "a", isolation_level=None)
        for statement in statements:
            connection.execute(statement)
        connection.close()
        return (Path(folder) / "a").read_bytes()


def rezipped(data: bytes, change: Callable[[str, bytes], bytes]) -> bytes:
    """The archive with changed entries."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return buffer.getvalue()


def with_entities(data: bytes) -> bytes:
    """XML whose entities expand to gigabytes ("billion laughs")."""
    levels = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12))
    kind = f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a0 "{"ha" * 50}">{levels}]>'.encode()

    def change(name: str, xml: bytes) -> bytes:
        body = xml.partition(b"?>")[2] if xml.startswith(b"<?xml") else xml
        return kind + body.replace(b"One", b"&a11;") if b"One" in xml else xml

    return rezipped(data, change)


def with_wrong_deflate(data: bytes) -> bytes:
    """The archive with 16 bytes of each compressed entry replaced."""
    found = bytearray(data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.infolist():
            start = entry.header_offset + 30 + len(entry.filename) + 4
            found[start : start + 16] = b"\xff" * 16
    return bytes(found)


def encrypted(data: bytes) -> bytes:
    """The archive with the flag of encryption set on each entry."""
    return data.replace(b"PK\x01\x02\x14\x03\x14\x00\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01\x00").replace(
        b"PK\x03\x04\x14\x00\x00\x00", b"PK\x03\x04\x14\x00\x01\x00"
    )


def sparse_sheet(last: str) -> bytes:
    row = int(last.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    cells = f'<row r="1"><c r="A1"><v>1</v></c></row><row r="{row}"><c r="{last}"><v>1</v></c></row>'.encode()

    def change(name: str, xml: bytes) -> bytes:
        return xml.replace(b"<sheetData>", b"<sheetData>" + cells) if "sheet1" in name else xml

    return rezipped(packed.xlsx(A=[]), change)


def wide_table(columns: int, rows: int) -> bytes:
    """A text document; python-docx takes time by the square of the cells."""

    def change(name: str, xml: bytes) -> bytes:
        for tag, count in ((b"w:tc", columns), (b"w:tr", rows)):
            if b"<%s>" % tag in xml:
                start, end = xml.index(b"<%s>" % tag), xml.rindex(b"</%s>" % tag) + len(tag) + 3
                xml = xml[:start] + xml[start:end] * count + xml[end:]
        return xml

    return rezipped(packed.text_document([], [["x"]]), change)


def zip_bomb(data: bytes, size: int) -> bytes:
    buffer = io.BytesIO(data)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", bytes(size))
    return buffer.getvalue()


def png_head(width: int, height: int, depth: int = 8) -> bytes:
    """A PNG without pixels: what is refused for its size is refused before it is decoded."""

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack("!I", len(data)) + kind + data + struct.pack("!I", zlib.crc32(kind + data))

    head = part(b"IHDR", struct.pack("!IIBBBBB", width, height, depth, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + part(b"IDAT", zlib.compress(b"")) + part(b"IEND", b"")


def plain_image(width: int, height: int, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (width, height)).save(buffer, kind)
    return buffer.getvalue()


def tar_bomb(size: int) -> bytes:
    """A small archive with members of `size` zero bytes before a small one."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb") as file, tarfile.open(fileobj=file, mode="w") as archive:
        for number in range(4):
            entry = tarfile.TarInfo(f"{number}")
            entry.size = size
            archive.addfile(entry, io.BytesIO(bytes(size)))
    return buffer.getvalue()


SHEET = packed.xlsx(A=[["One", 1.0]])
DOCUMENT = packed.text_document(["One"])
SLIDES = packed.presentation("One")
COUNT = "with recursive n(i) as (select 1 union all select i + 1 from n) select i, i as name, 1 as price from n"
ROWS = {"query": "select name, price from items order by 1", "rows": [["pear", 1]]}


def items(view: str) -> bytes:
    return database(f"create view items as {view}")


HOSTILE: dict[str, tuple[str, Callable[[], bytes], dict[str, Any]]] = {
    "database: a view of 450 MB": ("sqlite", lambda: items("select hex(zeroblob(450000000)) name, 1 price"), ROWS),
    "database: a view of 15 MB values": (
        "sqlite",
        lambda: items(f"select randomblob(15000000) as name, price from ({COUNT} limit 90)"),
        ROWS,
    ),
    "database: an endless view": ("sqlite", lambda: items(COUNT), ROWS),
    "database: a slow function": (
        "sqlite",
        lambda: items(f"select name, price from ({COUNT}) where hex(zeroblob(4000000 + i)) like '%1%2%3%'"),
        ROWS,
    ),
    "database: zeroed pages": (
        "sqlite",
        lambda: database("create table items (name, price)", "insert into items values ('a', 1)")[:4096] + bytes(4096),
        ROWS,
    ),
    "sheet: two cells far apart": ("sheet", lambda: sparse_sheet("XFD1048576"), {"rows": [["a"]]}),
    "sheet: a million rows of a hundred": ("sheet", lambda: sparse_sheet("CV1048576"), {"rows": [["a"]]}),
    "sheet: entities": ("sheet", lambda: with_entities(SHEET), {"rows": [["a"]]}),
    "sheet: wrong deflate": ("sheet", lambda: with_wrong_deflate(SHEET), {"rows": [["a"]]}),
    "sheet: encrypted": ("sheet", lambda: encrypted(SHEET), {"rows": [["a"]]}),
    "sheet: unpacks to 65 MiB": ("sheet", lambda: zip_bomb(SHEET, 65 * MIB), {"rows": [["a"]]}),
    "document: entities": ("document", lambda: with_entities(DOCUMENT), {"paragraphs": ["a"]}),
    "document: wrong deflate": ("document", lambda: with_wrong_deflate(DOCUMENT), {"paragraphs": ["a"]}),
    "document: encrypted": ("document", lambda: encrypted(DOCUMENT), {"paragraphs": ["a"]}),
    "document: a table of 20,000 cells": (
        "document",
        lambda: wide_table(100, 200),
        {"tables": [[["a"]]]},
    ),
    "image: 9000x9000": ("image", lambda: png_head(9000, 9000), {"size": [1, 1]}),
    "image: 8192x8192, 16 bits": ("image", lambda: png_head(8192, 8192, 16), {"size": [1, 1]}),
    "image: 60000x60000": ("image", lambda: png_head(60000, 60000), {"size": [1, 1]}),
    "image: TIFF of 5000x5000": ("image", lambda: plain_image(5000, 5000, "TIFF"), {"size": [1, 1]}),
    "image: no pixels": ("image", lambda: png_head(16, 16), {"size": [1, 1]}),
    "json: 100,000 levels": ("json", lambda: b"[" * 100_000, {"equals": 1}),
    "json: 400 levels": ("json", lambda: b"[" * 400 + b"]" * 400, {"equals": 1}),
    "json: six million lists": ("json", lambda: b"[" + b"[]," * 6_000_000 + b"1]", {"equals": 1}),
    "json: a number beyond all floats": ("json", lambda: b"1" * 400, {"equals": 1.5, "within": 0.1}),
    "json: a number of a million digits": ("json", lambda: b"1" * 1_000_000, {"equals": 1.5}),
    "csv: ten million cells": ("csv", lambda: b"a," * 10_000_000, {"rows": [["b"]]}),
    "csv: a cell of a megabyte": ("csv", lambda: b"a" * MIB, {"rows": [["b"]]}),
    "csv: zero bytes": ("csv", lambda: b"a,\0b\n", {"rows": [["b"]]}),
    "settings: four million lines": ("settings", lambda: b"a=1\n b\n" * 4_000_000, {"key": "x", "equals": "1"}),
    "text: a pattern that does not end": ("text", lambda: b"a" * 60 + b"!", {"matches": "(a+)+"}),
    "text: twenty million lines": ("text", lambda: b"\n" * 20_000_000, {"lines": ["a"]}),
    "text: larger than any text": ("text", lambda: b"a" * (33 * MIB), {"lacks": ["b"]}),
}
"""By what they are: the kind of the check, the file, and the check's keys."""
HOSTILE_PROFILES: dict[str, tuple[str, Callable[[], bytes], dict[str, Any]]] = {
    "an endless history": ("History", lambda: database(f"create view urls as {COUNT}"), {"visited": ["file:///a"]}),
    "bookmarks in bookmarks": (
        "Bookmarks",
        lambda: json.dumps(nested(90)).encode() + b" " + b"[" * 200_000,
        {"bookmarks": ["file:///a"]},
    ),
    "preferences as a list": ("Preferences", lambda: b"[" * 5000, {"preference": {"at": ["a"], "equals": 1}}),
}
"""Files of Chromium's profile."""


def nested(depth: int) -> dict[str, Any]:
    node: dict[str, Any] = {"type": "url", "url": "file:///a"}
    for _ in range(depth):
        node = {"children": [node]}
    return node
