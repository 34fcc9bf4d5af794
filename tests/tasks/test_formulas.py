"""Formulas follow their cells; what is not known has no value."""

from __future__ import annotations

import pytest

from deskhand.tasks.formulas import MAX_CELLS, UnknownFormula, cells_of, evaluate

NUMBERS = {f"D{row}": float(row) for row in range(2, 9)}


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("=SUM(D2:D8)", 35),
        ("=sum($D$8:$D$2)", 35),
        ("=SUM(Sheet1!D2:D8)", 35),
        ("=SUM('My sheet'!D2:D8)", 35),
        ("=SUM(D2:D5,D6:D8)", 35),
        ("=SUM(D2:D5;D6;D7;D8)", 35),
        ("=D2+D3+D4+D5+D6+D7+D8", 35),
        ("=+SUM(D1:D9)", 35),
        ("=SUM(D2:D8)/COUNT(D2:D8)", 5),
        ("=SUBTOTAL(101;D2:D8)", 5),
        ("=LARGE(D2:D8;2)", 7),
        ("=SMALL(D2:D8,1)", 2),
        ("=MAX(D2:D8)-MIN(D2:D8)*2", 4),
        ("=-D2^2+50%", 4.5),
        ("=ROUND(AVERAGE(D2:D3);0)", 3),
        ("=(D2+D3)*.5", 2.5),
        ("=1.5e1", 15),
        ("=E99", 0),
    ],
)
def test_a_formula_has_its_value(formula: str, value: float) -> None:
    assert evaluate(formula, NUMBERS) == pytest.approx(value)


@pytest.mark.parametrize(
    "formula",
    [
        "",
        "=",
        "=IF(1,35,SUM(D2:D8))",
        "=SUM(D2:D8",
        "=SUM(D2:D8))",
        "=SUM(D2:D8)+",
        "=1/0",
        "=9^9^9^9",
        "=-8^.5",
        "=D2:D8",
        "=LARGE(D2:D8,99)",
        "=SUBTOTAL(42,D2:D8)",
        "=MAX(E2:E8)",
        '="35"',
        "=" + "(" * 500,
        "=" + "1+" * 5000 + "1",
        f"=SUM(A1:A{MAX_CELLS + 1})",
        "=SUM(A1:ZZZ9999999)",
        f"=SUM({','.join([f'A1:A{MAX_CELLS - 1}'] * 2)})",
        "=ROUND(D2,999999999)",
        "=ROUND(D2,1E300)",
    ],
)
def test_what_is_not_known_has_no_value(formula: str) -> None:
    with pytest.raises(UnknownFormula):
        evaluate(formula, NUMBERS)


def test_a_range_has_its_cells() -> None:
    assert cells_of("Z1:$AB$2") == ["Z1", "AA1", "AB1", "Z2", "AA2", "AB2"]
