"""Families `draw_*`: drawings in LibreOffice Draw. All shapes of all saved pages are judged, or an answer."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from deskhand.actions.ops import Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.guest_files import read_file
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.cross_app import note, open_beside
from deskhand.tasks.suites.basics.hd_screen import Steps, click_at, press
from deskhand.tasks.suites.basics.office_files import (
    Drawing,
    OfficeScenario,
    Pages,
    Shape,
    drawing,
    read_drawing,
    saved_by_application,
)
from deskhand.tasks.suites.basics.scenario import THEMES, clause, milestone, same_files, scenario_family
from deskhand.tasks.suites.basics.slides import edited
from deskhand.tasks.suites.basics.told_ends import told_task
from deskhand.tasks.task import ExampleEndStates, FileContents, Task

FILES = ("plan", "map", "poster", "sketch", "scheme", "layout")
PAGES = ("Ground", "Attic", "Garden", "Summer", "Winter", "North", "South", "Draft")
WORDS = (
    "kitchen", "hall", "bath", "cellar", "office", "library", "garage", "porch", "stairs", "studio", "pantry",
    "laundry", "nursery", "terrace", "gallery", "workshop",
)  # fmt: skip
FORMS = {"rectangle": "rect", "ellipse": "ellipse"}
COLORS = {
    "red": "#ff0000", "green": "#00a933", "blue": "#2a6099", "yellow": "#ffff00", "orange": "#ff8000",
    "purple": "#800080",
}  # fmt: skip
NEW_COLORS = {
    "Gold": "ffbf00", "Brick": "ff4000", "Magenta": "bf0041", "Indigo": "55308d", "Teal": "158466", "Lime": "81d41a",
}  # fmt: skip
"""Others of LibreOffice's standard palette."""
CELLS_IN = tuple(itertools.product((0.4, 3.6, 6.8), (0.4, 3.4)))
"""The upper left corners of places for shapes of at most 2.8 by 2.2 inches."""
WHOLE_PX, BESIDE_PX = (260, 193, 63.5), (260, 239, 48.2)
"""On the screen: the upper left corner of the page, and pixels per inch; alone, and next to a note."""
THUMBNAIL_PX, THUMBNAIL_PITCH_PX = (141, 164), 88
"""The middle of the first page in the panel of pages, and the distance to the next."""
PAGE_MENU_PX, DUPLICATE_PX, RENAME_PX = (250, 28), (305, 76), (305, 124)
NAME_PX = (176, 50)
"""In the dialog Rename Page."""
FORMAT_MENU_PX, AREA_PX = (198, 28), (216, 440)
SIZE_FIELDS_PX = ((133, 88), (133, 129), (133, 220), (133, 260))
"""In the dialog Position and Size: X, Y, width and height."""
HEX_PX = (648, 318)
"""In the dialog Area: the code of the new color."""


