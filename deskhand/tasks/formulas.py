"""Evaluate a spreadsheet formula on other numbers than those in the sheet, and find the cells that it names.

Used by checks that ask for a formula: one that is right follows its cells, a number that was typed does not. To
evaluate, only what such formulas need is known: numbers, cells, ranges, `+ - * / ^ %`, parentheses and the functions of
`FUNCTIONS`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

MAX_CHARS = 2000
MAX_DEPTH = 50
MAX_CELLS = 10_000
"""In all references of a formula together."""
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)"
    r"|(?P<range>(?:(?:'[^']+'|\w+)!)?\$?[A-Z]{1,3}\$?\d{1,7}(?::\$?[A-Z]{1,3}\$?\d{1,7})?)(?![\w(])"
    r"|(?P<name>[A-Z][A-Z.]*)(?=\s*\()"
    r"|(?P<sign>[-+*/^%(),;]))",
    re.IGNORECASE,
)

Numbers = Mapping[str, float]
"""Numbers by cell ("D2"); cells that are missing are empty."""


class UnknownFormula(ValueError):
    """The formula contains something that is not known here, or has no value."""


def _average(values: list[float]) -> float:
    return sum(values) / len(values)


def _round(values: list[float]) -> float:
    """Round half away from zero, as spreadsheets do."""
    factor = 10.0 ** int(values[1] if len(values) > 1 else 0)
    return math.copysign(math.floor(abs(values[0]) * factor + 0.5) / factor, values[0])


def _subtotal(values: list[float]) -> float:
    kinds: dict[int, Callable[[list[float]], float]] = {1: _average, 2: len, 4: max, 5: min, 9: sum}
    kind = int(values[0]) % 100
    if kind not in kinds:
        raise UnknownFormula(f"SUBTOTAL({kind}, ...)")
    return kinds[kind](values[1:])


FUNCTIONS: dict[str, Callable[[list[float]], float]] = {
    "SUM": sum,
    "SUMPRODUCT": sum,
    "MAX": max,
    "MIN": min,
    "AVERAGE": _average,
    "COUNT": len,
    "COUNTA": len,
    "LARGE": lambda values: sorted(values[:-1], reverse=True)[int(values[-1]) - 1],
    "SMALL": lambda values: sorted(values[:-1])[int(values[-1]) - 1],
    "SUBTOTAL": _subtotal,
    "ROUND": _round,
}
"""Functions of a flat list of numbers. `SUMPRODUCT` is that of one range."""


def evaluate(formula: str, numbers: Numbers) -> float:
    """Return the value of a formula such as "=SUM(D2:D8)". Raises `UnknownFormula`."""
    if len(formula) > MAX_CHARS:
        raise UnknownFormula(f"it has {len(formula)} characters")
    try:
        return _Parser(formula.lstrip("{=").rstrip("}"), numbers).value()
    except (ArithmeticError, IndexError, TypeError, ValueError) as error:
        raise error if isinstance(error, UnknownFormula) else UnknownFormula(str(error)) from error


class _Parser:
    """Recursive descent over the tokens of one formula."""

    def __init__(self, text: str, numbers: Numbers) -> None:
        self._numbers, self._tokens = numbers, list[tuple[str, str]]()
        self._depth = self._num_cells = 0
        at = 0
        text = text.strip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None or found.lastgroup is None:
                raise UnknownFormula(f"{text[at : at + 20]!r}")
            self._tokens.append((found.lastgroup, found.group(found.lastgroup).upper()))
            at = found.end()
        self._tokens.reverse()

    def value(self) -> float:
        total = self._sum()
        if self._tokens:
            raise UnknownFormula(f"{self._tokens[-1][1]!r}")
        return _number(total)

    def _take(self, *signs: str) -> str | None:
        if self._tokens and self._tokens[-1][0] == "sign" and self._tokens[-1][1] in signs:
            return self._tokens.pop()[1]
        return None

    def _sum(self) -> list[float]:
        """Return a list: a range that nothing was done with has several numbers."""
        total = self._product()
        while sign := self._take("+", "-"):
            other = _number(self._product())
            total = [_number(total) + other if sign == "+" else _number(total) - other]
        return total

    def _product(self) -> list[float]:
        total = self._power()
        while sign := self._take("*", "/"):
            other = _number(self._power())
            total = [_number(total) * other if sign == "*" else _number(total) / other]
        return total

    def _power(self) -> list[float]:
        total = self._atom()
        while sign := self._take("^", "%"):
            total = [_number(total) / 100] if sign == "%" else [float(_number(total) ** _number(self._atom()))]
        return total

    def _atom(self) -> list[float]:
        self._depth += 1
        if self._depth > MAX_DEPTH or not self._tokens:
            raise UnknownFormula("it is too deep" if self._tokens else "it ends too early")
        try:
            kind, text = self._tokens.pop()
            if kind == "number":
                return [float(text)]
            if kind == "range":
                return self._values_of(cells_of(text))
            if text in ("+", "-"):
                return [_number(self._atom()) * (-1 if text == "-" else 1)]
            if text == "(":
                inner = self._sum()
                return inner if self._take(")") else self._fail()
            if kind == "name" and text in FUNCTIONS and self._take("("):
                return [float(FUNCTIONS[text](self._arguments()))]
            raise UnknownFormula(text)
        finally:
            self._depth -= 1

    def _values_of(self, cells: list[str]) -> list[float]:
        self._num_cells += len(cells)
        if self._num_cells > MAX_CELLS:
            raise UnknownFormula(f"it has more than {MAX_CELLS} cells")
        return [self._numbers[cell] for cell in cells if cell in self._numbers]

    def _arguments(self) -> list[float]:
        values = self._sum()
        while self._take(",", ";"):
            values = [*values, *self._sum()]
        return values if self._take(")") else self._fail()

    def _fail(self) -> list[float]:
        raise UnknownFormula("a parenthesis is not closed")


def _number(values: list[float]) -> float:
    if len(values) > 1:
        raise UnknownFormula("a range where a number is needed")
    return values[0] if values else 0.0


def cells_of(text: str) -> list[str]:
    """Return the cells of a reference ("$D$2", "Sheet!D2:E8") by row, without the sheet. Raises `UnknownFormula`."""
    first, _, last = text.rpartition("!")[2].replace("$", "").upper().partition(":")
    (left, top), (right, bottom) = _position(first), _position(last or first)
    if (abs(right - left) + 1) * (abs(bottom - top) + 1) > MAX_CELLS:
        raise UnknownFormula(f"{text} has more than {MAX_CELLS} cells")
    columns, rows = sorted((left, right)), sorted((top, bottom))
    return [f"{_letters(x)}{y}" for y in range(rows[0], rows[1] + 1) for x in range(columns[0], columns[1] + 1)]


_REFERENCE = re.compile(
    r"(?<![\w.'!])(?:(?P<sheet>'(?:[^']|'')+'|[\w.]+)!)?"
    r"(?P<range>\$?[A-Z]{1,3}\$?[1-9]\d{0,6}(?::\$?[A-Z]{1,3}\$?[1-9]\d{0,6})?|\$?[A-Z]{1,3}:\$?[A-Z]{1,3})(?![\w(.!])",
    re.IGNORECASE,
)
_TEXT = re.compile(r'"(?:[^"]|"")*"')


def parse_reference(text: str) -> tuple[str | None, list[str]]:
    """Return the sheet (None: the formula's own) and the cells of "B2", "B2:B9" or "Sheet!B2". Raises `ValueError`."""
    found = _REFERENCE.fullmatch(text)
    if found is None or not any(character.isdigit() for character in found["range"]):
        raise ValueError(f"invalid reference {text!r}; write a cell or a range such as B2:B9")
    return _sheet_name(found["sheet"]), cells_of(found["range"])


def _sheet_name(text: str | None) -> str | None:
    return None if text is None else text.strip("'").replace("''", "'").casefold()


def why_not_following(formula: str, wanted: list[str], sheet: str, numbers: Numbers) -> str | None:
    """Return why a formula of `sheet` does not name all cells of the references `wanted`, or None.

    Where the formula can be evaluated, it must also follow them: for each cell of the own sheet, a far larger, a far
    smaller or no number must give another value. `numbers` are those of the own sheet.
    """
    own = sheet.casefold()
    named = [
        (_sheet_name(found["sheet"]) or own, found["range"].replace("$", "").upper())
        for found in _REFERENCE.finditer(_TEXT.sub('""', formula))
    ]
    for reference in wanted:
        place, cells = parse_reference(reference)
        for cell in cells:
            if not any(of == (place or own) and _covers(text, cell) for of, text in named):
                return f"does not refer to {cell if place is None else reference}"
            if place is None and all(of == own for of, _ in named) and not _follows(formula, cell, numbers):
                return f"does not follow {cell}"
    return None


def _covers(text: str, cell: str) -> bool:
    first, _, last = text.partition(":")
    column, row = _position(cell)
    if not first[-1].isdigit():  # whole columns
        columns = sorted(_position(f"{each}1")[0] for each in (first, last))
        return columns[0] <= column <= columns[1]
    (left, top), (right, bottom) = _position(first), _position(last or first)
    return min(left, right) <= column <= max(left, right) and min(top, bottom) <= row <= max(top, bottom)


def _follows(formula: str, cell: str, numbers: Numbers) -> bool:
    """Return whether another number in `cell` changes the value; True if the formula cannot be evaluated."""
    try:
        value = evaluate(formula, numbers)
    except UnknownFormula:
        return True
    others: list[Numbers] = [{**numbers, cell: numbers.get(cell, 0.0) + change} for change in (1e6, -1e6)]
    others.append({name: number for name, number in numbers.items() if name != cell})
    for other in others:
        try:
            if not math.isclose(evaluate(formula, other), value, rel_tol=1e-12, abs_tol=1e-12):
                return True
        except UnknownFormula:  # such as a division by the cell
            return True
    return False


def _position(cell: str) -> tuple[int, int]:
    letters = cell.rstrip("0123456789")
    column = 0
    for letter in letters:
        column = column * 26 + ord(letter) - 64
    return column, int(cell[len(letters) :])


def _letters(column: int) -> str:
    text = ""
    while column:
        column, rest = divmod(column - 1, 26)
        text = chr(65 + rest) + text
    return text
