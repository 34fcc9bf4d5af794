"""Ways to do the long families of `basics` across two or three programs."""

from __future__ import annotations

from benchmarks.ways.archives import cell, into
from benchmarks.ways.code_editor import SAVED, SAVED_BY_MENU, tab
from benchmarks.ways.office import answer_of
from benchmarks.ways.person import Act, Ways, click, gone, label, menu, rest, told, types, wait
from deskhand.tasks.suites.basics.code_editor import FOLDER
from deskhand.tasks.suites.basics.cross_app import NOTE
from deskhand.tasks.task import Task

EDITOR, TERMINAL, TEXT = (click(title, 0.6, 0.4) for title in ("geany", "xfce4-terminal", "mousepad"))
ARCHIVE = click("pack.tar.gz", 0.6, 0.8)
FIRST_LINE: list[Act] = ["ctrl+Home", "shift+End"]
TEXT_SAVED: list[Act] = ["ctrl+s", rest]
TEXT_SAVED_BY_MENU: list[Act] = ["alt+f s", rest]


def limits_of(task: Task) -> dict[str, str]:
    """The limits that the note asks for, by name."""
    text = answer_of(task, f"{FOLDER}/note.txt")
    return dict(line.split(": ") for line in text.splitlines())


def note_to_code(task: Task) -> Ways:
    limits = limits_of(task)

    def one_by_one(start: list[Act], text: str, saved: list[Act]) -> list[Act]:
        each = [[tab(name), *start, types(text.format(limit)), *saved] for name, limit in limits.items()]
        return [EDITOR, *(act for acts in each for act in acts)]

    return {
        "by the tabs": one_by_one(FIRST_LINE, "limit = {}", SAVED),
        "only the numbers, saved by the menu": one_by_one(
            ["ctrl+Home", "End BackSpace BackSpace"], "{}", SAVED_BY_MENU
        ),
        "all saved at the end": [*one_by_one(FIRST_LINE, "limit = {}", []), *menu("File", "Save All"), rest],
    }


def note_to_archive(task: Task) -> Ways:
    names = answer_of(task, NOTE).splitlines()[1:]
    agree: list[Act] = [rest, label("push-button", "OK"), rest]

    def one_by_one(*delete: Act) -> list[Act]:
        return [ARCHIVE, *(act for name in names for act in (cell(name), *delete, *agree))]

    return {
        "by the Delete key": one_by_one("Delete"),
        "by the Action menu": one_by_one(*menu("Action", "Delete")),
        "the last one first": [
            ARCHIVE, *(act for name in names[::-1] for act in (cell(name), "Delete", rest, "Tab Return", rest))
        ],
    }  # fmt: skip


def note_rename(task: Task) -> Ways:
    pairs = [line.split(" becomes ") for line in answer_of(task, NOTE).splitlines()]

    def commands(form: str, between: str) -> list[Act]:
        return [TERMINAL, types(between.join(form.format(*pair) for pair in pairs)), types("\n"), rest]

    return {
        "in one line": commands("mv {} {}", "; "),
        "copied, then removed": commands("cp {0} {1} && rm {0}", "\n"),
        "by a program": commands("""python3 -c 'import os; os.rename("{}", "{}")'""", "\n"),
    }


def shell_to_note(task: Task) -> Ways:
    lines = answer_of(task, NOTE).splitlines()
    option = "-l" if told(task, r"how many (\w+) each") == ("lines",) else "-c"
    names = " ".join(line.split()[0] for line in lines)
    whole: list[Act] = [TEXT, "ctrl+a", types("\n".join(lines))]
    behind = [act for line in lines for act in ("End", types(f" {line.split()[1]}"), "Down")]
    return {
        "written anew": [TERMINAL, types(f"wc {option} *.txt\n"), rest, *whole, *TEXT_SAVED],
        "line by line": [
            TERMINAL,
            types(f"wc {option} {names}\n"),
            rest,
            *(TEXT, "ctrl+Home", *behind, *TEXT_SAVED_BY_MENU),
        ],
        "counted one by one": [
            TERMINAL,
            types(f"for f in {names}; do cat $f | wc {option}; done\n"),
            rest,
            *(*whole, "Return", *TEXT_SAVED),
        ],
    }


