"""Ways to do the families of `basics` in the code editor Geany."""

from __future__ import annotations

from benchmarks.ways.person import Act, Ways, click, label, menu, rest, scroll, told, types, wait
from benchmarks.ways.questions import says
from deskhand.tasks.suites.basics.code_editor import CodeScenario, TabsScenario
from deskhand.tasks.task import Task

SAVED: list[Act] = ["ctrl+s", rest]
SAVED_BY_MENU: list[Act] = [*menu("File", "Save"), rest]


def tab(name: str) -> Act:
    return label("page-tab", name.replace(".", r"\."))


def at_line(number: int | str) -> list[Act]:
    return ["ctrl+l", types(f"{number}\n"), "Home"]


def code_replace(task: Task) -> Ways:
    old, name, new = told(task, r"variable (\w+) of (\S+) to (\w+),")
    fields: list[Act] = [wait("Replace"), "ctrl+a", types(old), "alt+h", "ctrl+a", types(new)]
    unfold: list[Act] = [click("Replace", 57, 226), rest]
    return {
        "in the document, by the mouse": [
            tab(name), "ctrl+h", *fields, *unfold, label("push-button", "In Document"), rest, *SAVED
        ],
        "from the Search menu": [tab(name), *menu("Search", "Replace..."), *fields, *unfold, "alt+i", rest, *SAVED],
        "whole words": [tab(name), "ctrl+h", *fields, "alt+m", *unfold, "alt+i", rest, *SAVED_BY_MENU],
        "what was replaced first is replaced again": [
            tab(name), "ctrl+h", *fields, "alt+r", rest, *unfold, label("push-button", "In Document"), rest, *SAVED
        ],
    }  # fmt: skip


def lines_of(task: Task) -> tuple[int, int, str]:
    first, last, name = told(task, r"lines (\d+) to (\d+) of (\S+?),? ")
    return int(first), int(last), name


def on_each(task: Task, *acts: Act) -> list[Act]:
    first, last, _ = lines_of(task)
    return [act for number in range(first, last + 1) for act in (*at_line(number), *acts)]


def code_comment(task: Task) -> Ways:
    first, last, name = lines_of(task)
    chosen: list[Act] = [tab(name), *at_line(first), *["shift+Down"] * (last - first), "shift+End"]
    return {
        "by hand": [tab(name), *on_each(task, types("#")), *SAVED],
        "by hand, with a space": [tab(name), *on_each(task, types("# ")), *SAVED_BY_MENU],
        "from the menu": [*chosen, *menu("Edit", "Format", r"Comment Line\(s\)"), *SAVED],
        "one by one": [tab(name), *on_each(task, "ctrl+e"), *SAVED],
    }


def code_indent(task: Task) -> Ways:
    first, last, name = lines_of(task)
    chosen: list[Act] = [tab(name), *at_line(first), *["shift+Down"] * (last - first), "shift+End"]
    return {
        "by Tab": [*chosen, "Tab", *SAVED],
        "by hand": [tab(name), *on_each(task, "Tab"), *SAVED],
        "four spaces": [tab(name), *on_each(task, types("    ")), *SAVED],
        "from the menu": [*chosen, *menu("Edit", "Format", "Increase Indent"), *SAVED_BY_MENU],
    }


def code_line_out(task: Task) -> Ways:
    number, name = told(task, r"line (\d+) of (\S+),")
    there = [tab(name), *at_line(number)]
    return {
        "selected and deleted": [*there, "Home", "shift+Down", "Delete", *SAVED],
        "emptied, then joined": [*there, "End", "shift+Home", "shift+Home", "BackSpace", "BackSpace", *SAVED],
        "from the menu": [*there, *menu("Edit", "Commands", r"Delete Current Line\(s\)"), *SAVED_BY_MENU],
    }


def code_save_as(task: Task) -> Ways:
    name, new = told(task, r"save a copy of (\S+) as (\S+) in")
    return {
        "by the mouse": [
            tab(name), *menu("File", "Save As..."), wait("Save File"), "ctrl+a", types(new),
            label("push-button", "Save", -1), rest,
        ],
        "the whole path": [
            tab(name), "alt+f a", wait("Save File"), "ctrl+a", types(f"/home/user/Code/{new}"), "Return", rest
        ],
        "the letter of Save": [tab(name), "alt+f a", wait("Save File"), "ctrl+a", types(new), "alt+s", rest],
    }  # fmt: skip


def code_function(task: Task) -> Ways:
    function, name, other = told(task, r"function (\w+) of (\S+) to the end of (\S+),")
    scenario = CodeScenario(task.family, task.seed)
    first = scenario.line_of(name, f"def {function}(")
    lines = scenario.texts[name].splitlines()
    last = next(number for number in range(first, len(lines)) if not lines[number])
    chosen: list[Act] = [tab(name), *at_line(first), *["shift+Down"] * (last - first + 1)]
    end: list[Act] = [tab(other), "ctrl+End"]
    return {
        "by the Edit menu": [*chosen, *menu("Edit", "Copy"), *end, *menu("Edit", "Paste"), *SAVED],
        "after an empty line": [*chosen, "ctrl+c", *end, "Return", "ctrl+v", *SAVED],
        "saved by the menu": [*chosen, "ctrl+Insert", *end, "shift+Insert", *SAVED_BY_MENU],
    }


def code_every_tab(task: Task) -> Ways:
    (number,) = told(task, r"limit to (\d+) in")
    scenario = TabsScenario(task.family, task.seed)
    one: list[Act] = ["ctrl+Home", "shift+End", types(f"limit = {number}")]
    by_number: list[Act] = ["ctrl+Home", "End", "BackSpace BackSpace", types(number)]
    return {
        "saved together": [*(act for name in scenario.names for act in (tab(name), *one)), "ctrl+shift+s", rest],
        "only the numbers": [act for name in scenario.names for act in (tab(name), *by_number, *SAVED)],
        "by the next tab": [act for _ in scenario.names for act in ("ctrl+Next", *one, *SAVED_BY_MENU)],
    }


def code_line(task: Task) -> Ways:
    function, name = told(task, r"the function (\w+) in (\S+),")
    return {
        "tab by the mouse": [tab(name), rest, says(task, "{}.")],
        "found by a search": [tab(name), "ctrl+f", wait("Find"), types(f"def {function}\n"), rest, says(task)],
        "after scrolling": [tab(name), scroll(5), scroll(5), rest, says(task)],
    }


WAYS = {
    "code_replace": code_replace,
    "code_comment": code_comment,
    "code_indent": code_indent,
    "code_line_out": code_line_out,
    "code_save_as": code_save_as,
    "code_function": code_function,
    "code_every_tab": code_every_tab,
    "code_line": code_line,
    "code_line_missing": code_line,
}
