"""What is wrong with a guest file: the functions of the checks of YAML task files.

Run by `subprocess_call` in a subprocess; keep the imports light. Each takes the bytes of files and the check's fields,
and returns what is wrong, or None; `InvalidDocument` is wrong too. Values are equal if type and value are: 1 is not "1"
and not true.
"""

from __future__ import annotations

import configparser
import csv
import io
import math
import re
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from deskhand.tasks import document_readers, formulas
from deskhand.tasks.document_readers import InvalidDocument, parsing

MAX_QUOTE_CHARS = 200
MAX_VM_STEPS = 20_000
"""Maximum instructions of SQLite's virtual machine, in thousands."""
MAX_ROWS = 10_000
MAX_VALUE_BYTES = 16 * 2**20
"""Maximum size of a value, or a row, of a database."""
Fields = dict[str, Any]
_TOP = "\0top"
_VISITED = "select url from urls"
_CELL = re.compile(r"([A-Z]{1,3})([1-9][0-9]{0,6})")
_ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
_FORBIDDEN_FUNCTIONS = ("load_extension", "readfile", "writefile", "edit")


def text_problem(data: bytes, fields: Fields) -> str | None:
    """Check `text`."""
    return _text_problem(_text(data), fields)


def _text_problem(text: str, fields: Fields) -> str | None:
    ignored = fields.get("ignore", ())

    def plain(text: str) -> str:
        if "case" in ignored:
            text = text.casefold()
        if "blanks" in ignored:
            text = "\n".join(" ".join(line.split()) for line in text.split("\n"))
        return text.rstrip("\n") if "final_newline" in ignored else text

    found = plain(text)
    if fields.get("equals") is not None and found != plain(fields["equals"]):
        return f"is {quoted(text)}"
    for piece in fields.get("contains", ()):
        if plain(piece) not in found:
            return f"does not contain {quoted(piece)}"
    for piece in fields.get("lacks", ()):
        if plain(piece) in found:
            return f"contains {quoted(piece)}"
    pattern = fields.get("matches")
    if pattern is not None and not re.fullmatch(pattern, found, re.IGNORECASE if "case" in ignored else re.NOFLAG):
        return f"{quoted(text)} does not match {pattern}"
    if fields.get("lines") is not None and found.splitlines() != [plain(line) for line in fields["lines"]]:
        return f"its lines are {quoted(found.splitlines())}"
    return None


def json_problem(data: bytes, fields: Fields) -> str | None:
    """Check `json`."""
    value = document_readers.read_json(data)
    for key in fields["at"]:
        inside = isinstance(value, dict) if isinstance(key, str) else isinstance(value, list)
        if not inside or (key not in value if isinstance(key, str) else not -len(value) <= key < len(value)):
            return f"has nothing at {key!r}"
        value = value[key]
    return None if values_equal(value, fields["equals"], fields.get("within", 0.0)) else f"has {quoted(value)}"


def csv_problem(data: bytes, fields: Fields) -> str | None:
    """Check `csv`."""
    text = _text(data)
    with parsing("CSV"):
        read = list(csv.reader(io.StringIO(text), delimiter=fields["delimiter"]))
    rows, wanted = [[cell.strip() for cell in row] for row in read if row], fields["rows"]
    same = rows == wanted if fields["ordered"] else sorted(rows) == sorted(wanted)
    return None if same else f"its rows are {quoted(rows)}"


def settings_problem(data: bytes, fields: Fields) -> str | None:
    """Check `settings`."""
    parser = configparser.RawConfigParser(
        strict=False, delimiters=("=",), allow_no_value=True, default_section="\0none"
    )
    parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    text = _text(data)
    with parsing("key=value file"):
        parser.read_string(f"[{_TOP}]\n{text}")
    section, key = fields["section"], fields["key"]
    is_set = parser.has_option(section if section is not None else _TOP, key)
    found = parser.get(section if section is not None else _TOP, key) if is_set else None
    where = f"{key} of [{section}]" if section is not None else key
    if fields["absent"]:
        return f"{where} is {quoted(found)}" if is_set else None
    if not is_set:
        return f"has no {where}"
    return None if (found or "") == fields["equals"] else f"{where} is {quoted(found)}"