class DrawingScenario(OfficeScenario):
    """One open drawing of two pages, with shapes that differ in color or form, each with a word."""

    applications = ("libreoffice-draw", "libreoffice-impress", "libreoffice-gtk3")
    program = "draw"
    probe = ("tab", "escape")

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        rng = self.rng
        self.path = f"Documents/{rng.choice(FILES)}.odg"
        self.theme = rng.choice(THEMES)
        words: list[str] = rng.sample(WORDS, len(WORDS))
        *names, self.new_name = rng.sample(PAGES, 3)
        self.new_words = words[10:]
        self.pages: list[tuple[str, list[Shape]]] = [(name, self._shapes(words)) for name in names]

    def _shapes(self, words: list[str]) -> list[Shape]:
        rng, count = self.rng, self.rng.randint(3, 5)
        looks = rng.sample(list(itertools.product(COLORS, FORMS)), count)
        return [
            {"kind": FORMS[form], "text": words.pop(0), "fill": COLORS[color], "box": [x, y, *self.size()]}
            for (color, form), (x, y) in zip(looks, rng.sample(CELLS_IN, count), strict=True)
        ]

    def size(self) -> tuple[float, float]:
        """Return a width and a height, in inches; never equal, because LibreOffice calls a round ellipse a circle."""
        height = self.rng.randint(12, 22)
        return (height + self.rng.randint(3, 6)) / 10, height / 10

    def content(self) -> bytes:
        return drawing(self.pages)

    async def document(self, desktop: StageableDesktop) -> Drawing | None:
        return await read_drawing(await read_file(desktop, self.path))

    def pick(self, page: int | None = None) -> tuple[int, int]:
        """Return the numbers of a page and of a shape on it, both counted from 0."""
        index = self.rng.randrange(2) if page is None else page
        return index, self.rng.randrange(len(self.pages[index][1]))

    def shape(self, at: tuple[int, int]) -> Shape:
        return self.pages[at[0]][1][at[1]]

    def changed(self, at: tuple[int, int], **change: Any) -> Pages:
        """Return the pages with another text, fill or box of one shape."""
        return [
            (name, [each | change if (index, number) == at else each for number, each in enumerate(shapes)])
            for index, (name, shapes) in enumerate(self.pages)
        ]

    async def same_pages(self, desktop: StageableDesktop, wanted: Pages) -> list[Finding]:
        """Return the clauses that the saved file has these pages."""
        found = await self.document(desktop)

        def by_page(pages: Pages) -> dict[str, list[Shape]]:
            return {f"page {number} ({name})": list(shapes) for number, (name, shapes) in enumerate(pages, 1)}

        shapes = same_files(f"the shapes of {self.name}", by_page(found.pages if found else ()), by_page(wanted))
        return [shapes, saved_by_application(found)]

    def edit_task(self, instruction: str, steps: Steps, wanted: Pages, wrong: dict[str, Pages], **fields: Any) -> Task:
        """Return a task. The saved file must have the pages `wanted`; each of `wrong` is nearly right."""

        def end_states() -> ExampleEndStates:
            pages = {"as before": self.pages, **wrong}
            states: dict[str, FileContents] = {"as text": {self.path: repr(wanted).encode()}}
            for what, each in pages.items():
                states[what] = {self.path: drawing(each, "LibreOffice")}
            return ExampleEndStates(states)

        defaults: dict[str, Any] = {"clauses": lambda desktop: self.same_pages(desktop, wanted)}
        return self.office_task(
            f"{instruction} and save the drawing",
            steps=steps,
            forged=lambda: drawing(wanted),
            example_end_states=end_states,
            **(defaults | fields),
        )


def look_of(shape: Shape) -> str:
    """Return the color and form of a shape, such as "red ellipse"."""
    (color,) = (name for name, code in COLORS.items() if code == shape["fill"])
    (form,) = (name for name, kind in FORMS.items() if kind == shape["kind"])
    return f"{color} {form}"


def select(shape: Shape, page_px: tuple[int, int, float] = WHOLE_PX) -> list[Op]:
    """Return the ops that click on a shape above its text; a click on the text would begin to edit it."""
    (left, top, scale), (x, y, width, height) = page_px, shape["box"]
    return [click_at(round(left + scale * (x + width / 2)), round(top + scale * (y + height * 0.15)))]


def choose(page: int) -> list[Op]:
    """Return the ops that choose a page in the panel of pages."""
    return [click_at(THUMBNAIL_PX[0], THUMBNAIL_PX[1] + page * THUMBNAIL_PITCH_PX)]


def in_dialog(*before: Sequence[Op], title: str, texts: Sequence[tuple[tuple[int, int], object]]) -> Steps:
    """Return the steps that open a dialog, and enter texts at places in it."""

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        async for ops in hd_screen.play(desktop, edited(*map(list, before))):
            yield ops
        window = await hd_screen.wait_shown(desktop, title)
        for (x, y), text in texts:
            yield [click_at(window.x + x, window.y + y), *press("ctrl+a"), Type(f"{text}")]
        yield press("enter")
        await hd_screen.wait_closed(desktop, title)
        await hd_screen.wait_still(desktop)  # until the window reads keys again

    return steps


