"""Families `text_*`: text documents in LibreOffice Writer. All saved paragraphs are judged, with their styles."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from typing import Any

from deskhand.actions.ops import Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.guest_files import read_file
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.hd_screen import Steps, press
from deskhand.tasks.suites.basics.office_files import (
    OfficeScenario,
    TextDocument,
    read_document,
    replace_all,
    saved_by_application,
    text_document,
)
from deskhand.tasks.suites.basics.scenario import THEMES, clause, milestone, scenario_family, title_milestone
from deskhand.tasks.task import Task

FILES = ("letter", "report", "notes", "story", "recipe", "minutes", "plan", "guide")
WHO = ("The gardener", "My neighbor", "The teacher", "Our cook", "The pilot", "A painter", "The baker", "The captain")
DOES = ("waits for", "looks at", "paints", "carries", "describes", "counts", "forgets", "repairs")
WHAT = (
    "the old bridge", "a green boat", "the tall tower", "a small garden", "the broken clock", "a quiet street",
    "the red door",
)  # fmt: skip
WHEN = ("in spring", "on Monday", "before noon", "every evening", "after the rain", "without a word")


def sentences(rng: random.Random, count: int) -> list[str]:
    """Return `count` distinct sentences."""
    found: list[str] = []
    while len(found) < count:
        text = f"{rng.choice(WHO)} {rng.choice(DOES)} {rng.choice(WHAT)} {rng.choice(WHEN)}."
        if text not in found:
            found.append(text)
    return found


class TextDocumentScenario(OfficeScenario):
    """One open text document."""

    applications = ("libreoffice-writer", "libreoffice-gtk3")
    program = "writer"

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        rng = self.rng
        self.path = f"Documents/{rng.choice(FILES)}.docx"
        self.lines = sentences(rng, rng.randint(3, 6))
        self.theme = rng.choice(THEMES)

    def content(self) -> bytes:
        return text_document(self.lines)

    async def document(self, desktop: StageableDesktop) -> TextDocument | None:
        return await read_document(await read_file(desktop, self.path))

    def edit_task(
        self,
        instruction: str,
        steps: Steps,
        *,
        lines: list[str] | None = None,
        name: str = "",
        read: Callable[[TextDocument], object] = lambda document: document.lines,
        wanted: object = None,
        styles: dict[str, Any] | None = None,
        **fields: Any,
    ) -> Task:
        """Return a task. The saved file must have the paragraphs `lines` (default: as before), and with `name` must
        `read` give `wanted`. `styles` are options of `text_document` for a correct file.
        """
        expected = lines or self.lines

        async def clauses(desktop: StageableDesktop) -> list[Finding]:
            text = await self.document(desktop)
            found = [clause(f"the paragraphs of {self.name}", text.lines if text else None, expected)]
            found += [clause(name, read(text) if text else None, wanted)] if name else []
            return [*found, saved_by_application(text)]

        return self.office_task(
            instruction, clauses, steps, lambda: text_document(expected, **(styles or {})), **fields
        )


@scenario_family(
    TextDocumentScenario, "text_append", "easy", "type a paragraph at the end of a document", abilities=("edit text",)
)
def add_paragraph(scenario: TextDocumentScenario) -> Task:
    (line,) = sentences(scenario.rng, 1)
    text = f'Add the paragraph "{line}" at the end of {scenario.name} and save it'
    steps = [press("ctrl+end"), [Type(f"\n{line}")]]
    return scenario.edit_task(text, steps, lines=[*scenario.lines, line])


@scenario_family(
    TextDocumentScenario,
    "text_replace",
    "medium",
    "replace a piece of text everywhere",
    abilities=("edit text", "use menus and dialogs"),
)
def replace_word(scenario: TextDocumentScenario) -> Task:
    old = next(piece for piece in WHAT if piece in scenario.lines[-1])
    new = scenario.rng.choice([piece for piece in WHAT if piece != old])
    text = f'In {scenario.name} replace "{old}" with "{new}" everywhere and save it'
    return scenario.edit_task(text, replace_all(old, new), lines=[line.replace(old, new) for line in scenario.lines])


@scenario_family(
    TextDocumentScenario,
    "text_bold",
    "medium",
    "find a piece of text and make it bold",
    abilities=("format a document", "find something"),
)
def bold_piece(scenario: TextDocumentScenario) -> Task:
    counts = {piece: sum(piece in line for line in scenario.lines) for piece in (*WHO, *WHAT, *WHEN)}
    piece = scenario.rng.choice([piece for piece, count in counts.items() if count == 1] or scenario.lines[:1])

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield press("ctrl+f")
        yield [Type(f"{piece}\n")]
        await hd_screen.wait_still(desktop, 0.3)
        yield press("esc")
        yield press("ctrl+b")

    text = f'In {scenario.name} make "{piece}" bold, and nothing else, and save it'
    return scenario.edit_task(
        text, steps, name="the bold text", read=lambda text: text.bold, wanted=[piece], styles={"bold": piece}
    )


@scenario_family(
    TextDocumentScenario,
    "text_heading",
    "medium",
    "make a paragraph a heading",
    abilities=("format a document", "find something"),
)
def make_heading(scenario: TextDocumentScenario) -> Task:
    index, level = scenario.rng.randrange(len(scenario.lines)), scenario.rng.choice([1, 2, 3])

    def headings(text: TextDocument) -> dict[int, str]:
        return {number: style for number, (_, style, _) in enumerate(text.paragraphs) if style.startswith("Heading")}

    which = f"paragraph {index + 1}"
    return scenario.edit_task(
        f"In {scenario.name} make {which} a heading of level {level} (Heading {level}) and save it",
        [[*press("ctrl+home"), *press("ctrl+down", times=index)], press(f"ctrl+{level}")],
        name="the paragraphs that are headings",
        read=headings,
        wanted={index: f"Heading {level}"},
        oracle_follows={"down several times": (scenario.lines[index],)},
        styles={"headings": {index: level}},
    )


@scenario_family(
    TextDocumentScenario, "text_center", "easy", "align a paragraph", abilities=("format a document", "find something")
)
def align_paragraph(scenario: TextDocumentScenario) -> Task:
    index = scenario.rng.randrange(len(scenario.lines))
    ways = [("ctrl+e", "center", "CENTER"), ("ctrl+r", "right-align", "RIGHT")]
    key, word, alignment = scenario.rng.choice(ways)

    def aligned(text: TextDocument) -> dict[int, str]:
        found = enumerate(value for _, _, value in text.paragraphs)
        return {number: value for number, value in found if value in ("CENTER", "RIGHT", "JUSTIFY")}

    return scenario.edit_task(
        f"In {scenario.name} {word} paragraph {index + 1} and save it",
        [[*press("ctrl+home"), *press("ctrl+down", times=index)], press(key)],
        name="the paragraphs that are not left-aligned",
        read=aligned,
        wanted={index: alignment},
        oracle_follows={"down several times": (scenario.lines[index],)},
        styles={"aligned": {index: alignment}},
    )


@scenario_family(
    TextDocumentScenario,
    "text_table",
    "hard",
    "insert a table of a given size",
    abilities=("format a document", "use menus and dialogs"),
)
def insert_table(scenario: TextDocumentScenario) -> Task:
    columns, rows = scenario.rng.sample(range(2, 7), 2)

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [*press("ctrl+end"), Type("\n")]
        yield press("ctrl+f12")
        await hd_screen.wait_shown(desktop, "Insert Table")
        yield [*press("tab"), *press("ctrl+a"), Type(f"{columns}\t"), *press("ctrl+a"), Type(f"{rows}\t")]
        yield press("enter")
        await hd_screen.wait_closed(desktop, "Insert Table")

    async def has_table(desktop: StageableDesktop) -> bool:
        text = await scenario.document(desktop)
        return bool(text and text.tables)

    return scenario.edit_task(
        f"At the end of {scenario.name} insert an empty table of {columns} columns and {rows} rows, and save it",
        steps,
        name="the tables, as (rows, columns)",
        read=lambda text: text.tables,
        wanted=[(rows, columns)],
        styles={"table": (rows, columns)},
        milestones=(
            title_milestone("the dialog for tables is open", 0.1, "Insert Table"),
            milestone("a table is in the saved file", 0.2, has_table),
        ),
    )