def sheet_problem(data: bytes, fields: Fields) -> str | None:
    """Check `sheet`."""
    names, rows = document_readers.read_sheet(data, fields["sheet"])
    if fields["sheets"] is not None and names != fields["sheets"]:
        return f"its sheets are {quoted(names)}"
    if rows is None:
        return f"has no sheet {fields['sheet']!r}; its sheets are {quoted(names)}"
    for name, wanted in fields["cells"].items():
        row, column = position(name)
        value = rows[row][column] if row < len(rows) and column < len(rows[row]) else None
        if not values_equal(value, wanted, fields["within"]):
            return f"{name} is {quoted(value)}"
    wanted = fields["rows"]
    if wanted is not None and not values_equal(rows, document_readers.trim_rows(wanted), fields["within"]):
        return f"its rows are {quoted(rows)}"
    if fields["formulas"] or fields["formats"]:
        return cell_problem(data, fields)
    return None


def cell_problem(data: bytes, fields: Fields) -> str | None:
    """Check the keys `formulas` and `formats` of `sheet`."""
    ranges = {name: formulas.cells_of(name) for name in (*fields["formulas"], *fields["formats"])}
    found = document_readers.read_cells(
        data, fields["sheet"], sorted({cell for cells in ranges.values() for cell in cells})
    )
    for name, wanted in fields["formulas"].items():
        for cell in ranges[name]:
            formula = found["formulas"].get(cell)
            if wanted == "none":
                problem = None if formula is None else f"is the formula {quoted(formula)}"
            elif formula is None:
                problem = "is not a formula"
            else:
                problem = None if wanted == "any" else _formula_problem(formula, wanted, found)
            if problem is not None:
                return f"{cell} {problem}"
    for name, wanted in fields["formats"].items():
        for cell in ranges[name]:
            for key, value in wanted.items():
                if value is not None and not _is_format(key, found["formats"][cell][key], value):
                    return f"{cell}: {key} is {quoted(found['formats'][cell][key])}"
    return None


def _formula_problem(formula: str, wanted: Fields, found: dict[str, Any]) -> str | None:
    if wanted["matches"] is not None:
        plain = re.sub(r"[\s$]", "", formula)
        if not re.fullmatch(wanted["matches"], plain, re.IGNORECASE):
            return f"is {quoted(formula)}, which does not match {wanted['matches']}"
    if wanted["refers_to"]:
        reason = formulas.why_not_following(formula, wanted["refers_to"], found["sheet"], found["numbers"])
        return None if reason is None else f"is {quoted(formula)}, which {reason}"
    return None


def _is_format(key: str, found: Any, wanted: Any) -> bool:
    if key in ("fill", "color"):
        return str(found).lower() == wanted.lower()
    if key == "number_format":
        return found in (wanted if isinstance(wanted, list) else [wanted])
    return values_equal(found, wanted)


def document_problem(data: bytes, fields: Fields) -> str | None:
    """Check `document`."""
    paragraphs, tables = document_readers.read_text_document(data)
    if fields["paragraphs"] is not None and paragraphs != [text.strip() for text in fields["paragraphs"]]:
        return f"its paragraphs are {quoted(paragraphs)}"
    if fields["tables"] is not None and tables != fields["tables"]:
        return f"its tables are {quoted(tables)}"
    texts = [*paragraphs, *(cell for table in tables for row in table for cell in row)]
    return _text_problem("\n".join(texts), {name: fields[name] for name in ("contains", "lacks")})


