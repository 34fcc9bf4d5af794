"""Families `sheet_*`: spreadsheets in LibreOffice Calc. All cells of the saved XLSX file are judged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np

from deskhand.actions.ops import Done, Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import InfrastructureError
from deskhand.tasks.guest_files import read_file
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.clauses import clause
from deskhand.tasks.suites.basics.hd_screen import HdScenario, press
from deskhand.tasks.suites.basics.office_files import Cell, Sheets, Workbook, read_workbook, workbook
from deskhand.tasks.suites.basics.scenario import THEMES, Clauses, Oracle, dialog_milestone, milestone
from deskhand.tasks.suites.basics.screen_search import INK_CONTRAST, runs
from deskhand.tasks.task import Family, Milestone, Rect, Task

PACKAGES = ("libreoffice-calc", "libreoffice-gtk3")
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


class SpreadsheetScenario(HdScenario):
    """One open spreadsheet."""

    def __init__(self, family: str, seed: int, sheets: int = 1) -> None:
        super().__init__(family, seed)
        rng = self.rng
        self.path = f"Documents/{rng.choice(BOOKS)}.xlsx"
        self.sheet_names = rng.sample(SHEETS, sheets)
        self.sheets: Sheets = {name: self._table() for name in self.sheet_names}
        self.theme = rng.choice(THEMES)

    def _table(self) -> list[list[Cell]]:
        items = self.rng.sample(ITEMS, self.rng.randint(5, 9))
        prices = self.rng.sample(range(10, 300), len(items))
        lines = zip(items, prices, strict=True)
        return [HEADER, *([item, self.rng.choice(PLACES), price, self.rng.randint(1, 40)] for item, price in lines)]

    @property
    def first(self) -> list[list[Cell]]:
        return self.sheets[self.sheet_names[0]]

    @property
    def name(self) -> str:
        return self.path.split("/")[-1]

    async def setup(self, desktop: StageableDesktop) -> None:
        await desktop.push(self.path, workbook(self.sheets))
        await desktop.launch(["soffice", "--norestore", "--nologo", "--calc", self.path])
        await desktop.wait_window(self.name, timeout_s=hd_screen.WINDOW_TIMEOUT_S)
        await hd_screen.wait_responsive(desktop)

    async def save(self, desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        before = await read_file(desktop, self.path)
        yield press("ctrl+s")
        await hd_screen.wait_written(desktop, self.path, before)
        yield [Done()]

    async def book(self, desktop: StageableDesktop) -> Workbook | None:
        return await read_workbook(await read_file(desktop, self.path))

    def edit_task(
        self,
        instruction: str,
        wanted: Sheets,
        steps: Oracle,
        *,
        extra: Callable[[Workbook | None], list[Finding]] | None = None,
        clauses: Clauses | None = None,
        forged: Callable[[], bytes] | None = None,
        **fields: Any,
    ) -> Task:
        """Return a task; `fields` are more fields of `Task`.

        Args:
            wanted: The sheets of the saved file.
            steps: The oracle's steps before saving.
            extra: Clauses in addition to the cells.
            clauses: Clauses instead of the cells.
            forged: A correct file, if `wanted` alone is not.
        """

        async def cells(desktop: StageableDesktop) -> list[Finding]:
            book = await self.book(desktop)
            same = clause(f"the cells of {self.name}", book.values if book else None, wanted)
            return [same, *(extra(book) if extra else [])]

        async def all_clauses(desktop: StageableDesktop) -> list[Finding]:
            return [*await (clauses or cells)(desktop), saved_by_application(await self.book(desktop))]

        async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
            async for ops in steps(desktop):
                yield ops
            async for ops in self.save(desktop):
                yield ops

        return self.build_task(
            instruction,
            clauses=all_clauses,
            oracle=oracle,
            metadata={"file": self.path},
            forged_files={self.path: forged or (lambda: workbook(wanted))},
            **({"max_steps": 12} | fields),
        )


def saved_by_application(book: Workbook | None) -> Finding:
    """Return the clause that LibreOffice saved the file; set-up's file and forged ones name another application."""
    return clause("the application that saved the file", book.application if book else None, "LibreOffice")


def saved_milestone(scenario: SpreadsheetScenario) -> Milestone:
    """Return the milestone that the application saved the file, whatever is in it."""

    async def is_saved(desktop: StageableDesktop) -> float:
        return saved_by_application(await scenario.book(desktop)).value

    return milestone("the file was saved", 0.1, is_saved)


