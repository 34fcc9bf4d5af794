"""Ways to do the families of `basics` in LibreOffice Impress."""

from __future__ import annotations

from benchmarks.ways.office import BY_KEYS, BY_MENU, answer_of, note_ways
from benchmarks.ways.person import Act, Ways, click, menu, rest, told, types
from deskhand.tasks.suites.basics.cross_app import NOTE
from deskhand.tasks.suites.basics.slides import LIST_PX, THUMBNAIL_PITCH_PX, THUMBNAIL_PX, TITLE_PX, SlidesScenario
from deskhand.tasks.task import Task

WINDOW = "LibreOffice Impress"
TOP_PX = 17
"""The height of the window's title bar, which places in the window do not count."""


def at(x: int, y: int, *, count: int = 1) -> Act:
    """Click at a place of the screen."""
    return click(WINDOW, x, y - TOP_PX, count=count)


def thumbnail(index: int) -> Act:
    return at(THUMBNAIL_PX[0], THUMBNAIL_PX[1] + index * THUMBNAIL_PITCH_PX)


def titles(task: Task) -> list[str]:
    return [title for title, _ in SlidesScenario(task.family, task.seed).slides]


def slide_title(task: Task) -> Ways:
    number, title = told(task, r'the title of slide (\d) to "(.*)" and')
    there: list[Act] = [thumbnail(int(number) - 1), rest, at(*TITLE_PX, count=2), rest]
    return {
        "the slide chosen in the panel, saved by the menu": [*there, "ctrl+a", types(title), "Escape", *BY_MENU],
        "emptied first": [*there, "ctrl+a Delete", types(title), "Escape Escape", *BY_KEYS],
        "by keys": [*["pagedown"] * (int(number) - 1), "Tab F2 ctrl+a", types(title), "Escape", *BY_KEYS],
    }


def slide_point(task: Task) -> Ways:
    line, title = told(task, r'the point "(.*)" to the end of the list on the slide "(.*)" and')
    index = titles(task).index(title)
    there: list[Act] = [thumbnail(index), rest, at(*LIST_PX, count=2), rest]
    return {
        "the slide chosen in the panel, saved by the menu": [
            *(*there, "ctrl+End Return", types(line), "Escape", *BY_MENU)
        ],
        "down line by line": [*there, *["Down"] * 4, "End", types(f"\n{line}"), "Escape", *BY_KEYS],
        "by keys": [*["pagedown"] * index, "Tab Tab F2 ctrl+End", types(f"\n{line}"), "Escape", *BY_KEYS],
    }


def slide_delete(task: Task) -> Ways:
    index = titles(task).index(told(task, r'the slide "(.*)" and')[0])
    return {
        "the Slide menu": [thumbnail(index), *menu("Slide", "Delete Slide"), rest, *BY_KEYS],
        "cut": [thumbnail(index), rest, "ctrl+x", rest, *BY_MENU],
        "another one first, taken back": [
            *(thumbnail(0), rest, "Delete", rest, "ctrl+z", rest, thumbnail(index), rest, "Delete", rest, *BY_KEYS)
        ],
    }


def slide_move(task: Task) -> Ways:
    title, to = told(task, r'the slide "(.*)" to the (\w+)')
    index, last = titles(task).index(title), len(titles(task)) - 1
    steps = (last - index) if to == "end" else index
    item = "Slide Down" if to == "end" else "Slide Up"
    one_by_one = [act for _ in range(steps) for act in (*menu("Slide", "Move", item), rest)]
    paste: list[Act] = [thumbnail(last - 1 if to == "end" else 0), rest, "ctrl+v", rest]
    again: list[Act] = [] if to == "end" else [thumbnail(0), rest, "ctrl+x", rest, thumbnail(0), rest, "ctrl+v", rest]
    return {
        "one by one in the menu": [thumbnail(index), rest, *one_by_one, *BY_KEYS],
        "cut and pasted": [thumbnail(index), rest, "ctrl+x", rest, *paste, *again, *BY_MENU],
        "the Slide menu": [
            *(thumbnail(index), rest, *menu("Slide", "Move", "Slide to End" if to == "end" else "Slide to Start")),
            *(rest, *BY_KEYS),
        ],
    }


def slide_copy(task: Task) -> Ways:
    index = int(told(task, r"duplicate slide (\d)")[0]) - 1
    return {
        "the Slide menu": [thumbnail(index), rest, *menu("Slide", "Duplicate Slide"), rest, *BY_KEYS],
        "the Edit menu": [thumbnail(index), rest, *menu("Edit", "Copy"), *menu("Edit", "Paste"), rest, *BY_MENU],
        "by keys": [*["pagedown"] * index, thumbnail(index), rest, "ctrl+c ctrl+v", rest, *BY_KEYS],
    }


def slide_to_note(task: Task) -> Ways:
    return note_ways(answer_of(task, NOTE))


WAYS = {
    "slide_title": slide_title,
    "slide_point": slide_point,
    "slide_delete": slide_delete,
    "slide_move": slide_move,
    "slide_copy": slide_copy,
    "slide_to_note": slide_to_note,
}
