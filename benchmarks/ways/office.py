"""Ways to do the families of `basics` in LibreOffice, alone and beside an editor or a browser."""

from __future__ import annotations

import random

from benchmarks.ways.person import Act, Ways, click, gone, hit, label, menu, rest, told, types, wait
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.suites.basics import cross_app
from deskhand.tasks.suites.basics.office_files import REPLACE_ALL_PX, REPLACE_BY_PX
from deskhand.tasks.suites.basics.spreadsheets import HEADER, ITEMS, PLACES, SheetsScenario, SpreadsheetScenario, tabs
from deskhand.tasks.suites.basics.text_documents import TextDocumentScenario
from deskhand.tasks.task import Rect, Task

BY_KEYS: list[Act] = ["ctrl+s", rest]
BY_MENU: list[Act] = ["alt+f s", rest]
SAVE_PX, SORT_PX, BOLD_PX = (106, 43), (752, 43), (327, 83)
TEXT_BOLD_PX, CENTER_PX, RIGHT_PX, INSERT_PX = (576, 82), (972, 82), (1005, 82), (-51, -25)
"""Buttons of spreadsheet, text and a dialog: the accessibility tree puts them above where they are."""
BY_BUTTON: list[Act] = [click("LibreOffice", *SAVE_PX), rest]


def to(cells: str) -> list[Act]:
    """Go to cells by the Name Box."""
    return ["ctrl+shift+t", types(f"{cells}\n")]


def replace_all(old: str, new: str) -> list[Act]:
    """Replace by the dialog that is open."""
    title = "Find and Replace"
    fields = [wait(title), types(old), click(title, *REPLACE_BY_PX), types(new)]
    return [*fields, click(title, -REPLACE_ALL_PX[0], REPLACE_ALL_PX[1]), rest, "Escape Escape"]


def table(task: Task) -> SpreadsheetScenario:
    return SpreadsheetScenario(task.family, task.seed)


def row_of(task: Task, item: str) -> int:
    """Number of the row that begins with an item, as the program counts."""
    return [str(line[0]) for line in table(task).rows].index(item) + 1


def cell_px(column: int, row: int) -> tuple[int, int]:
    """Place of a cell in a window that shows the sheet from A1 on."""
    return 109 + 146 * column, 150 + 20 * row


def sheet_cell(task: Task) -> Ways:
    item, number = told(task, r"the price of the (\w+) to (\d+)")
    row = row_of(task, item)
    cell = f"C{row}"
    return {
        "by the Name Box, saved by the menu": [*to(cell), types(f"{number}\n"), *BY_MENU],
        "edited in the cell": [*to(cell), "F2 shift+Home", types(f"{number}\n"), *BY_KEYS],
        "by the mouse, saved by the button": [click("LibreOffice", *cell_px(2, row)), types(f"{number}\t"), *BY_BUTTON],
        "emptied first": [*to(cell), "Delete", types(f"{number}\n"), *BY_KEYS],
    }


def sheet_total(task: Task) -> Ways:
    cell, word = told(task, r"cell (D\d+) that gives the (\w+)")
    name = {"sum": "SUM", "largest": "MAX", "smallest": "MIN", "average": "AVERAGE"}[word]
    last = len(table(task).rows)
    cells = ";".join(f"D{row}" for row in range(2, last + 1))
    return {
        "in lower case, saved by the menu": [*to(cell), types(f"={name.lower()}(d2:d{last})\n"), *BY_MENU],
        "with fixed references": [*to(cell), types(f"={name}($D$2:$D${last})\n"), *BY_KEYS],
        "cell by cell": [*to(cell), types(f"={name}({cells})\n"), *BY_KEYS],
        "with the header in the range": [*to(cell), types(f"={name}(D1:D{last})\n"), *BY_BUTTON],
    }


def sheet_sort(task: Task) -> Ways:
    (column,) = told(task, r"sort the rows by (\w+)")
    letter = "ABCD"[HEADER.index(column)]
    return {
        "the Data menu": [*to(f"{letter}3"), *menu("Data", "Sort Ascending"), *BY_MENU],
        "the button": [*to(f"{letter}1"), click("LibreOffice", *SORT_PX), *BY_KEYS],
        "from the last row": [*to(f"{letter}{len(table(task).rows)}"), "alt+d a", *BY_BUTTON],
    }


def sheet_row_out(task: Task) -> Ways:
    (item,) = told(task, r"row of the (\w+),")
    row = row_of(task, item)
    return {
        "the Sheet menu": [*to(f"A{row}"), *menu("Sheet", "Delete Rows"), *BY_KEYS],
        "the row chosen by its name": [*to(f"{row}:{row}"), "ctrl+-", *BY_MENU],
        "the dialog": [*to(f"B{row}"), "ctrl+-", wait("Delete Cells"), "alt+r", "Return", *BY_KEYS],
    }