def go_to(row: int, column: int) -> list[Op]:
    """Return the keys from A1 to a cell, both counted from 0."""
    return [*press("ctrl+home"), *press("down", times=row), *press("right", times=column)]


def tabs(rgb: np.ndarray) -> list[Rect]:
    """Return the names of the sheets, from left to right, in a window that fills the screen; `rgb` is `uint8[H, W,
    3]`.

    Raises `InfrastructureError` if there are none.
    """
    top, bottom = TABS_PX[0], TABS_PX[1]
    band = rgb[top:bottom, TABS_LEFT_PX : hd_screen.WIDTH // 2].astype(np.int16)
    ink = (np.abs(band - band[0]).max(axis=2) > INK_CONTRAST).any(axis=0)
    found = [run for run in runs(ink, TAB_GAP_PX) if run[1] - run[0] >= TAB_GAP_PX]
    if not found:
        raise InfrastructureError("the spreadsheet shows no sheet names at its lower edge")
    return [Rect(TABS_LEFT_PX + left, top, TABS_LEFT_PX + right, bottom) for left, right in found]


def set_cell(seed: int) -> Task:
    """Change a number."""
    scenario = SpreadsheetScenario("sheet_cell", seed)
    row = scenario.rng.randrange(1, len(scenario.first))
    number = scenario.rng.choice([value for value in range(310, 990) if value % 10])
    wanted = [list(line) for line in scenario.first]
    wanted[row][2] = number

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield go_to(row, 2)
        yield [Type(f"{number}\n")]

    text = f"In {scenario.name} change the price of the {scenario.first[row][0]} to {number} and save the file"
    return scenario.edit_task(text, {scenario.sheet_names[0]: wanted}, steps, difficulty="easy", max_steps=10)


def add_total(seed: int) -> Task:
    """Write a formula below a column."""
    scenario = SpreadsheetScenario("sheet_total", seed)
    rows = len(scenario.first)
    function, word = scenario.rng.choice(
        [("SUM", "sum"), ("MAX", "largest"), ("MIN", "smallest"), ("AVERAGE", "average")]
    )
    numbers = [int(str(line[3])) for line in scenario.first[1:]]
    value = {"SUM": sum(numbers), "MAX": max(numbers), "MIN": min(numbers), "AVERAGE": sum(numbers) / len(numbers)}[
        function
    ]
    cell = f"D{rows + 2}"

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield go_to(rows + 1, 3)
        yield [Type(f"={function}(D2:D{rows})\n")]

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        book = await scenario.book(desktop)
        page = book.values.get(scenario.sheet_names[0], []) if book else []
        total = page[rows + 1][3] if len(page) == rows + 2 and len(page[rows + 1]) == 4 else None
        close = isinstance(total, int | float) and abs(total - value) < 0.01
        formulas = book.formulas.get(scenario.sheet_names[0], {}) if book else {}
        return [
            clause("the table is as it was", page[:rows], scenario.first),
            Finding(f"{cell} has the {word}", float(close), repr(total), repr(value)),
            clause(f"only {cell} has a formula", sorted(formulas), [cell]),
        ]

    text = (
        f"In {scenario.name} put a formula into cell {cell} that gives the {word} of the column Number"
        ", and save the file"
    )
    line: list[Cell] = [None, None, None, f"={function}(D2:D{rows})"]
    return scenario.edit_task(
        text,
        {},
        steps,
        clauses=clauses,
        forged=lambda: workbook({scenario.sheet_names[0]: [*scenario.first, [None], line]}),
    )


def sort_rows(seed: int) -> Task:
    """Sort a table by a column."""
    scenario = SpreadsheetScenario("sheet_sort", seed)
    column = scenario.rng.choice([0, 2])
    rows = sorted(scenario.first[1:], key=lambda line: str(line[0]) if column == 0 else int(str(line[2])))

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield go_to(1, column)
        yield press("alt+d")
        yield press("a")

    async def is_reordered(desktop: StageableDesktop) -> bool:
        book = await scenario.book(desktop)
        found = book.values.get(scenario.sheet_names[0], []) if book else []
        rows, before = found[1:], scenario.first[1:]
        return rows != before and sorted(map(repr, rows)) == sorted(map(repr, before))

    order = "A to Z" if column == 0 else "the lowest to the highest"
    text = f"In {scenario.name} sort the rows by {HEADER[column]}, from {order}, and save the file"
    milestones = (saved_milestone(scenario), milestone("the rows are in another order", 0.2, is_reordered))
    return scenario.edit_task(
        text, {scenario.sheet_names[0]: [HEADER, *rows]}, steps, difficulty="hard", milestones=milestones
    )


def delete_row(seed: int) -> Task:
    """Delete a whole row."""
    scenario = SpreadsheetScenario("sheet_row_out", seed)
    row = scenario.rng.randrange(1, len(scenario.first))

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield go_to(row, 0)
        yield press("shift+space")
        yield press("ctrl+-")

    wanted = [line for index, line in enumerate(scenario.first) if index != row]
    text = (
        f"In {scenario.name} delete the whole row of the {scenario.first[row][0]}, so that no empty row is left"
        ", and save the file"
    )
    return scenario.edit_task(text, {scenario.sheet_names[0]: wanted}, steps)


def delete_column(seed: int) -> Task:
    """Delete a whole column."""
    scenario = SpreadsheetScenario("sheet_column_out", seed)
    column = scenario.rng.randrange(1, len(HEADER))

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield go_to(0, column)
        yield press("ctrl+space")
        yield press("ctrl+-")

    wanted = [[cell for index, cell in enumerate(line) if index != column] for line in scenario.first]
    text = (
        f"In {scenario.name} delete the whole column {HEADER[column]}, so that no empty column is left"
        ", and save the file"
    )
    return scenario.edit_task(text, {scenario.sheet_names[0]: wanted}, steps)


def bold_header(seed: int) -> Task:
    """Make a row bold."""
    scenario = SpreadsheetScenario("sheet_bold", seed)
    row = scenario.rng.randrange(0, len(scenario.first))
    cells = [f"{letter}{row + 1}" for letter in "ABCD"]

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield go_to(row, 0)
        yield press("shift+space")
        yield press("ctrl+b")

    def extra(book: Workbook | None) -> list[Finding]:
        return [clause("the cells in bold", book.bold.get(scenario.sheet_names[0]) if book else None, cells)]

    which = (
        "the first row, which has the names of the columns," if row == 0 else f"the row of the {scenario.first[row][0]}"
    )
    text = f"In {scenario.name} make {which} bold and save the file"
    return scenario.edit_task(
        text, scenario.sheets, steps, extra=extra, forged=lambda: workbook(scenario.sheets, bold=cells)
    )


def replace_text(seed: int) -> Task:
    """Replace a word in all cells."""
    scenario = SpreadsheetScenario("sheet_replace", seed)
    old = scenario.rng.choice([str(line[1]) for line in scenario.first[1:]])
    new = scenario.rng.choice([place for place in PLACES if place != old])
    wanted = [[new if cell == old else cell for cell in line] for line in scenario.first]

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        async for ops in hd_screen.replace_all(desktop, old, new):
            yield ops

    text = f"In {scenario.name} replace {old} by {new} wherever it stands, and save the file"
    return scenario.edit_task(text, {scenario.sheet_names[0]: wanted}, steps)


def rename_sheet(seed: int) -> Task:
    """Rename one of three sheets."""
    scenario = SpreadsheetScenario("sheet_rename", seed, sheets=3)
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

    wanted = {name: scenario.sheets[old] for name, old in zip(names, scenario.sheet_names, strict=True)}

    def extra(book: Workbook | None) -> list[Finding]:
        return [clause("the names of the sheets, in order", list(book.values) if book else None, names)]

    async def has_name(desktop: StageableDesktop) -> bool:
        book = await scenario.book(desktop)
        return new in (book.values if book else {})

    milestones = (
        dialog_milestone("the dialog for the name is open", 0.1, "Rename"),
        milestone("a sheet has the new name", 0.2, has_name),
    )
    text = f"In {scenario.name} give the sheet {scenario.sheet_names[index]} the name {new} and save the file"
    return scenario.edit_task(text, wanted, steps, difficulty="hard", extra=extra, milestones=milestones)


FAMILIES = (
    Family("sheet_cell", PACKAGES, "easy", set_cell, "change a number in a spreadsheet and save it"),
    Family("sheet_total", PACKAGES, "medium", add_total, "write a formula below a column"),
    Family("sheet_sort", PACKAGES, "hard", sort_rows, "sort a table by a column"),
    Family("sheet_row_out", PACKAGES, "medium", delete_row, "delete a whole row"),
    Family("sheet_column_out", PACKAGES, "medium", delete_column, "delete a whole column"),
    Family("sheet_bold", PACKAGES, "medium", bold_header, "make a row bold"),
    Family("sheet_replace", PACKAGES, "medium", replace_text, "replace a word in all cells"),
    Family("sheet_rename", PACKAGES, "hard", rename_sheet, "give a sheet another name"),
)