@scenario_family(
    DrawingScenario,
    "draw_delete",
    "easy",
    "delete the shape of a color and form",
    abilities=("find something", "use the keyboard"),
)
def delete_shape(scenario: DrawingScenario) -> Task:
    at = scenario.pick(1)

    def without(page: int, number: int) -> Pages:
        found = [(name, list(shapes)) for name, shapes in scenario.pages]
        del found[page][1][number]
        return found

    others = [number for number in range(len(scenario.pages[1][1])) if number != at[1]]
    return scenario.edit_task(
        f"In {scenario.name} delete the {look_of(scenario.shape(at))} on page 2",
        edited(choose(1), select(scenario.shape(at)), press("delete")),
        without(*at),
        {
            "another shape": without(1, others[0]),
            "on the other page": without(0, 0),
            "two shapes": [scenario.pages[0], (scenario.pages[1][0], [scenario.shape((1, others[0]))])],
        },
    )


@scenario_family(
    DrawingScenario,
    "draw_fill",
    "medium",
    "fill a shape with a color of the palette",
    abilities=("find something", "use menus and dialogs"),
)
def fill_shape(scenario: DrawingScenario) -> Task:
    at, name = scenario.pick(0), scenario.rng.choice(list(NEW_COLORS))
    shape, code = scenario.shape(at), NEW_COLORS[name]
    other = (0, (at[1] + 1) % len(scenario.pages[0][1]))
    return scenario.edit_task(
        f'In {scenario.name} fill the shape "{shape["text"]}" with the color {name} (hex {code})',
        in_dialog(
            *(select(shape), [click_at(*FORMAT_MENU_PX)], [click_at(*AREA_PX)]), title="Area", texts=[(HEX_PX, code)]
        ),
        scenario.changed(at, fill=f"#{code}"),
        {
            "another shape": scenario.changed(other, fill=f"#{code}"),
            "another color": scenario.changed(at, fill="#ffbf01"),
        },
    )


@scenario_family(
    DrawingScenario,
    "draw_place",
    "medium",
    "set the position and the size of a shape",
    abilities=("find something", "use menus and dialogs", "fill in a form"),
)
def place_shape(scenario: DrawingScenario) -> Task:
    at = scenario.pick(0)
    shape, (width, height) = scenario.shape(at), scenario.size()
    x, y = scenario.rng.randint(20, 70) / 10, scenario.rng.randint(20, 37) / 10
    return scenario.edit_task(
        f'In {scenario.name} give the shape "{shape["text"]}" a width of {width} inches and a height of {height} '
        f"inches, and put its upper left corner at X {x} and Y {y} inches,",
        in_dialog(
            *(select(shape), press("F4")),
            title="Position and Size",
            texts=[*zip(SIZE_FIELDS_PX, (x, y, width, height), strict=True)],
        ),
        scenario.changed(at, box=[x, y, width, height]),
        {
            "only the size": scenario.changed(at, box=[*shape["box"][:2], width, height]),
            "only the place": scenario.changed(at, box=[x, y, 1.5, 1.1]),
            "by the middle": scenario.changed(at, box=[round(x - width / 2, 2), y, width, height]),
        },
    )


@scenario_family(
    DrawingScenario,
    "draw_page",
    "medium",
    "duplicate a page and name the copy",
    abilities=("use menus and dialogs", "work in several steps"),
)
def copy_page(scenario: DrawingScenario) -> Task:
    index, pages, new = scenario.rng.randrange(2), scenario.pages, scenario.new_name
    copy = (new, pages[index][1])
    wanted: Pages = [*pages[: index + 1], copy, *pages[index + 1 :]]
    menu, duplicate, rename = ([click_at(*place)] for place in (PAGE_MENU_PX, DUPLICATE_PX, RENAME_PX))
    return scenario.edit_task(
        f'In {scenario.name} duplicate page {index + 1}, so that the copy comes right after it, name the copy "{new}",',
        in_dialog(choose(index), menu, duplicate, menu, rename, title="Rename Page", texts=[(NAME_PX, new)]),
        wanted,
        {
            "without a name": [*pages[: index + 1], ("Page 2", copy[1]), *pages[index + 1 :]],
            "of the other page": [*pages[: index + 1], (new, pages[1 - index][1]), *pages[index + 1 :]],
            "only named": [*pages[:index], copy, *pages[index + 1 :]],
        },
    )