def sheet_column_out(task: Task) -> Ways:
    (name,) = told(task, r"whole column (\w+),")
    letter = "ABCD"[HEADER.index(name)]
    return {
        "the Sheet menu": [*to(f"{letter}2"), *menu("Sheet", "Delete Columns"), *BY_KEYS],
        "the column chosen by its name": [*to(f"{letter}:{letter}"), "ctrl+-", *BY_MENU],
        "all of it chosen": [*to(f"{letter}5"), "ctrl+space", *menu("Sheet", "Delete Columns"), *BY_BUTTON],
    }


def sheet_bold(task: Task) -> Ways:
    found = told(task, r"make (?:the first row|the row of the (\w+))")[0]
    row = row_of(task, found) if found else 1
    return {
        "the cells chosen by name": [*to(f"A{row}:D{row}"), "ctrl+b", *BY_MENU],
        "the button": [*to(f"A{row}:D{row}"), click("LibreOffice", *BOLD_PX), *BY_KEYS],
        "the Format menu": [*to(f"{row}:{row}"), *menu("Format", "Text", "Bold"), *BY_BUTTON],
        "cell by cell": [act for letter in "ABCD" for act in (*to(f"{letter}{row}"), "ctrl+b")] + BY_KEYS,
    }


def sheet_replace(task: Task) -> Ways:
    old, new = told(task, r"replace (\w+) with (\w+) ")
    cells = [f"B{row}" for row, line in enumerate(table(task).rows, 1) if line[1] == old]
    typed = [act for cell in cells for act in (*to(cell), types(f"{new}\n"))]
    return {
        "typed, saved by the menu": [*typed, *BY_MENU],
        "typed, saved by the button": [*typed, *BY_BUTTON],
        "the Edit menu": [*menu("Edit", "Find and Replace.*"), *replace_all(old, new), *BY_KEYS],
    }


def sheet_rename(task: Task) -> Ways:
    old, new = told(task, r"rename the sheet (\w+) to (\w+) ")
    names: list[str] = list(SheetsScenario(task.family, task.seed).sheet_names)

    async def sheets(desktop: StageableDesktop) -> dict[str, Rect]:
        return dict(zip(names, tabs((await desktop.observe()).rgb()), strict=True))

    named: list[Act] = [wait("Rename"), "ctrl+a", types(new)]
    ready: list[Act] = ["Return", gone("Rename")]
    return {
        "the Sheet menu": [hit(sheets, old), *menu("Sheet", "Rename Sheet.*"), *named, *ready, *BY_KEYS],
        "saved by the menu": [hit(sheets, old, count=2), *named, *ready, *BY_MENU],
        "saved by the button": [hit(sheets, old, count=2), *named, *ready, *BY_BUTTON],
    }


def text_append(task: Task) -> Ways:
    (line,) = told(task, r'the paragraph "(.*)" at')
    lines = 2 * len(TextDocumentScenario(task.family, task.seed).lines)  # some paragraphs take two
    return {
        "saved by the menu": ["ctrl+End", types(f"\n{line}"), *BY_MENU],
        "saved by the button": ["ctrl+End", "Return", types(line), *BY_BUTTON],
        "down line by line": [*["Down"] * lines, "End", types(f"\n{line}"), *BY_KEYS],
    }


def text_replace(task: Task) -> Ways:
    old, new = told(task, r'replace "(.*)" with "(.*)" everywhere')
    count = sum(line.count(old) for line in TextDocumentScenario(task.family, task.seed).lines)
    one: list[Act] = ["ctrl+Home", "ctrl+f", types(f"{old}\n"), "Escape", types(new)]
    return {
        "found and typed, one by one": [*one * count, *BY_KEYS],
        "found and typed, saved by the menu": [*one * count, *BY_MENU],
        "the Edit menu": [*menu("Edit", "Find and Replace.*"), *replace_all(old, new), *BY_BUTTON],
    }


def text_bold(task: Task) -> Ways:
    (piece,) = told(task, r'make "(.*)" bold')
    lines = TextDocumentScenario(task.family, task.seed).lines
    index = next(number for number, line in enumerate(lines) if piece in line)
    start = lines[index].index(piece)
    find: list[Act] = ["ctrl+f", types(f"{piece}\n"), "Escape"]
    by_keys: list[Act] = ["ctrl+Home", *["ctrl+Down"] * index, *["Right"] * start, *["shift+Right"] * len(piece)]
    return {
        "chosen by keys": [*by_keys, "ctrl+b", *BY_MENU],
        "the button": [*find, click("LibreOffice", *TEXT_BOLD_PX), *BY_KEYS],
        "the Format menu": [*find, *menu("Format", "Text", "Bold"), *BY_BUTTON],
    }


