"""Ways to do the families of `basics` in the image viewer GPicView and the document viewer Evince."""

from __future__ import annotations

from benchmarks.ways.office import answer_of
from benchmarks.ways.person import Act, Ways, click, menu, rest, scroll, told, types
from benchmarks.ways.questions import says
from deskhand.tasks.suites.basics.cross_app import NOTE
from deskhand.tasks.suites.basics.picture_viewer import ViewerScenario
from deskhand.tasks.task import Task

BUTTONS_PX = {"next": -254, "left": -12, "right": 22, "save": 158, "delete": 226}
"""Buttons of the image viewer, to the right of the middle of its window; it has no accessibility tree."""
NOTE_SAVED: list[Act] = ["ctrl+s", rest]
TEXT = click("mousepad", 0.5, 0.5)


def viewer(task: Task) -> ViewerScenario:
    return ViewerScenario(task.family, task.seed)


def button(task: Task, name: str) -> Act:
    return click("gpicview", viewer(task).size[0] // 2 + BUTTONS_PX[name], -18)


def position(task: Task) -> int:
    """How many pictures are before the one that is asked for; none is the last."""
    (asked,) = told(task, r"shows a (\w+ \w+)[.,]")
    found = [index for index, shown in enumerate(viewer(task).shown.values()) if shown == asked]
    return found[0] if found else 5


def view_find(task: Task) -> Ways:
    count = position(task)
    return {
        "backwards": [*["Left"] * (6 - count), rest, says(task)],
        "by the Page Down key": [*["pagedown"] * count, rest, says(task, "{}.")],
        "by the button": [*[button(task, "next")] * count, rest, says(task)],
    }


def view_turn(task: Task) -> Ways:
    (way,) = told(task, r"degrees to the (\w+)")
    key, other = ("r", "l") if way == "right" else ("l", "r")
    there, save = ["Right"] * position(task), ["s", rest, "alt+y", rest]
    return {
        "three turns the other way": [*there, other, rest, other, rest, other, rest, *save],
        "backwards": [*["Left"] * (6 - position(task)), key, rest, *save],
        "by the buttons": [*there, button(task, way), rest, button(task, "save"), rest, "alt+y", rest],
    }


def view_delete(task: Task) -> Ways:
    there: list[Act] = ["Right"] * position(task)
    return {
        "backwards": [*["Left"] * (6 - position(task)), "Delete", rest, "alt+y", rest],
        "by the button": [*there, button(task, "delete"), rest, "alt+y", rest],
        "not at first": [*there, "Delete", rest, "alt+n", rest, "Delete", rest, "alt+y", rest],
    }


def written(task: Task) -> list[list[Act]]:
    """Ways to write the right lines into a note that has the names."""
    lines = answer_of(task, NOTE).splitlines()
    behind = [act for line in lines for act in ("End", types(f" {line.split(' ', 1)[1]}"), "Down")]
    anew: list[Act] = [TEXT, "ctrl+a", types("\n".join(lines))]
    return [
        [*anew, *NOTE_SAVED],
        [TEXT, "ctrl+Home", *behind, *menu("File", "Save *"), rest],
        [*anew, "Return", *NOTE_SAVED],
    ]


def view_to_note(task: Task) -> Ways:
    looked: list[Act] = [click("gpicview", 0.5, 0.4)]
    anew, behind, line_more = written(task)
    return {
        "written anew": [*looked, *["Right"] * 5, *anew],
        "backwards, saved by the menu": [*looked, *["Left"] * 5, *behind],
        "with a new line": [*looked, *["pagedown"] * 5, *line_more],
    }


def paper_question(task: Task) -> Ways:
    return {
        "scrolled": [scroll(5), scroll(5), scroll(5), rest, says(task)],
        "page by page": [*["pagedown"] * 4, rest, says(task, "{}.")],
        "with the side pane": ["F9", rest, "ctrl+End", rest, says(task)],
    }


def paper_to_note(task: Task) -> Ways:
    looked: list[Act] = [click("evince", 0.5, 0.5)]
    anew, behind, line_more = written(task)
    return {
        "written anew": [*looked, scroll(5), scroll(5), *anew],
        "saved by the menu": [*looked, *["pagedown"] * 4, *behind],
        "with a new line": [*looked, "ctrl+End", *line_more],
    }


WAYS = {
    "view_find": view_find,
    "view_find_missing": view_find,
    "view_turn": view_turn,
    "view_delete": view_delete,
    "view_to_note": view_to_note,
    "paper_price": paper_question,
    "paper_price_missing": paper_question,
    "paper_dearest": paper_question,
    "paper_to_note": paper_to_note,
}
