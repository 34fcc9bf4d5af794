"""Families `sheet_*`: spreadsheets in LibreOffice Calc. All cells of the saved XLSX file are judged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np

from deskhand.actions.ops import Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import InfrastructureError
from deskhand.tasks import formulas
from deskhand.tasks.guest_files import read_file
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.hd_screen import Steps, press
from deskhand.tasks.suites.basics.office_files import (
    Cell,
    OfficeScenario,
    Sheets,
    Workbook,
    read_workbook,
    replace_all,
    saved_by_application,
    workbook,
)
from deskhand.tasks.suites.basics.scenario import THEMES, Clauses, clause, milestone, scenario_family, title_milestone
from deskhand.tasks.suites.basics.screen_search import INK_CONTRAST, runs
from deskhand.tasks.task import Milestone, Rect, Task

BOOKS = ("budget", "stock", "orders", "prices", "garden", "kitchen", "office", "travel")
ITEMS = (
    "Lamp", "Chair", "Table", "Shelf", "Clock", "Mirror", "Basket", "Carpet", "Curtain", "Pillow", "Blanket",
    "Candle",
)  # fmt: skip
PLACES = ("Oslo", "Lisbon", "Vienna", "Athens", "Dublin", "Prague")
HEADER: list[Cell] = ["Item", "Place", "Price", "Number"]
TABS_PX, TABS_LEFT_PX, TAB_GAP_PX = (680, 693), 142, 12
"""Rows of the screen with the sheet names, the columns to their left, and a gap wider than between letters."""
SHEETS = ("Spring", "Summer", "Autumn", "Winter")


class SpreadsheetScenario(OfficeScenario):
    """One open spreadsheet."""

    applications = ("libreoffice-calc", "libreoffice-gtk3")
    program = "calc"
    num_sheets = 1

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        rng = self.rng
        self.path = f"Documents/{rng.choice(BOOKS)}.xlsx"
        self.sheet_names = rng.sample(SHEETS, self.num_sheets)
        self.sheets: Sheets = {name: self._table() for name in self.sheet_names}
        self.rows = self.sheets[self.sheet_names[0]]
        """Rows of the first sheet."""
        self.theme = rng.choice(THEMES)

    def _table(self) -> list[list[Cell]]:
        items = self.rng.sample(ITEMS, self.rng.randint(5, 9))
        prices = self.rng.sample(range(10, 300), len(items))
        lines = zip(items, prices, strict=True)
        return [HEADER, *([item, self.rng.choice(PLACES), price, self.rng.randint(1, 40)] for item, price in lines)]

    def content(self) -> bytes:
        return workbook(self.sheets)

    async def book(self, desktop: StageableDesktop) -> Workbook | None:
        return await read_workbook(await read_file(desktop, self.path))

    async def found_rows(self, desktop: StageableDesktop) -> list[list[Cell]]:
        """Return the rows of the first sheet in the file."""
        book = await self.book(desktop)
        return book.values.get(self.sheet_names[0], []) if book else []

    def sight(self, row: int, column: int) -> dict[str, tuple[str, ...]]:
        """Return `Task.oracle_follows` of the keys from A1 to a cell: what stands in its row and over its column."""
        return {"down several times": (str(self.rows[row][0]),), "right several times": (str(HEADER[column]),)}

    def same_cells(self, book: Workbook | None, wanted: Sheets) -> Finding:
        return clause(f"the cells of {self.name}", book.values if book else None, wanted)

    def edit_task(
        self,
        instruction: str,
        rows: list[list[Cell]],
        steps: Steps,
        *,
        sheets: Sheets | None = None,
        extra: Callable[[Workbook | None], list[Finding]] | None = None,
        clauses: Clauses | None = None,
        forged: Callable[[], bytes] | None = None,
        **fields: Any,
    ) -> Task:
        """Return a task whose file must have these rows, or these sheets.

        `extra` are clauses in addition to the cells, `clauses` instead of them; `forged` is a correct file if the cells
        alone are not.
        """
        wanted = sheets or {self.sheet_names[0]: rows}

        async def cells(desktop: StageableDesktop) -> list[Finding]:
            book = await self.book(desktop)
            return [self.same_cells(book, wanted), *(extra(book) if extra else [])]

        async def all_clauses(desktop: StageableDesktop) -> list[Finding]:
            return [*await (clauses or cells)(desktop), saved_by_application(await self.book(desktop))]

        return self.office_task(instruction, all_clauses, steps, forged or (lambda: workbook(wanted)), **fields)


def saved_milestone(scenario: SpreadsheetScenario) -> Milestone:
    """Return the milestone that the application saved the file, whatever is in it."""

    async def is_saved(desktop: StageableDesktop) -> float:
        return saved_by_application(await scenario.book(desktop)).value

    return milestone("the file was saved", 0.1, is_saved)


def go_to(row: int, column: int) -> list[Op]:
    """Return the keys from A1 to a cell, both counted from 0."""
    return [*press("ctrl+home"), *press("down", times=row), *press("right", times=column)]


def tabs(rgb: np.ndarray) -> list[Rect]:
    """Return the boxes of the sheet names in a window that fills the screen; `rgb` is `uint8[H, W, 3]`.

    Raises `InfrastructureError` if there are none.
    """
    top, bottom = TABS_PX
    band = rgb[top:bottom, TABS_LEFT_PX : hd_screen.WIDTH // 2].astype(np.int16)
    ink = (np.abs(band - band[0]).max(axis=2) > INK_CONTRAST).any(axis=0)
    found = [run for run in runs(ink, TAB_GAP_PX) if run[1] - run[0] >= TAB_GAP_PX]
    if not found:
        raise InfrastructureError("the spreadsheet shows no sheet names at its lower edge")
    return [Rect(TABS_LEFT_PX + left, top, TABS_LEFT_PX + right, bottom) for left, right in found]


@scenario_family(
    SpreadsheetScenario,
    "sheet_cell",
    "easy",
    "change a number in a spreadsheet and save it",
    abilities=("work on a table", "find something"),
)
def set_cell(scenario: SpreadsheetScenario) -> Task:
    row = scenario.rng.randrange(1, len(scenario.rows))
    number = scenario.rng.choice([value for value in range(310, 990) if value % 10])
    wanted = [list(line) for line in scenario.rows]
    wanted[row][2] = number
    text = f"In {scenario.name} change the price of the {scenario.rows[row][0]} to {number} and save the file"
    steps = [go_to(row, 2), [Type(f"{number}\n")]]
    return scenario.edit_task(text, wanted, steps, max_steps=10, oracle_follows=scenario.sight(row, 2))


@scenario_family(
    SpreadsheetScenario, "sheet_total", "medium", "write a formula below a column", abilities=("work on a table",)
)
def add_total(scenario: SpreadsheetScenario) -> Task:
    rows = len(scenario.rows)
    function, word = scenario.rng.choice(
        [("SUM", "sum"), ("MAX", "largest"), ("MIN", "smallest"), ("AVERAGE", "average")]
    )
    numbers = [int(str(line[3])) for line in scenario.rows[1:]]
    results = {"SUM": sum(numbers), "MAX": max(numbers), "MIN": min(numbers), "AVERAGE": sum(numbers) / len(numbers)}
    value = results[function]
    last_item = str(scenario.rows[-1][0])
    cell, formula = f"D{rows + 2}", f"={function}(D2:D{rows})"

    def follows(found: str | None) -> Finding:
        """Return the clause that the result of a formula follows each number of the column."""
        name, cells = f"the formula in {cell} follows the column", [f"D{row}" for row in range(2, rows + 1)]
        for index in range(len(numbers)):
            for changed in (max(numbers) + 1000, -1000):
                others = dict(zip(cells, [*numbers[:index], changed, *numbers[index + 1 :]], strict=True))
                expected = formulas.evaluate(formula, others)
                try:
                    result = formulas.evaluate(found or "", others)
                except formulas.UnknownFormula as error:
                    return Finding(name, 0.0, f"{found!r}: {error}", formula)
                if abs(result - expected) > 0.01:
                    read = f"{found!r} is {result:g} if {cells[index]} is {changed}"
                    return Finding(name, 0.0, read, f"{expected:g}")
        return Finding(name, 1.0, repr(found), formula)

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        book, page = await scenario.book(desktop), await scenario.found_rows(desktop)
        total = page[rows + 1][3] if len(page) == rows + 2 and len(page[rows + 1]) == 4 else None
        close = isinstance(total, int | float) and abs(total - value) < 0.01
        found = book.formulas.get(scenario.sheet_names[0], {}) if book else {}
        return [
            clause("the table is as it was", page[:rows], scenario.rows),
            Finding(f"{cell} has the {word}", float(close), repr(total), repr(value)),
            clause(f"only {cell} has a formula", sorted(found), [cell]),
            follows(found.get(cell)),
        ]

    text = f"In {scenario.name} put a formula into cell {cell} that gives the {word} of the column Number"
    return scenario.edit_task(
        f"{text}, and save the file",
        [*scenario.rows, [None], [None, None, None, formula]],
        [go_to(rows + 1, 3), [Type(f"{formula}\n")]],
        clauses=clauses,
        oracle_knows=("SUM", "MAX", "MIN", "AVERAGE"),
        oracle_follows=scenario.sight(rows - 1, 3) | {"D2": (str(scenario.rows[1][0]),), f"D{rows}": (last_item,)},
    )


@scenario_family(
    SpreadsheetScenario,
    "sheet_sort",
    "hard",
    "sort a table by a column",
    abilities=("work on a table", "use menus and dialogs"),
)
def sort_rows(scenario: SpreadsheetScenario) -> Task:
    column = scenario.rng.choice([0, 2])
    rows = sorted(scenario.rows[1:], key=lambda line: str(line[0]) if column == 0 else int(str(line[2])))

    async def is_reordered(desktop: StageableDesktop) -> bool:
        rows, before = (await scenario.found_rows(desktop))[1:], scenario.rows[1:]
        return rows != before and sorted(map(repr, rows)) == sorted(map(repr, before))

    order = "A to Z" if column == 0 else "the lowest to the highest"
    return scenario.edit_task(
        f"In {scenario.name} sort the rows by {HEADER[column]}, from {order}, and save the file",
        [HEADER, *rows],
        [go_to(1, column), press("alt+d"), press("a")],
        oracle_follows=scenario.sight(1, column),
        milestones=(saved_milestone(scenario), milestone("the rows are in another order", 0.2, is_reordered)),
    )


@scenario_family(
    SpreadsheetScenario,
    "sheet_row_out",
    "medium",
    "delete a whole row",
    abilities=("work on a table", "use menus and dialogs", "find something"),
)
def delete_row(scenario: SpreadsheetScenario) -> Task:
    row = scenario.rng.randrange(1, len(scenario.rows))
    wanted = [line for index, line in enumerate(scenario.rows) if index != row]
    text = f"In {scenario.name} delete the whole row of the {scenario.rows[row][0]}, so that no empty row is left"
    steps = [go_to(row, 0), press("shift+space"), press("ctrl+-")]
    return scenario.edit_task(f"{text}, and save the file", wanted, steps, oracle_follows=scenario.sight(row, 0))


@scenario_family(
    SpreadsheetScenario,
    "sheet_column_out",
    "medium",
    "delete a whole column",
    abilities=("work on a table", "use menus and dialogs"),
)
def delete_column(scenario: SpreadsheetScenario) -> Task:
    column = scenario.rng.randrange(1, len(HEADER))
    wanted = [[cell for index, cell in enumerate(line) if index != column] for line in scenario.rows]
    text = f"In {scenario.name} delete the whole column {HEADER[column]}, so that no empty column is left"
    steps = [go_to(0, column), press("ctrl+space"), press("ctrl+-")]
    return scenario.edit_task(f"{text}, and save the file", wanted, steps, oracle_follows=scenario.sight(0, column))


@scenario_family(
    SpreadsheetScenario,
    "sheet_bold",
    "medium",
    "make a row bold",
    abilities=("work on a table", "format a document", "find something"),
)
def bold_header(scenario: SpreadsheetScenario) -> Task:
    row = scenario.rng.randrange(0, len(scenario.rows))
    cells = [f"{letter}{row + 1}" for letter in "ABCD"]

    def extra(book: Workbook | None) -> list[Finding]:
        return [clause("the cells in bold", book.bold.get(scenario.sheet_names[0]) if book else None, cells)]

    columns = "the first row, which has the names of the columns,"
    which = columns if row == 0 else f"the row of the {scenario.rows[row][0]}"
    return scenario.edit_task(
        f"In {scenario.name} make {which} bold and save the file",
        scenario.rows,
        [go_to(row, 0), press("shift+space"), press("ctrl+b")],
        extra=extra,
        forged=lambda: workbook(scenario.sheets, bold=cells),
        oracle_follows=scenario.sight(row, 0),
    )


@scenario_family(
    SpreadsheetScenario,
    "sheet_replace",
    "medium",
    "replace a word in all cells",
    abilities=("work on a table", "use menus and dialogs"),
)
def replace_text(scenario: SpreadsheetScenario) -> Task:
    old = scenario.rng.choice([str(line[1]) for line in scenario.rows[1:]])
    new = scenario.rng.choice([place for place in PLACES if place != old])
    wanted = [[new if cell == old else cell for cell in line] for line in scenario.rows]
    text = f"In {scenario.name} replace {old} with {new} everywhere, and save the file"
    return scenario.edit_task(text, wanted, replace_all(old, new))


class SheetsScenario(SpreadsheetScenario):
    """A spreadsheet with three sheets."""

    num_sheets = 3


@scenario_family(
    SheetsScenario,
    "sheet_rename",
    "hard",
    "rename a sheet",
    abilities=("work on a table", "use menus and dialogs"),
)
def rename_sheet(scenario: SheetsScenario) -> Task:
    index = scenario.rng.randrange(3)
    new = scenario.rng.choice(PLACES)
    names = [new if number == index else name for number, name in enumerate(scenario.sheet_names)]

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        tab = tabs((await desktop.observe()).rgb())[index]
        yield [hd_screen.click_at(*tab.center, count=2)]
        await hd_screen.wait_shown(desktop, "Rename")
        yield press("ctrl+a")
        yield [Type(f"{new}\n")]
        await hd_screen.wait_closed(desktop, "Rename")

    def extra(book: Workbook | None) -> list[Finding]:
        return [clause("the names of the sheets, in order", list(book.values) if book else None, names)]

    async def has_name(desktop: StageableDesktop) -> bool:
        book = await scenario.book(desktop)
        return new in (book.values if book else {})

    return scenario.edit_task(
        f"In {scenario.name} rename the sheet {scenario.sheet_names[index]} to {new} and save the file",
        [],
        steps,
        sheets={name: scenario.sheets[old] for name, old in zip(names, scenario.sheet_names, strict=True)},
        extra=extra,
        milestones=(
            title_milestone("the dialog for the name is open", 0.1, "Rename"),
            milestone("a sheet has the new name", 0.2, has_name),
        ),
    )