def run(name: str) -> list[Act]:
    return [TERMINAL, types(f"python3 {name}\n"), rest]


def limit_of(task: Task, name: str) -> str:
    """What the first line of a right program sets."""
    return answer_of(task, f"{FOLDER}/{name}").splitlines()[0].removeprefix("limit = ")


def code_feedback(task: Task) -> Ways:
    (name,) = told(task, r"run (\S+) with")
    number = limit_of(task, name)
    return {
        "the whole line, saved by the menu": [
            *run(name), EDITOR, *FIRST_LINE, types(f"limit = {number}"), *SAVED_BY_MENU
        ],
        "only the number": [*run(name), EDITOR, "ctrl+Home", "End BackSpace BackSpace", types(number), *SAVED],
        "run twice": [*run(name), *run(name), EDITOR, *FIRST_LINE, "Delete", types(f"limit = {number}"), *SAVED],
    }  # fmt: skip


def code_run_note(task: Task) -> Ways:
    (name,) = told(task, r"which limit (\S+) needs")
    number = limit_of(task, name)
    answer = answer_of(task, f"{FOLDER}/note.txt").splitlines()[1]
    change: list[Act] = [EDITOR, *FIRST_LINE, types(f"limit = {number}")]
    write: list[Act] = [TEXT, "ctrl+End", types(answer)]
    return {
        "saved by the menus": [*change, *SAVED_BY_MENU, *run(name), *write, *TEXT_SAVED_BY_MENU],
        "with a new line": [*change, *SAVED, *run(name), *write, "Return", *TEXT_SAVED],
        "only the number": [
            *(EDITOR, "ctrl+Home", "End BackSpace BackSpace", types(number), *SAVED),
            *(*run(f"./{name}"), *write, *TEXT_SAVED),
        ],
    }


def archive_run(task: Task) -> Ways:
    name, folder = told(task, r"the file (\S+) of pack.* folder (\w+)\.")
    answer = answer_of(task, NOTE)
    after: list[Act] = [*run(name), TEXT, types(answer)]
    return {
        "by the Action menu": [cell(name), *menu("Action", "Extract"), *into(folder), *after, *TEXT_SAVED],
        "by the tool bar": [
            cell(name), label("push-button", "Extract"), *into(folder), *after, "Return", *TEXT_SAVED
        ],
        "without any path": [
            *(cell(name), "ctrl+e", *into(folder, label("radio-button", "Without any path"))),
            *(*after, *TEXT_SAVED_BY_MENU),
        ],
    }  # fmt: skip


def archive_code(task: Task) -> Ways:
    name, number, folder = told(task, r"in (\S+) to (\d+) and .*folder (\w+), ")
    change: list[Act] = [EDITOR, *FIRST_LINE, types(f"limit = {number}")]
    there: list[Act] = [wait("Add files"), label("label", folder), rest, cell(name)]
    add: list[Act] = [label("push-button", "Add", -1), gone("Add files"), rest]
    return {
        "by the Action menu": [*change, *SAVED, ARCHIVE, *menu("Action", "Add"), *there, *add],
        "by the tool bar": [*change, *SAVED_BY_MENU, ARCHIVE, label("push-button", "Add"), *there, *add],
        "only the number": [
            *(EDITOR, "ctrl+Home", "End BackSpace BackSpace BackSpace", types(number), *SAVED),
            *(ARCHIVE, "ctrl+d", *there, *add),
        ],
    }


WAYS = {
    "note_to_code": note_to_code,
    "note_to_archive": note_to_archive,
    "note_rename": note_rename,
    "shell_to_note": shell_to_note,
    "code_feedback": code_feedback,
    "code_run_note": code_run_note,
    "archive_run": archive_run,
    "archive_code": archive_code,
}
