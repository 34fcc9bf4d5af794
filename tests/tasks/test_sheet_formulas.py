"""The keys `formulas` and `formats` of the check `sheet`: a typed number is no formula."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from test_checks import value_of

from deskhand.tasks import formulas
from deskhand.tasks.checks.office_documents import SheetCheck

openpyxl = pytest.importorskip("openpyxl")
NUMBERS = {"B2": 10, "B3": 20, "B4": 30}
SUM = {"B5": {"refers_to": ["B2:B4"]}}


def workbook(**cells: Any) -> bytes:
    from openpyxl.styles import Alignment, Font, PatternFill

    book = openpyxl.Workbook()
    page = book.active
    page.title = "Data"
    for name, value in (NUMBERS | cells).items():
        page[name] = value
    page["A1"] = "Fruit"
    page["A1"].font = Font(bold=True, color="FF0000", size=14)
    page["A1"].fill = PatternFill("solid", fgColor="FFFF00")
    page["A1"].alignment = Alignment(horizontal="center")
    page["B2"].number_format = "0.00"
    book.create_sheet("Other")["A1"] = "=Data!B2"
    data = io.BytesIO()
    book.save(data)
    return data.getvalue()


async def scored(folder: Path, data: bytes, **keys: Any) -> tuple[float, str]:
    (folder / "a.xlsx").write_bytes(data)
    result = await value_of({"sheet": {"path": "a.xlsx", **keys}}, folder)
    return result.value, result.detail


@pytest.mark.parametrize(
    ("formula", "problem"),
    [
        ("=SUM(B2:B4)", ""),
        ("=SUM($B$2:$B$4)", ""),
        ("=B2+B3+B4", ""),
        ("=SUM(B:B)", ""),
        ("='Data'!B2+B3+B4", ""),
        ("=MEDIAN(B2:B4)", ""),
        ("=MAX(B2:B4)", ""),
        ("=COUNT(B2:B4)", ""),
        ("=SUM(B2:B3)", "does not refer to B4"),
        ("=SUM(B3:B4)+10", "does not refer to B2"),
        ("=SUM(Other!B2:B4)", "does not refer to B2"),
        ("=60", "does not refer to B2"),
        ('=60&"B2:B4"', "does not refer to B2"),
        ("=SUM(B2:B4)*0+60", "does not follow B2"),
        ("=SUM(B2:B3)+B4*0+30", "does not follow B4"),
        (60, "is not a formula"),
        (None, "is not a formula"),
    ],
)  # fmt: skip
async def test_a_formula_must_name_and_follow_its_cells(formula: Any, problem: str, tmp_path: Path) -> None:
    value, detail = await scored(tmp_path, workbook(B5=formula), formulas=SUM)
    assert (value, problem in detail) == (float(not problem), True), detail


async def test_a_text_that_begins_like_a_formula_is_none(tmp_path: Path) -> None:
    book = openpyxl.load_workbook(io.BytesIO(workbook(B5="=SUM(B2:B4)")))
    book["Data"]["B5"].data_type = "s"
    data = io.BytesIO()
    book.save(data)
    assert await scored(tmp_path, data.getvalue(), formulas={"B5": "any"}) == (0.0, "a.xlsx: B5 is not a formula")


async def test_formulas_are_any_none_or_match_a_pattern(tmp_path: Path) -> None:
    data = workbook(B5="=SUM( $B$2:B4 )")
    for keys, expected in [
        ({"B5": "any", "B2:B4": "none"}, 1.0),
        ({"B4:B5": "any"}, 0.0),
        ({"B4:B5": "none"}, 0.0),
        ({"B5": {"matches": r"=sum\(B2:B4\)"}}, 1.0),
        ({"B5": {"matches": r"=SUM\(B2"}}, 0.0),
        ({"B5": {"matches": "=SUM.*", "refers_to": ["B2:B5"]}}, 0.0),
    ]:
        assert (await scored(tmp_path, data, formulas=keys))[0] == expected, keys
    other = {"A1": {"refers_to": ["Data!B2"]}}
    assert (await scored(tmp_path, data, sheet="Other", formulas=other))[0] == 1.0
    assert (await scored(tmp_path, data, sheet="Other", formulas={"A1": {"refers_to": ["B2"]}}))[0] == 0.0


@pytest.mark.parametrize(
    ("formats", "problem"),
    [
        ({"A1": {"bold": True, "fill": "ffff00", "color": "FF0000", "size": 14.0, "align": "center"}}, ""),
        ({"B2": {"number_format": ["0.00", "#,##0.00"], "bold": False, "fill": "none", "color": "none"}}, ""),
        ({"A1:B1": {"bold": True}}, "B1: bold is False"),
        ({"A1": {"fill": "none"}}, "A1: fill is 'FFFF00'"),
        ({"A1": {"align": "left"}}, "A1: align is 'center'"),
        ({"B2": {"number_format": "0%"}}, "B2: number_format is '0.00'"),
        ({"A1": {"italic": True}}, "A1: italic is False"),
    ],
)
async def test_formats_are_compared_cell_by_cell(formats: dict[str, Any], problem: str, tmp_path: Path) -> None:
    value, detail = await scored(tmp_path, workbook(), formats=formats)
    assert (value, problem in detail) == (float(not problem), True), detail


async def test_values_and_formulas_are_both_required(tmp_path: Path) -> None:
    value, detail = await scored(tmp_path, workbook(B5="=SUM(B2:B4)"), cells={"B5": 60}, formulas=SUM)
    assert (value, detail) == (0.0, "a.xlsx: B5 is None"), "openpyxl stores no computed value"
    assert (await scored(tmp_path, workbook(B5=60), cells={"B5": 60}))[0] == 1.0
    assert (await scored(tmp_path, workbook(B5=60), cells={"B5": 60}, formulas=SUM))[0] == 0.0
    assert (await scored(tmp_path, b"no workbook", formulas=SUM))[0] == 0.0
    assert (await scored(tmp_path, workbook(), sheet="Absent", formulas=SUM))[0] == 0.0


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("a.ods", {"formulas": {"B5": "any"}}),
        ("a.xlsx", {"formulas": {"B": "any"}}),
        ("a.xlsx", {"formulas": {"Other!B5": "any"}}),
        ("a.xlsx", {"formulas": {"B5": "all"}}),
        ("a.xlsx", {"formulas": {"B5": {}}}),
        ("a.xlsx", {"formulas": {"B5": {"matches": "("}}}),
        ("a.xlsx", {"formulas": {"B5": {"refers_to": ["B:B"]}}}),
        ("a.xlsx", {"formats": {"A1": {}}}),
        ("a.xlsx", {"formats": {"A1": {"fill": "yellow"}}}),
        ("a.xlsx", {}),
    ],
)
def test_keys_that_cannot_be_checked_are_rejected(path: str, keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SheetCheck(path=path, **keys)


def test_a_formula_that_cannot_be_evaluated_must_name_its_cells() -> None:
    assert formulas.why_not_following("=MEDIAN(B2:B4)", ["B2:B4"], "Data", {}) is None
    assert formulas.why_not_following("=MEDIAN(B2:B3)", ["B2:B4"], "Data", {}) == "does not refer to B4"
