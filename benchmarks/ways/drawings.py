"""Ways to do the families of `basics` in LibreOffice Draw."""

from __future__ import annotations

from benchmarks.ways.office import BY_KEYS, BY_MENU, replace_all
from benchmarks.ways.person import Act, Ways, click, gone, label, menu, rest, told, types, wait
from benchmarks.ways.questions import says
from benchmarks.ways.slides import TOP_PX
from deskhand.actions.ops import Button
from deskhand.tasks.suites.basics.drawings import (
    BESIDE_PX,
    NEW_COLORS,
    SIZE_FIELDS_PX,
    THUMBNAIL_PITCH_PX,
    THUMBNAIL_PX,
    WHOLE_PX,
    DrawingScenario,
    look_of,
)
from deskhand.tasks.suites.basics.office_files import Shape
from deskhand.tasks.task import Task

WINDOW = "LibreOffice Draw"
RGB_FIELDS_PX, SECOND_ROW_PX, COLOR_PITCH_PX = ((610, 198), (610, 239), (610, 279)), (43, 185), 19
"""In the dialog Area: the fields of the new color, and the first color in the second row of the palette."""
AREA_OK_PX, SIZE_OK_PX = (736, 564), (471, 422)
CONTEXT: Button = "right"


def thumbnail(page: int, button: Button = "left") -> Act:
    return click(WINDOW, THUMBNAIL_PX[0], THUMBNAIL_PX[1] + page * THUMBNAIL_PITCH_PX - TOP_PX, button=button)


def on(shape: Shape, button: Button = "left") -> Act:
    """Click on a shape, left of the word in it."""
    x, y, width, height = shape["box"]
    left, top, scale = WHOLE_PX
    return click(WINDOW, left + scale * (x + width * 0.1), top + scale * (y + height / 2) - TOP_PX, button=button)


def shapes(task: Task, page: int) -> list[Shape]:
    return DrawingScenario(task.family, task.seed).pages[page][1]


def by_tab(found: list[Shape], shape: Shape) -> list[Act]:
    return ["Tab"] * (found.index(shape) + 1)


def draw_delete(task: Task) -> Ways:
    found = shapes(task, 1)
    (look,) = told(task, r"delete the (.*) on page 2")
    shape, other = (next(each for each in found if (look_of(each) == look) is same) for same in (True, False))
    return {
        "cut, saved by the menu": [thumbnail(1), rest, on(shape), "ctrl+x", rest, *BY_MENU],
        "by keys": ["pagedown", rest, *by_tab(found, shape), "Delete", rest, *BY_KEYS],
        "another one first, taken back": [
            *(thumbnail(1), rest, on(other), "Delete", rest, "ctrl+z", rest, "Escape", on(shape), "BackSpace", rest),
            *BY_KEYS,
        ],
    }


def draw_fill(task: Task) -> Ways:
    word, name, code = told(task, r'the shape "(.*)" with the color (\w+) \(hex (\w+)\)')
    found = shapes(task, 0)
    shape = next(each for each in found if each["text"] == word)
    fields = zip(RGB_FIELDS_PX, bytes.fromhex(code), strict=True)
    typed = [act for place, value in fields for act in (click("Area", *place), "ctrl+a", types(str(value)))]
    nth = 1 + 2 * list(NEW_COLORS).index(name)
    picked = click("Area", SECOND_ROW_PX[0] + nth * COLOR_PITCH_PX, SECOND_ROW_PX[1])
    opened: list[Act] = [*menu("Format", "Area..."), wait("Area")]
    context: list[Act] = [on(shape), on(shape, CONTEXT), label(".*menu.*", "Area..."), wait("Area")]
    done: list[Act] = [click("Area", *AREA_OK_PX), gone("Area"), *BY_KEYS]
    return {
        "picked in the palette": [on(shape), *opened, picked, *done],
        "typed as red, green and blue": [on(shape), *opened, *typed, "Tab", *done],
        "by Tab": [*by_tab(found, shape), *opened, picked, *done[:2], *BY_MENU],
        "the context menu": [*context, picked, *done],
    }


