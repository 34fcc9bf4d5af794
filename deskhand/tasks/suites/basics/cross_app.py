"""Families across two applications: read in one, write in the other. The saved file is judged, and the source must be
unchanged.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

from deskhand.actions.ops import Done, Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.guest_files import read_file, read_text
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics import hd_screen, spreadsheets, web_pages
from deskhand.tasks.suites.basics.clauses import clause, near_misses
from deskhand.tasks.suites.basics.hd_screen import click_in, press
from deskhand.tasks.suites.basics.office_files import read_workbook, workbook
from deskhand.tasks.suites.basics.scenario import milestone
from deskhand.tasks.task import ExampleEndStates, Family, Task

NOTE = "Documents/note.txt"
EDITOR = ("mousepad", NOTE)


async def open_note(desktop: StageableDesktop, text: str = "") -> None:
    await desktop.push(NOTE, text.encode())
    await desktop.launch(list(EDITOR))
    await desktop.wait_window("mousepad")


async def note(desktop: StageableDesktop) -> str | None:
    text = await read_text(desktop, NOTE)
    return None if text is None else text.strip()


async def write_note(desktop: StageableDesktop, text: str) -> AsyncIterator[list[Op]]:
    """Yield the oracle's steps from a click in the editor to the end."""
    (editor,) = await desktop.wait_window("mousepad")
    before = await read_file(desktop, NOTE)
    yield [click_in(editor)]
    yield [Type(text)]
    yield press("ctrl+s")
    await hd_screen.wait_written(desktop, NOTE, before)
    yield [Done()]


def sheet_to_note(seed: int) -> Task:
    """Look something up in a spreadsheet and write it down."""
    scenario = spreadsheets.SpreadsheetScenario("sheet_to_note", seed)
    rows = scenario.first[1:]
    best = max(rows, key=lambda line: int(str(line[2])))
    question, answer = scenario.rng.choice(
        [
            ("the name of the item with the highest price", str(best[0])),
            ("the highest price", str(best[2])),
            ("how many items there are", str(len(rows))),
        ]
    )

    async def setup(desktop: StageableDesktop) -> None:
        await scenario.setup(desktop)
        await open_note(desktop)
        await hd_screen.side_by_side(
            desktop, (await desktop.wait_window(scenario.name))[0], (await desktop.wait_window("mousepad"))[0]
        )

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        book = await scenario.book(desktop)
        return [
            clause("the note", await note(desktop), answer),
            clause(f"the cells of {scenario.name}", book.values if book else None, scenario.sheets),
        ]

    async def has_text(desktop: StageableDesktop) -> bool:
        return bool(await note(desktop))

    async def is_of_sheet(desktop: StageableDesktop) -> bool:
        cells = {str(cell) for line in scenario.first for cell in line} | {str(len(scenario.first)), answer}
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
        difficulty="hard",
        setup=setup,
        clauses=clauses,
        oracle=lambda desktop: write_note(desktop, answer),
        max_steps=10,
        milestones=(
            milestone("the note says something", 0.1, has_text),
            milestone("it is of the table", 0.1, is_of_sheet),
        ),
        example_end_states=end_states,
    )


def page_to_note(seed: int) -> Task:
    """Read something on a page and write it down."""
    scenario = web_pages.WebPageScenario("page_to_note", seed)
    towns = scenario.rng.sample(web_pages.TOWNS, 5)
    codes = {town: f"{scenario.rng.choice('ABCDEFGH')}{scenario.rng.randint(100, 999)}" for town in towns}
    wanted = scenario.rng.choice(towns)
    lines = "".join(f"<tr><td>{town}<td>{code}</tr>" for town, code in codes.items())
    scenario.page("codes", "Codes", f"<table><tr><th>Town<th>Code</tr>{lines}</table>")

    async def setup(desktop: StageableDesktop) -> None:
        await scenario.setup(desktop)
        await open_note(desktop)
        await hd_screen.side_by_side(
            desktop, (await desktop.wait_window("chromium"))[0], (await desktop.wait_window("mousepad"))[0]
        )

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
        setup=setup,
        clauses=clauses,
        oracle=lambda desktop: write_note(desktop, codes[wanted]),
        max_steps=8,
        example_end_states=end_states,
    )


def note_to_sheet(seed: int) -> Task:
    """Copy a note into a spreadsheet."""
    rng = random.Random(f"note_to_sheet:{seed}")
    scenario = spreadsheets.SpreadsheetScenario("note_to_sheet", seed)
    item = rng.choice([name for name in spreadsheets.ITEMS if name not in {line[0] for line in scenario.first}])
    line: list[spreadsheets.Cell] = [item, rng.choice(spreadsheets.PLACES), rng.randint(10, 300), rng.randint(1, 40)]
    text = f"New: {line[0]} from {line[1]}\nPrice: {line[2]}\nNumber: {line[3]}\n"
    wanted = {scenario.sheet_names[0]: [*scenario.first, line]}

    async def setup(desktop: StageableDesktop) -> None:
        await scenario.setup(desktop)
        await open_note(desktop, text)
        await hd_screen.side_by_side(
            desktop, (await desktop.wait_window(scenario.name))[0], (await desktop.wait_window("mousepad"))[0]
        )

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        window = (await desktop.wait_window(scenario.name))[0]
        before = await read_file(desktop, scenario.path)
        yield [click_in(window, 0.4, 0.75)]
        yield spreadsheets.go_to(len(scenario.first), 0)
        yield [Type("".join(f"{cell}\t" for cell in line[:-1]) + f"{line[-1]}\n")]
        yield press("ctrl+s")
        await hd_screen.wait_written(desktop, scenario.path, before)
        yield [Done()]

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        book = await read_workbook(await read_file(desktop, scenario.path))
        return [
            clause(f"the cells of {scenario.name}", book.values if book else None, wanted),
            clause("the note", await note(desktop), text.strip()),
            spreadsheets.saved_by_application(book),
        ]

    async def has_item(desktop: StageableDesktop) -> bool:
        book = await scenario.book(desktop)
        found = {cell for page in (book.values if book else {}).values() for row in page for cell in row}
        return item in found

    return scenario.build_task(
        f"Add what note.txt says as a new row below the table in {scenario.name}, and save the spreadsheet",
        difficulty="hard",
        setup=setup,
        clauses=clauses,
        oracle=oracle,
        max_steps=10,
        milestones=(
            spreadsheets.saved_milestone(scenario),
            milestone("the new item is in the saved file", 0.2, has_item),
        ),
        forged_files={scenario.path: lambda: workbook(wanted)},
    )


FAMILIES = (
    Family(
        "sheet_to_note",
        (*spreadsheets.PACKAGES, "mousepad"),
        "hard",
        sheet_to_note,
        "look up in a spreadsheet, write into a text",
    ),
    Family(
        "page_to_note", (*web_pages.PACKAGES, "mousepad"), "medium", page_to_note, "read on a page, write into a text"
    ),
    Family(
        "note_to_sheet",
        (*spreadsheets.PACKAGES, "mousepad"),
        "hard",
        note_to_sheet,
        "copy from a text into a spreadsheet",
    ),
)