def image_problem(data: bytes, reference: bytes, fields: Fields) -> str | None:
    """Check `image`; `reference` is the image `like`, or empty."""
    width, height, similar = document_readers.compare_images(data, reference)
    size = fields["size"]
    if size is not None and (width, height) != tuple(size):
        return f"has {width}x{height} pixels, not {size[0]}x{size[1]}"
    if similar is not None and similar < fields["similar"]:
        return f"similarity to {fields['like']} is {similar:.3f}; minimum: {fields['similar']:g}"
    return None


def database_problem(data: bytes, log: bytes, fields: Fields) -> str | None:
    """Check `sqlite`; `log` is the write-ahead log, or empty."""
    rows, wanted = query(data, log, fields["query"]), fields["rows"]
    if not fields["ordered"]:
        rows, wanted = sorted(rows, key=repr), sorted(wanted, key=repr)
    return None if values_equal(rows, wanted, fields["within"]) else f"the rows are {quoted(rows)}"


def history_problem(data: bytes, visited: list[str]) -> str | None:
    """Check `browser`: Chromium's history."""
    found = {str(url) for (url,) in query(data, b"", _VISITED)}
    missing = [url for url in visited if url not in found]
    return f"{quoted(missing[0])} was not visited" if missing else None


def bookmarks_problem(data: bytes, wanted: list[str]) -> str | None:
    """Check `browser`: Chromium's bookmarks, in any order."""
    found = sorted(url for _, url in document_readers.read_bookmarks(data))
    return None if found == sorted(wanted) else f"the bookmarks are {quoted(found)}"


def query(data: bytes, log: bytes, text: str) -> list[list[Any]]:
    """Return at most `MAX_ROWS` rows of a query on a database's bytes. Raises `InvalidDocument` if it fails.

    The agent wrote the database, so the query runs on a copy, read-only, without attached files or extensions, and with
    bounded instructions and values.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "database"
        path.write_bytes(data)
        if log:
            path.with_name("database-wal").write_bytes(log)
        steps = iter(range(MAX_VM_STEPS))
        with parsing("database"), closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            connection.set_progress_handler(lambda: next(steps, None) is None, 1000)
            for pragma in ("trusted_schema = OFF", "query_only = ON", "temp_store = MEMORY"):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            connection.set_authorizer(_allow)
            return [list(row) for row in connection.execute(text).fetchmany(MAX_ROWS)]


def _allow(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    is_forbidden = action not in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and second in _FORBIDDEN_FUNCTIONS)
    return sqlite3.SQLITE_DENY if is_forbidden else sqlite3.SQLITE_OK


def position(cell: str) -> tuple[int, int]:
    """Return the row and column, from 0, of a cell name. Raises `ValueError`."""
    match = _CELL.fullmatch(cell)
    if match is None:
        raise ValueError(f"invalid cell name {cell!r}; use a name such as B12")
    column = 0
    for letter in match[1]:
        column = column * 26 + ord(letter) - ord("A") + 1
    return int(match[2]) - 1, column - 1


def _text(data: bytes) -> str:
    """Return UTF-8 text, with or without a byte order mark. Raises `InvalidDocument`."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidDocument(f"invalid UTF-8: {error.reason} at byte {error.start}") from error


def values_equal(found: Any, wanted: Any, within: float = 0.0) -> bool:
    """Return whether two JSON values are equal by type and value; numbers may differ by `within`."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    if isinstance(found, int | float) and isinstance(wanted, int | float):
        try:
            return found == wanted or math.isclose(found, wanted, rel_tol=0.0, abs_tol=within)
        except OverflowError:  # an integer beyond the largest float
            return False
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(values_equal(a, b, within) for a, b in zip(found, wanted, strict=True))
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(values_equal(found[key], wanted[key], within) for key in wanted)
    return type(found) is type(wanted) and found == wanted


def quoted(value: object) -> str:
    """Return the representation of a value, truncated to `MAX_QUOTE_CHARS`."""
    text = repr(value)
    return text if len(text) <= MAX_QUOTE_CHARS else f"{text[:MAX_QUOTE_CHARS]}... ({len(text)} characters)"
