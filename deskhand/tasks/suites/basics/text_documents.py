"""Families `text_*`: text documents in LibreOffice Writer. Every paragraph of the saved file is judged, with its
style.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from typing import Any

from deskhand.actions.ops import Done, Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.guest_files import read_file
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.clauses import clause
from deskhand.tasks.suites.basics.hd_screen import HdScenario, press
from deskhand.tasks.suites.basics.office_files import TextDocument, read_document, text_document
from deskhand.tasks.suites.basics.scenario import THEMES, Oracle, dialog_milestone, milestone
from deskhand.tasks.task import Family, Task

PACKAGES = ("libreoffice-writer", "libreoffice-gtk3")
FILES = ("letter", "report", "notes", "story", "recipe", "minutes", "plan", "guide")
WHO = ("The gardener", "My neighbour", "The teacher", "Our cook", "The pilot", "A painter", "The baker", "The captain")
DOES = ("waits for", "looks at", "paints", "carries", "describes", "counts", "forgets", "repairs")
WHAT = (
    "the old bridge",
    "a green boat",
    "the tall tower",
    "a small garden",
    "the broken clock",
    "a quiet street",
    "the red door",
)
WHEN = ("in spring", "on Monday", "before noon", "every evening", "after the rain", "without a word")


def sentences(rng: random.Random, count: int) -> list[str]:
    """Return `count` distinct sentences."""
    found: list[str] = []
    while len(found) < count:
        text = f"{rng.choice(WHO)} {rng.choice(DOES)} {rng.choice(WHAT)} {rng.choice(WHEN)}."
        if text not in found:
            found.append(text)
    return found


class TextDocumentScenario(HdScenario):
    """One open text document."""

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        rng = self.rng
        self.path = f"Documents/{rng.choice(FILES)}.docx"
        self.lines = sentences(rng, rng.randint(3, 6))
        self.theme = rng.choice(THEMES)

    @property
    def name(self) -> str:
        return self.path.split("/")[-1]

    async def setup(self, desktop: StageableDesktop) -> None:
        await desktop.push(self.path, text_document(self.lines))
        await desktop.launch(["soffice", "--norestore", "--nologo", "--writer", self.path])
        await desktop.wait_window(self.name, timeout_s=hd_screen.WINDOW_TIMEOUT_S)
        await hd_screen.wait_responsive(desktop)

    def edit_task(
        self,
        instruction: str,
        findings: Callable[[TextDocument | None], list[Finding]],
        steps: Oracle,
        *,
        forged: Callable[[], bytes],
        **fields: Any,
    ) -> Task:
        """Return a task. `findings(text)` are the clauses, `steps(desktop)` the oracle's steps before saving,
        `forged` a file with the correct text, and `fields` more fields of `Task`.
        """

        async def clauses(desktop: StageableDesktop) -> list[Finding]:
            text = await read_document(await read_file(desktop, self.path))
            return [
                *findings(text),
                clause("the application that saved the file", text.application if text else None, "LibreOffice"),
            ]

        async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
            async for ops in steps(desktop):
                yield ops
            before = await read_file(desktop, self.path)
            yield press("ctrl+s")
            await hd_screen.wait_written(desktop, self.path, before)
            yield [Done()]

        return self.build_task(
            instruction,
            max_steps=12,
            clauses=clauses,
            oracle=oracle,
            metadata={"file": self.path},
            forged_files={self.path: forged},
            **fields,
        )

    def same_lines(self, text: TextDocument | None, wanted: list[str]) -> Finding:
        return clause(f"the paragraphs of {self.name}", text.lines if text else None, wanted)


def add_paragraph(seed: int) -> Task:
    """Type a paragraph at the end."""
    scenario = TextDocumentScenario("text_append", seed)
    (line,) = sentences(scenario.rng, 1)

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield press("ctrl+end")
        yield [Type(f"\n{line}")]

    def findings(text: TextDocument | None) -> list[Finding]:
        return [scenario.same_lines(text, [*scenario.lines, line])]

    text = f'Add the paragraph "{line}" at the end of {scenario.name} and save it'
    return scenario.edit_task(
        text, findings, steps, difficulty="easy", forged=lambda: text_document([*scenario.lines, line])
    )


def replace_word(seed: int) -> Task:
    """Replace a piece of text everywhere."""
    scenario = TextDocumentScenario("text_replace", seed)
    old = next(piece for piece in WHAT if piece in scenario.lines[-1])
    new = scenario.rng.choice([piece for piece in WHAT if piece != old])

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        async for ops in hd_screen.replace_all(desktop, old, new):
            yield ops

    def findings(text: TextDocument | None) -> list[Finding]:
        return [scenario.same_lines(text, wanted)]

    wanted = [line.replace(old, new) for line in scenario.lines]
    text = f'In {scenario.name} replace "{old}" by "{new}" everywhere and save it'
    return scenario.edit_task(text, findings, steps, forged=lambda: text_document(wanted))


def make_heading(seed: int) -> Task:
    """Give a paragraph a heading style."""
    scenario = TextDocumentScenario("text_heading", seed)
    index, level = scenario.rng.randrange(len(scenario.lines)), scenario.rng.choice([1, 2, 3])

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [*press("ctrl+home"), *press("ctrl+down", times=index)]
        yield press(f"ctrl+{level}")

    def findings(text: TextDocument | None) -> list[Finding]:
        styles = [style for _, style, _ in text.paragraphs] if text else []
        headings = {number: style for number, style in enumerate(styles) if style.startswith("Heading")}
        return [
            scenario.same_lines(text, scenario.lines),
            clause("the paragraphs that are headings", headings, {index: f"Heading {level}"}),
        ]

    which = f"paragraph {index + 1}"
    text = f"In {scenario.name} make {which} a heading of level {level} (Heading {level}) and save it"
    return scenario.edit_task(
        text, findings, steps, forged=lambda: text_document(scenario.lines, headings={index: level})
    )


def align_paragraph(seed: int) -> Task:
    """Align a paragraph."""
    scenario = TextDocumentScenario("text_centre", seed)
    index = scenario.rng.randrange(len(scenario.lines))
    key, word, alignment = scenario.rng.choice(
        [("ctrl+e", "centred", "CENTER"), ("ctrl+r", "aligned to the right", "RIGHT")]
    )

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [*press("ctrl+home"), *press("ctrl+down", times=index)]
        yield press(key)

    def findings(text: TextDocument | None) -> list[Finding]:
        aligned = [value for _, _, value in text.paragraphs] if text else []
        found = {number: value for number, value in enumerate(aligned) if value in ("CENTER", "RIGHT", "JUSTIFY")}
        return [
            scenario.same_lines(text, scenario.lines),
            clause("the paragraphs that are not left-aligned", found, {index: alignment}),
        ]

    text = f"In {scenario.name} let paragraph {index + 1} be {word} and save it"
    return scenario.edit_task(
        text,
        findings,
        steps,
        difficulty="easy",
        forged=lambda: text_document(scenario.lines, aligned={index: alignment}),
    )


def insert_table(seed: int) -> Task:
    """Insert an empty table with its dialog."""
    scenario = TextDocumentScenario("text_table", seed)
    columns, rows = scenario.rng.sample(range(2, 7), 2)

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [*press("ctrl+end"), Type("\n")]
        yield press("ctrl+f12")
        await hd_screen.wait_shown(desktop, "Insert Table")
        yield [*press("tab"), *press("ctrl+a"), Type(f"{columns}\t"), *press("ctrl+a"), Type(f"{rows}\t")]
        yield press("enter")
        await hd_screen.wait_closed(desktop, "Insert Table")

    def findings(text: TextDocument | None) -> list[Finding]:
        return [
            scenario.same_lines(text, scenario.lines),
            clause("the tables, as (rows, columns)", text.tables if text else None, [(rows, columns)]),
        ]

    async def has_table(desktop: StageableDesktop) -> bool:
        text = await read_document(await read_file(desktop, scenario.path))
        return bool(text and text.tables)

    text = f"At the end of {scenario.name} insert an empty table of {columns} columns and {rows} rows, and save it"
    milestones = (
        dialog_milestone("the dialog for tables is open", 0.1, "Insert Table"),
        milestone("a table is in the saved file", 0.2, has_table),
    )
    return scenario.edit_task(
        text,
        findings,
        steps,
        difficulty="hard",
        forged=lambda: text_document(scenario.lines, table=(rows, columns)),
        milestones=milestones,
    )


def bold_piece(seed: int) -> Task:
    """Find a piece of text and make it bold."""
    scenario = TextDocumentScenario("text_bold", seed)
    counts = {piece: sum(piece in line for line in scenario.lines) for piece in (*WHO, *WHAT, *WHEN)}
    piece = scenario.rng.choice([piece for piece, count in counts.items() if count == 1] or scenario.lines[:1])

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield press("ctrl+f")
        yield [Type(f"{piece}\n")]
        await hd_screen.wait_still(desktop, 0.3)
        yield press("esc")
        yield press("ctrl+b")

    def findings(text: TextDocument | None) -> list[Finding]:
        return [
            scenario.same_lines(text, scenario.lines),
            clause("the bold text", text.bold if text else None, [piece]),
        ]

    text = f'In {scenario.name} make "{piece}" bold, and nothing else, and save it'
    return scenario.edit_task(text, findings, steps, forged=lambda: text_document(scenario.lines, bold=piece))


FAMILIES = (
    Family("text_append", PACKAGES, "easy", add_paragraph, "type a paragraph at the end of a document"),
    Family("text_replace", PACKAGES, "medium", replace_word, "replace a piece of text everywhere"),
    Family("text_bold", PACKAGES, "medium", bold_piece, "find a piece of text and make it bold"),
    Family("text_heading", PACKAGES, "medium", make_heading, "make a paragraph a heading"),
    Family("text_centre", PACKAGES, "easy", align_paragraph, "align a paragraph"),
    Family("text_table", PACKAGES, "hard", insert_table, "insert a table of a given size"),
)