def text_heading(task: Task) -> Ways:
    paragraph, level = told(task, r"paragraph (\d+) a heading of level (\d)")
    there: list[Act] = ["ctrl+Home", *["ctrl+Down"] * (int(paragraph) - 1)]
    return {
        "saved by the menu": [*there, f"ctrl+{level}", *BY_MENU],
        "the Styles menu": [*there, *menu("Styles", f"Heading {level}"), *BY_KEYS],
        "all of it chosen": [*there, "shift+End", f"ctrl+{level}", *BY_BUTTON],
    }


def text_center(task: Task) -> Ways:
    how, paragraph = told(task, r"(center|right-align) paragraph (\d+) and")
    key, item, button = ("ctrl+r", "(Align )?Right", RIGHT_PX)
    if how == "center":
        key, item, button = ("ctrl+e", "Center.*", CENTER_PX)
    there: list[Act] = ["ctrl+Home", *["ctrl+Down"] * (int(paragraph) - 1)]
    return {
        "all of it chosen, saved by the menu": [*there, "shift+End", key, *BY_MENU],
        "the Format menu": [*there, *menu("Format", "Align Text", item), *BY_KEYS],
        "the button": [*there, click("LibreOffice", *button), *BY_BUTTON],
    }


def text_table(task: Task) -> Ways:
    columns, rows = told(task, r"of (\d+) columns and (\d+) rows")
    end: list[Act] = ["ctrl+End", "Return"]
    sizes: list[Act] = [wait("Insert Table"), "Tab ctrl+a", types(f"{columns}\t"), "ctrl+a", types(f"{rows}\t")]
    ready: list[Act] = [gone("Insert Table")]
    return {
        "the Table menu": [*end, *menu("Table", "Insert Table.*"), *sizes, "Return", *ready, *BY_KEYS],
        "Insert by the mouse": [*end, "ctrl+F12", *sizes, click("Insert Table", *INSERT_PX), *ready, *BY_MENU],
        "without a new paragraph": ["ctrl+End", "ctrl+F12", *sizes, "Return", *ready, *BY_KEYS],
    }


def answer_of(task: Task, path: str) -> str:
    """What a right file says, as the task's example has it."""
    assert task.example_end_states is not None
    files = task.example_end_states().positive
    assert files is not None
    return files[path].decode().strip()


def note_ways(answer: str) -> Ways:
    """Ways to write an answer into the note."""
    there = click("mousepad", 0.5, 0.5)
    return {
        "saved by the menu": [there, types(answer), "alt+f s", rest],
        "with a new line": [there, types(f"{answer}\n"), "ctrl+s", rest],
        "a slip is taken back": [there, types("x"), "BackSpace", types(answer), "ctrl+s", rest],
    }


def sheet_to_note(task: Task) -> Ways:
    return note_ways(answer_of(task, cross_app.NOTE))


def page_to_note(task: Task) -> Ways:
    code = answer_of(task, cross_app.NOTE)
    paste: list[Act] = [click("mousepad", 0.5, 0.5), "ctrl+v ctrl+s", rest]
    return note_ways(code) | {"copied and pasted": [label(".*", code, count=2), "ctrl+c", *paste]}


def note_to_sheet(task: Task) -> Ways:
    scenario, (name,) = table(task), told(task, r"in (\S+), and save")
    rng = random.Random(f"note_to_sheet:{task.seed}")
    item = rng.choice([name for name in ITEMS if name not in {line[0] for line in scenario.rows}])
    cells = [item, rng.choice(PLACES), str(rng.randint(10, 300)), str(rng.randint(1, 40))]
    row = len(scenario.rows) + 1
    there: list[Act] = [click(name, 0.4, 0.75), *to(f"A{row}")]
    one_by_one = [
        act for letter, cell in zip("ABCD", cells, strict=True) for act in (*to(f"{letter}{row}"), types(f"{cell}\n"))
    ]
    return {
        "by the Name Box, saved by the menu": [*there, types("\t".join(cells) + "\n"), *BY_MENU],
        "cell by cell": [click(name, 0.4, 0.75), *one_by_one, *BY_KEYS],
        "by the end of the table": [
            click(name, 0.4, 0.75),
            "ctrl+Home ctrl+Down Down",
            types("\t".join(cells) + "\t"),
            *BY_BUTTON,
        ],
    }


WAYS = {
    "sheet_cell": sheet_cell,
    "sheet_total": sheet_total,
    "sheet_sort": sheet_sort,
    "sheet_row_out": sheet_row_out,
    "sheet_column_out": sheet_column_out,
    "sheet_bold": sheet_bold,
    "sheet_replace": sheet_replace,
    "sheet_rename": sheet_rename,
    "text_append": text_append,
    "text_replace": text_replace,
    "text_bold": text_bold,
    "text_heading": text_heading,
    "text_center": text_center,
    "text_table": text_table,
    "sheet_to_note": sheet_to_note,
    "page_to_note": page_to_note,
    "note_to_sheet": note_to_sheet,
}
