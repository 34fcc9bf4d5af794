"""Families across two applications. The saved file is judged, and the source must be unchanged."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

from deskhand.actions.ops import Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.guest_files import read_text
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics import hd_screen, spreadsheets, web_pages
from deskhand.tasks.suites.basics.hd_screen import HdScenario, click_in, press
from deskhand.tasks.suites.basics.office_files import Cell, saved_by_application, workbook
from deskhand.tasks.suites.basics.scenario import Oracle, clause, milestone, near_misses, scenario_family
from deskhand.tasks.suites.basics.spreadsheets import SpreadsheetScenario
from deskhand.tasks.suites.basics.web_pages import WebPageScenario
from deskhand.tasks.task import ExampleEndStates, Task

NOTE = "Documents/note.txt"


async def open_beside(scenario: HdScenario, desktop: StageableDesktop, title: str, text: str = "", *keys: str) -> None:
    """Stage a scenario, whose window has `title`, with a note next to it. `keys` are pressed in the window before."""
    await scenario.setup(desktop)
    if keys:
        await desktop.perform(press(*keys), action_id="before the note")
    await desktop.push(NOTE, text.encode())
    await desktop.launch(["mousepad", NOTE])
    (editor,) = await desktop.wait_window("mousepad")
    await hd_screen.side_by_side(desktop, (await desktop.wait_window(title))[0], editor)


async def note(desktop: StageableDesktop) -> str | None:
    text = await read_text(desktop, NOTE)
    return None if text is None else text.strip()


def write_note(text: str) -> Oracle:
    """Return the oracle that writes the note."""

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [click_in((await desktop.wait_window("mousepad"))[0])]
        yield [Type(text)]

    return hd_screen.until_written(NOTE, steps, press("ctrl+s"))


@scenario_family(
    SpreadsheetScenario,
    "sheet_to_note",
    "hard",
    "copy a value from a spreadsheet to a note",
    "mousepad",
    abilities=("work on a table", "read and compare", "carry data between programs"),
)
def sheet_to_note(scenario: SpreadsheetScenario) -> Task:
    rows = scenario.rows[1:]
    best = max(rows, key=lambda line: int(str(line[2])))
    question, answer = scenario.rng.choice(
        [
            ("the name of the item with the highest price", str(best[0])),
            ("the highest price", str(best[2])),
            ("how many rows of items there are", str(len(rows))),
        ]
    )

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        book = await scenario.book(desktop)
        return [
            clause("the note", await note(desktop), answer),
            scenario.same_cells(book, scenario.sheets),
        ]

    async def has_text(desktop: StageableDesktop) -> bool:
        return bool(await note(desktop))

    async def is_of_sheet(desktop: StageableDesktop) -> bool:
        cells = {str(cell) for line in scenario.rows for cell in line} | {str(len(scenario.rows)), answer}
        return await note(desktop) in cells

    def end_states() -> ExampleEndStates:
        files = {scenario.path: workbook(scenario.sheets)}
        right = files | {NOTE: f"{answer}\n".encode()}
        other = next(str(line[column]) for line in rows for column in (0, 2) if str(line[column]) != answer)
        return near_misses(
            right,
            NOTE,
            another_cell={**files, NOTE: other.encode()},
            more_than_that={**files, NOTE: f"{answer}.".encode()},
        )

    return scenario.build_task(
        f"Look up {question} in {scenario.name}, write just that into note.txt and save it",
        setup=lambda desktop: open_beside(scenario, desktop, scenario.name),
        clauses=clauses,
        oracle=write_note(answer),
        oracle_follows={str(len(rows)): tuple(str(line[0]) for line in rows)} if answer == str(len(rows)) else {},
        max_steps=10,
        milestones=(
            milestone("the note says something", 0.1, has_text),
            milestone("it is of the table", 0.1, is_of_sheet),
        ),
        example_end_states=end_states,
    )


@scenario_family(
    WebPageScenario,
    "page_to_note",
    "medium",
    "copy a value from a page to a note",
    "mousepad",
    abilities=("browse pages", "edit text", "carry data between programs"),
)
def page_to_note(scenario: WebPageScenario) -> Task:
    towns = scenario.rng.sample(web_pages.TOWNS, 5)
    codes = {town: f"{scenario.rng.choice('ABCDEFGH')}{scenario.rng.randint(100, 999)}" for town in towns}
    wanted = scenario.rng.choice(towns)
    lines = "".join(f"<tr><td>{town}<td>{code}</tr>" for town, code in codes.items())
    scenario.page("codes", "Codes", f"<table><tr><th>Town<th>Code</tr>{lines}</table>")

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        return [clause("the note", await note(desktop), codes[wanted])]

    def end_states() -> ExampleEndStates:
        right = {NOTE: f"{codes[wanted]}\n".encode()}
        other = next(code for town, code in codes.items() if town != wanted)
        return near_misses(
            right,
            NOTE,
            of_another_town={NOTE: other.encode()},
            with_the_town={NOTE: f"{wanted} {codes[wanted]}".encode()},
        )

    return scenario.build_task(
        f"Write the code of {wanted} from the page into note.txt and save it",
        setup=lambda desktop: open_beside(scenario, desktop, "chromium"),
        clauses=clauses,
        oracle=write_note(codes[wanted]),
        max_steps=8,
        example_end_states=end_states,
    )


@scenario_family(
    SpreadsheetScenario,
    "note_to_sheet",
    "hard",
    "copy values from a note to a spreadsheet",
    "mousepad",
    abilities=("work on a table", "carry data between programs", "read and compare"),
)
def note_to_sheet(scenario: SpreadsheetScenario) -> Task:
    rng = random.Random(f"note_to_sheet:{scenario.seed}")
    item = rng.choice([name for name in spreadsheets.ITEMS if name not in {line[0] for line in scenario.rows}])
    line: list[Cell] = [item, rng.choice(spreadsheets.PLACES), rng.randint(10, 300), rng.randint(1, 40)]
    text = f"New: {line[0]} from {line[1]}\nPrice: {line[2]}\nNumber: {line[3]}\n"
    wanted = {scenario.sheet_names[0]: [*scenario.rows, line]}

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        window = (await desktop.wait_window(scenario.name))[0]
        yield [click_in(window, 0.4, 0.75)]
        yield spreadsheets.go_to(len(scenario.rows), 0)
        yield [Type("".join(f"{cell}\t" for cell in line[:-1]) + f"{line[-1]}\n")]

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        book = await scenario.book(desktop)
        return [
            scenario.same_cells(book, wanted),
            clause("the note", await note(desktop), text.strip()),
            saved_by_application(book),
        ]

    async def has_item(desktop: StageableDesktop) -> bool:
        book = await scenario.book(desktop)
        found = {cell for page in (book.values if book else {}).values() for row in page for cell in row}
        return item in found

    return scenario.build_task(
        f"Add what note.txt says as a new row below the table in {scenario.name}, and save the spreadsheet",
        setup=lambda desktop: open_beside(scenario, desktop, scenario.name, text),
        clauses=clauses,
        oracle=hd_screen.until_written(scenario.path, steps, press("ctrl+s")),
        oracle_follows={"down several times": (str(scenario.rows[-1][0]),)},
        max_steps=10,
        milestones=(
            spreadsheets.saved_milestone(scenario),
            milestone("the new item is in the saved file", 0.2, has_item),
        ),
        forged_files={scenario.path: lambda: workbook(wanted)},
    )