@scenario_family(
    DrawingScenario,
    "draw_ask",
    "medium",
    "count the shapes of a color, or say what a shape says",
    abilities=("find something", "read and compare", "answer a question"),
)
def ask_shapes(scenario: DrawingScenario) -> Task:
    every = [shape for _, shapes in scenario.pages for shape in shapes]
    one = scenario.rng.choice(scenario.pages[1][1])
    color = look_of(one).split()[0]
    same = [shape["text"] for shape in every if shape["fill"] == one["fill"]]
    counted, said = str(len(same)), str(one["text"])
    question, answer, wrong = scenario.rng.choice([
        (f"how many {color} shapes both pages have together, and answer with just the number", counted,
         [str(len(same) + step) for step in (-1, 1, 2)]),
        (f"what word is in the {look_of(one)} on page 2, and answer with just the word", said,
         [shape["text"] for shape in every if shape is not one]),
    ])  # fmt: skip
    return told_task(
        scenario,
        f"In {scenario.name} find out {question}",
        {scenario.path: scenario.content()},
        edited(choose(1)),
        answer,
        wrong_answers=wrong,
        follows={counted: tuple(same)} if answer == counted else None,
    )


@scenario_family(
    DrawingScenario,
    "note_to_drawing",
    "hard",
    "change the words in three shapes as a note says",
    "mousepad",
    abilities=("edit text", "find something", "work in several steps", "carry data between programs"),
)
def note_to_drawing(scenario: DrawingScenario) -> Task:
    count = len(scenario.pages[0][1])
    new = dict(zip(scenario.rng.sample(range(count), 3), scenario.new_words, strict=False))
    text = "".join(f"{look_of(scenario.shape((0, number)))}: {word}\n" for number, word in new.items())

    def pages_of(words: Mapping[int, str]) -> Pages:
        name, shapes = scenario.pages[0]
        told = [each | {"text": words.get(number, each["text"])} for number, each in enumerate(shapes)]
        return [(name, told), scenario.pages[1]]

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        for number, word in new.items():
            yield select(scenario.shape((0, number)), BESIDE_PX)
            await hd_screen.wait_still(desktop, 0.4)
            yield press("f2", "ctrl+a")
            yield [Type(word), *press("escape")]
            await hd_screen.wait_still(desktop, 0.4)

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        pages = await scenario.same_pages(desktop, pages_of(new))
        return [*pages, clause("the note", await note(desktop), text.strip())]

    async def share(desktop: StageableDesktop) -> float:
        found = await scenario.document(desktop)
        said = [shape["text"] for shape in found.pages[0][1]] if found and found.pages else []
        return sum(word in said for word in new.values()) / len(new)

    swapped = dict(zip(new, reversed(new.values()), strict=True))
    return scenario.edit_task(
        f"Replace the words in the shapes on page 1 of {scenario.name} that note.txt lists, each by the word that the "
        "note gives for it,",
        steps,
        pages_of(new),
        {"swapped": pages_of(swapped), "only two": pages_of(dict(list(new.items())[:2]))},
        clauses=clauses,
        metadata={"file": scenario.path, "note": [tuple(line.split(": ")) for line in text.splitlines()]},
        # half of the screen has no room for the sidebar
        setup=lambda desktop: open_beside(scenario, desktop, scenario.name, text, "ctrl+f5"),
        max_steps=20,
        milestones=(milestone("words are saved", 0.3, share),),
    )
