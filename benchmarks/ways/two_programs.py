"""Ways to do the families of `basics` in which one program shows or does what the other needs."""

from __future__ import annotations

from benchmarks.ways.code_editor import SAVED, SAVED_BY_MENU
from benchmarks.ways.office import answer_of
from benchmarks.ways.person import Act, Ways, click, menu, rest, told, types
from benchmarks.ways.questions import says
from deskhand.tasks.task import Task


def code_run(task: Task) -> Ways:
    name, limit = told(task, r"limit in (\S+) to (\d+) and")
    there: list[Act] = [click("geany", 0.6, 0.4), "ctrl+Home"]
    run: list[Act] = [click("xfce4-terminal", 0.5, 0.5), types(f"python3 {name}\n"), rest]
    return {
        "only the number": [*there, "End BackSpace BackSpace", types(limit), *SAVED, *run, says(task)],
        "saved by the menu": [*there, "shift+End", types(f"limit = {limit}"), *SAVED_BY_MENU, *run, says(task, "{}.")],
        "after a run with the old number": [
            *run, *there, "shift+End", types(f"limit = {limit}"), *SAVED, click("xfce4-terminal", 0.5, 0.5),
            "Up Return", rest, says(task),
        ],
    }  # fmt: skip


def archive_note(task: Task) -> Ways:
    there: list[Act] = [click("mousepad", 0.5, 0.5), types(answer_of(task, "Documents/note.txt").strip())]
    return {
        "saved by the menu": [*there, *menu("File", r"Save *"), rest],
        "with a new line": [*there, "Return", *SAVED],
        "after sorting": [click("xarchiver", 0.5, 0.5), *there, *SAVED],
    }


WAYS = {"code_run": code_run, "archive_note": archive_note}