def draw_place(task: Task) -> Ways:
    word, width, height, x, y = told(task, r'shape "(.*)" a width of (\S+) .* of (\S+) inches.* X (\S+) and Y (\S+) ')
    found, title = shapes(task, 0), "Position and Size"
    shape = next(each for each in found if each["text"] == word)
    texts = dict(zip(SIZE_FIELDS_PX, (x, y, width, height), strict=True))

    def entered(*places: tuple[int, int], unit: str = "") -> list[Act]:
        typed = [act for at in places for act in (click(title, *at, count=2), "ctrl+a", types(f"{texts[at]}{unit}"))]
        return [wait(title), *typed, "Tab", click(title, *SIZE_OK_PX), gone(title)]

    size, place = SIZE_FIELDS_PX[2:], SIZE_FIELDS_PX[:2]
    return {
        "the Format menu, with the unit": [
            *(on(shape), *menu("Format", "Position and Size..."), *entered(*texts, unit='"'), *BY_KEYS)
        ],
        "by Tab, the size first": [*(*by_tab(found, shape), "F4", *entered(*size), "F4", *entered(*place), *BY_MENU)],
        "the context menu": [
            *(on(shape), on(shape, CONTEXT), label(".*menu.*", f"{title}..."), *entered(*size, *place), *BY_KEYS)
        ],
    }


def draw_page(task: Task) -> Ways:
    number, name = told(task, r'duplicate page (\d), .* name the copy "(.*)",')
    index = int(number) - 1
    named: list[Act] = [wait("Rename Page"), "ctrl+a", types(f"{name}\n"), gone("Rename Page")]
    copied: list[Act] = [thumbnail(index), *menu("Page", "Duplicate Page"), rest]
    rename = menu("Page", "Rename Page...")
    return {
        "copied and pasted by the context menu": [
            *(thumbnail(index, CONTEXT), label(".*menu.*", "Copy"), thumbnail(index, CONTEXT)),
            *(label(".*menu.*", "Paste"), rest),
            *(thumbnail(index + 1, CONTEXT), label(".*menu.*", "Rename Page..."), *named, *BY_KEYS),
        ],
        "another name first": [
            *(*copied, *rename, wait("Rename Page"), types("Copy\n"), gone("Rename Page"), *rename, *named, *BY_MENU)
        ],
        "the other page looked at between": [
            *(*copied, thumbnail(0), rest, thumbnail(index + 1), rest, *rename, *named, *BY_KEYS)
        ],
    }


def draw_ask(task: Task) -> Ways:
    return {
        "by keys": ["pagedown", rest, says(task, "{}.")],
        "both pages": [thumbnail(1), rest, thumbnail(0), rest, says(task, '"{}"')],
        "a shape selected": [thumbnail(1), rest, on(shapes(task, 1)[0]), rest, says(task)],
    }


def note_to_drawing(task: Task) -> Ways:
    found = shapes(task, 0)
    words = {shape["text"]: word for shape in found for look, word in task.metadata["note"] if look_of(shape) == look}
    left, top, scale = BESIDE_PX

    def at(shape: Shape, share: float, count: int) -> Act:
        x, y, width, height = shape["box"]
        place = round(left + scale * (x + width / 2)), round(top + scale * (y + height * share))
        return click(WINDOW, place[0] - 4, place[1] - 24, count=count)

    def each(*acts: Act, share: float = 0.15, count: int = 1) -> list[Act]:
        changed = [shape for shape in found if shape["text"] in words]
        return [
            act
            for shape in changed
            for act in (at(shape, share, count), rest, *acts, types(words[shape["text"]]), "Escape Escape", rest)
        ]

    find, first = menu("Edit", "Find and Replace..."), found[0]
    replaced = [act for old, new in words.items() for act in (*find, *replace_all(old, new), rest)]
    return {
        "a double click on each": [*each("ctrl+a", share=0.5, count=2), *BY_MENU],
        "letter by letter": [*each("F2 ctrl+End", *["BackSpace"] * 9), *BY_KEYS],
        "replaced by the dialog": [at(first, 0.15, 1), "Escape", *replaced, *BY_KEYS],
    }


WAYS = {
    "draw_delete": draw_delete,
    "draw_fill": draw_fill,
    "draw_place": draw_place,
    "draw_page": draw_page,
    "draw_ask": draw_ask,
    "note_to_drawing": note_to_drawing,
}
