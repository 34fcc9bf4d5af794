"""YAML checks on files of a real home: 1 if right, 0 with a reason if wrong or damaged."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import packed_documents as packed
import pytest
from PIL import Image, ImageDraw
from pydantic import ValidationError

from deskhand.desktop.base import CommandResult
from deskhand.desktop.local.home import Home
from deskhand.tasks import document_readers, file_problems
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.formats.yaml_schema import CheckNode
from deskhand.tasks.formats.yaml_task import measure
from deskhand.tasks.task import CheckResult


class Guest:
    """The files of a guest's home as an embedded desktop reads them, and commands that say what they are told to."""

    def __init__(self, root: Path, said: CommandResult | None = None) -> None:
        self._home = Home(root, "/home/user")
        self._said = said

    async def pull(self, path: str) -> bytes:
        return self._home.read(path)

    async def run(self, argv: list[str], *, timeout_s: float) -> CommandResult:
        assert self._said is not None
        return self._said


async def value_of(check: dict[str, Any], folder: Path, said: CommandResult | None = None) -> CheckResult:
    return await measure(CheckNode.model_validate(check), folder, Guest(folder, said))


def database_file(*statements: str, wal: bool = False) -> dict[str, bytes]:
    """The files of an SQLite database by name; with `wal`, the last statements are in its log."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        connection = sqlite3.connect(Path(folder) / "a", isolation_level=None)
        if wal:
            connection.execute("PRAGMA journal_mode = WAL")
        for statement in statements:
            connection.execute(statement)
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir() if not path.name.endswith("-shm")}
        connection.close()
        return files


def painting(width: int, height: int, color: str = "red", at: int = 0) -> bytes:
    picture, buffer = Image.new("RGB", (width, height), "white"), BytesIO()
    ImageDraw.Draw(picture).ellipse((at, 4, at + width // 2, height - 4), fill=color)
    picture.save(buffer, "PNG")
    return buffer.getvalue()


TEXT = "Red apples\n2  pears\n"
SHEET: packed.Rows = [["name", "price"], ["pear", 2.5], [None, 4], ["yes", True], [None, None]]
SETTINGS = b"size = 12 = large\n[look]\nTheme=light\nTheme=dark\n# Font=Sans\n[other]\nTheme=none\n"
PICTURE = painting(64, 48)
DOCUMENT = packed.text_document(["One", "", "Two and three"], [["a", "b"], ["c", "d"]])
RIGHT_AND_WRONG: list[tuple[str, bytes, dict[str, Any], dict[str, Any]]] = [
    ("file", b"x", {"exists": True}, {"exists": False}),
    ("file", b"x", {"sha256": hashlib.sha256(b"x").hexdigest()}, {"sha256": hashlib.sha256(b"y").hexdigest()}),
    ("text", TEXT.encode(), {"equals": TEXT}, {"equals": TEXT.strip()}),
    ("text", TEXT.encode(), {"equals": TEXT.strip(), "ignore": ["final_newline"]},
     {"equals": "red", "ignore": ["case"]}),
    ("text", TEXT.encode(), {"contains": ["RED", "2 pears"], "ignore": ["case", "blanks"]}, {"contains": ["RED"]}),
    ("text", TEXT.encode(), {"lacks": ["plums"]}, {"lacks": ["apples"]}),
    ("text", TEXT.encode(), {"matches": r"Red \w+\n\d +pears\n"}, {"matches": "Red"}),
    ("text", TEXT.encode(), {"lines": ["Red apples", "2  pears"]}, {"lines": ["Red apples"]}),
    ("text", "\ufeffä".encode(), {"equals": "ä"}, {"equals": "a"}),
    ("json", b'{"a": [1, {"b": null}]}', {"at": ["a", 1, "b"], "equals": None}, {"at": ["a", 0], "equals": True}),
    ("json", b'{"a": 1.05}', {"at": ["a"], "equals": 1, "within": 0.1}, {"at": ["a"], "equals": 1}),
    ("json", b'{"a": {"x": 1, "y": 2}}', {"equals": {"a": {"y": 2, "x": 1}}}, {"equals": {"a": {"x": 1}}}),
    ("json", b'{"a": [1]}', {"at": ["a", -1], "equals": 1}, {"at": ["a", 1], "equals": 1}),
    ("csv", b"a, b\n\n1,\"x,y\"\n", {"rows": [["a", "b"], ["1", "x,y"]]}, {"rows": [["1", "x,y"], ["a", "b"]]}),
    ("csv", b"a;b\n1;2\n", {"delimiter": ";", "ordered": False, "rows": [["1", "2"], ["a", "b"]]},
     {"rows": [["a", "b"]]}),
    *(
        ("sheet", file, right, wrong)
        for file in (packed.xlsx(Prices=SHEET, Other=[]), packed.ods(Prices=SHEET, Other=[]))
        for right, wrong in [
            ({"cells": {"A2": "pear", "B2": 2.5, "B3": 4, "A3": None, "Z99": None}}, {"cells": {"B2": "2.5"}}),
            ({"rows": SHEET}, {"rows": SHEET[:2]}),
            ({"sheets": ["Prices", "Other"]}, {"sheets": ["Prices"]}),
            ({"sheet": "Other", "rows": []}, {"sheet": "Absent", "rows": []}),
            ({"cells": {"B4": True}}, {"cells": {"B4": 1}}),
            ({"cells": {"B2": 2.4}, "within": 0.2}, {"cells": {"B2": 2.4}}),
        ]
    ),
    ("settings", SETTINGS, {"section": "look", "key": "Theme", "equals": "dark"}, {"key": "Theme", "equals": "dark"}),
    ("settings", SETTINGS, {"key": "size", "equals": "12 = large"},
     {"section": "look", "key": "size", "equals": "12 = large"}),
    ("settings", SETTINGS, {"section": "look", "key": "font", "absent": True},
     {"section": "look", "key": "Theme", "absent": True}),
    ("image", PICTURE, {"size": [64, 48]}, {"size": [48, 64]}),
    ("document", DOCUMENT, {"paragraphs": ["One", "Two and three"]}, {"paragraphs": ["One"]}),
    ("document", DOCUMENT, {"tables": [[["a", "b"], ["c", "d"]]]}, {"tables": []}),
    ("document", DOCUMENT, {"contains": ["and", "c"], "lacks": ["e and"]}, {"lacks": ["Two"]}),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(RIGHT_AND_WRONG)))
async def test_a_correct_file_scores_one_and_a_wrong_one_zero_with_a_reason(case: int, tmp_path: Path) -> None:
    kind, data, right, wrong = RIGHT_AND_WRONG[case]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_bytes(data)
    good = await value_of({kind: {"path": "folder/a", **right}}, tmp_path)
    assert good.value == 1.0, good.detail
    bad = await value_of({kind: {"path": "folder/a", **wrong}}, tmp_path)
    assert bad.value == 0.0
    assert "folder/a: " in bad.detail
    assert not good.untrusted_source


ASKS: dict[str, dict[str, Any]] = {
    "file": {},
    "text": {"lacks": ["x"]},
    "json": {"equals": None},
    "csv": {"rows": []},
    "sheet": {"rows": []},
    "document": {"lacks": ["x"]},
    "settings": {"key": "x", "absent": True},
    "image": {"size": [1, 1]},
    "sqlite": {"query": "select 1 where 0", "rows": []},
}
"""For each kind what an empty file, or none, could be thought to fulfil."""


@pytest.mark.parametrize("kind", ASKS)
@pytest.mark.parametrize("wreck", ["gone", "folder", "link out", "pipe", "noise"])
async def test_a_file_that_the_agent_wrecked_is_a_wrong_answer(kind: str, wreck: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    if wreck == "folder":
        path.mkdir()
    elif wreck == "link out":
        path.symlink_to("/etc/passwd")
    elif wreck == "pipe":
        os.mkfifo(path)
    elif wreck == "noise" and kind != "file":
        path.write_bytes(bytes(range(128, 256)) * 40)
    assert (await value_of({kind: {"path": "a", **ASKS[kind]}}, tmp_path)).value == 0.0


async def test_exists_false_fails_if_the_path_is_not_a_file_but_exists(tmp_path: Path) -> None:
    asked = {"file": {"path": "a", "exists": False}}
    assert (await value_of(asked, tmp_path)).value == 1.0
    (tmp_path / "a").mkdir()
    assert (await value_of(asked, tmp_path)).value == 0.0


@pytest.mark.parametrize("kind", ["sheet", "document"])
async def test_truncated_documents_and_zip_bombs_are_wrong_answers(kind: str, tmp_path: Path) -> None:
    whole = packed.xlsx(A=SHEET) if kind == "sheet" else DOCUMENT
    for length in range(0, len(whole), 97):
        part = whole[:length]
        with pytest.raises(document_readers.InvalidDocument):
            document_readers.read_sheet(part, None) if kind == "sheet" else document_readers.read_text_document(part)
    bomb = BytesIO(whole)
    with zipfile.ZipFile(bomb, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", bytes(document_readers.MAX_UNPACKED_BYTES))
    for data, said in ((whole[:1000], ""), (packed.zipped({"any": "thing"}), ""), (bomb.getvalue(), "unpacks to")):
        (tmp_path / "a").write_bytes(data)
        check = await value_of({kind: {"path": "a", **ASKS[kind]}}, tmp_path)
        assert (check.value, said in check.detail) == (0.0, True)


async def test_database_rows_include_the_write_ahead_log_and_may_be_unordered(tmp_path: Path) -> None:
    rows = ("create table t (n, x)", "insert into t values (1, 'a'), (2, 'b')")
    for wal in (False, True):
        for name, data in database_file(*rows, wal=wal).items():
            (tmp_path / name).write_bytes(data)
        asked = {"path": "a", "query": "select n, x from t"}
        assert (await value_of({"sqlite": asked | {"rows": [[1, "a"], [2, "b"]]}}, tmp_path)).value == 1.0, wal
        assert (await value_of({"sqlite": asked | {"rows": [[2, "b"], [1, "a"]]}}, tmp_path)).value == 0.0
        unordered = asked | {"rows": [[2, "b"], [1, "a"]], "ordered": False}
        assert (await value_of({"sqlite": unordered}, tmp_path)).value == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "select 1 from absent",
        "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n",
        "with a as (select 1) insert into t select * from a",
        "select load_extension('x')",
    ],
)
def test_a_query_cannot_run_without_end_write_or_load(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_problems, "MAX_VM_STEPS", 1000)
    with pytest.raises(InvalidDocument, match="invalid database"):
        file_problems.query(database_file("create table t (n)")["a"], b"", text)


async def test_a_command_check_is_untrusted(tmp_path: Path) -> None:
    said = CommandResult(0, b"3 files\n", b"")
    for asked, value in [
        ({}, 1.0),
        ({"stdout": "3 files"}, 1.0),
        ({"stdout": "3"}, 0.0),
        ({"contains": ["3"]}, 1.0),
        ({"contains": ["4"]}, 0.0),
        ({"returncode": 1}, 0.0),
        ({"returncode": None, "contains": ["files"]}, 1.0),
    ]:
        check = await value_of({"command": {"run": ["count"], **asked}}, tmp_path, said)
        assert (check.value, check.untrusted_source) == (value, True), asked


async def test_all_is_the_worst_any_the_best_and_sum_the_weighted_mean(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    there, absent = {"file": {"path": "a"}}, {"file": {"path": "b"}}
    weighted = [there | {"weight": 3}, absent]
    for check, value in [
        ({"all": [there, absent]}, 0.0),
        ({"all": [there, there]}, 1.0),
        ({"any": [there, absent]}, 1.0),
        ({"any": [absent]}, 0.0),
        ({"sum": weighted}, 0.75),
        ({"all": [there, {"sum": weighted}]}, 0.75),
    ]:
        found = await value_of(check, tmp_path)
        assert found.value == pytest.approx(value), check
        assert "b: " in found.detail or "absent" not in str(check)


@pytest.mark.parametrize("path", ["", "..", "a/../../b", "a/", "a\0b"])
def test_a_path_outside_the_home_is_rejected(path: str) -> None:
    with pytest.raises(ValidationError, match=r"relative to the guest's home"):
        CheckNode.model_validate({"file": {"path": path}})
