"""Ways to do the families of `basics` in Claws Mail."""

from __future__ import annotations

from benchmarks.ways.office import answer_of
from benchmarks.ways.person import Act, Ways, click, drop, gone, label, menu, rest, told, types, wait
from benchmarks.ways.questions import says
from benchmarks.ways.viewers import TEXT, written
from deskhand.actions.ops import Button
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.suites.basics.cross_app import NOTE
from deskhand.tasks.suites.basics.mailbox import (
    BODY_PX,
    MAIL_PX,
    ROOT_ROW_PX,
    ROW_PX,
    SELECT_ROOT_PX,
    SELECT_ROW_PX,
    SUBJECT_PX,
    TO_PX,
    MailScenario,
)
from deskhand.tasks.task import Rect, Task

WINDOW, COMPOSE, SELECT = "Claws Mail", "Compose message", "Select folder"
MARK_PX = 242
"""The column of check marks."""
CONTEXT: Button = "right"
MOVE, TRASH, SAVE, REPLY, CREATE = (["Down"] * nth + ["Return"] for nth in (6, 8, 6, 1, 1))
"""Items of context menus, which the accessibility tree lacks."""
CLOSED = gone(WINDOW)


def mails(task: Task) -> MailScenario:
    return MailScenario(task.family, task.seed)


def on(number: int, button: Button = "left", x: float = MAIL_PX) -> Act:
    return click(WINDOW, x, ROOT_ROW_PX + ROW_PX * (number - 1), button=button)


def on_folder(row: int, button: Button = "left") -> Act:
    """Click on a row of the list of folders; 0 is the mailbox."""
    return click(WINDOW, 70, ROOT_ROW_PX + ROW_PX * row, button=button)


def dragged(number: int, row: int) -> Act:
    """Drag a mail to a folder. The row that lights up is one below the pointer."""

    async def boxes(desktop: StageableDesktop) -> dict[str, Rect]:
        window = (await desktop.wait_window(WINDOW))[0]

        def box(x: int, nth: int) -> Rect:
            left, top = window.x + x, window.y + ROOT_ROW_PX + ROW_PX * nth
            return Rect(left - 4, top - 4, left + 4, top + 4)

        return {"mail": box(350, number - 1), "folder": box(70, row - 1)}

    return drop(boxes, "mail", "folder")


def to_folder(row: int, *, button: bool = False) -> list[Act]:
    """Choose a folder in the dialog."""
    done: Act = label("push.button", "OK") if button else "Return"
    place = click(SELECT, 80, SELECT_ROOT_PX + SELECT_ROW_PX * row)
    return [wait(SELECT), place, rest, done, gone(SELECT), rest]


def mail_move(task: Task) -> Ways:
    scenario = mails(task)
    (folder,) = told(task, r"to the folder (\w+)")
    number, row = scenario.number, scenario.folder_row(folder)
    other = number % len(scenario.mails) + 1
    return {
        "dragged": [dragged(number, row), rest],
        "the menu, with the button": [on(number), *menu("Message", "Move..."), *to_folder(row, button=True)],
        "the context menu": [on(number), on(number, CONTEXT), *MOVE, *to_folder(row)],
        "another one looked at first": [on(other), rest, on(number), "ctrl+o", *to_folder(row)],
    }


def mail_trash(task: Task) -> Ways:
    scenario = mails(task)
    numbers = scenario.numbers(scenario.often)[::-1]
    button, row = label("push.button", "Trash"), scenario.folder_row("trash")
    return {
        "by the button": [act for each in numbers for act in (on(each), rest, button, rest)],
        "by the context menu": [act for each in numbers for act in (on(each), on(each, CONTEXT), *TRASH, rest)],
        "dragged": [act for each in numbers for act in (dragged(each, row), rest)],
        "moved": [act for each in numbers for act in (on(each), "ctrl+o", *to_folder(row))],
    }


def mail_mark(task: Task) -> Ways:
    scenario = mails(task)
    numbers = scenario.numbers(scenario.often)
    marked = label("menu.item", "Mark")
    by_menu = [act for each in numbers for act in (on(each), *menu("Message", "Mark"), marked, rest)]
    column = [act for each in numbers for act in (on(each, x=MARK_PX), rest)]
    unmarked = [*menu("Message", "Mark"), label("menu.item", "Unmark")]
    once: list[Act] = [on(scenario.number), "shift+8", rest, *unmarked, rest]
    keys = [act for each in numbers for act in (on(each), "shift+8", rest)]
    return {
        "in the column": [*column, "alt+F4", CLOSED, rest],
        "by the menu": [*by_menu, *menu("File", "Exit"), CLOSED, rest],
        "another one first, taken back": [*once, *keys, "ctrl+q", CLOSED, rest],
        "the folder is left first": [*keys, on_folder(2), rest, "ctrl+q", CLOSED, rest],
    }


def mail_ask(task: Task) -> Ways:
    scenario = mails(task)
    numbers = scenario.numbers(*told(task, r"that (.*) wrote")) or (1,)
    every = [act for each in scenario.mails for act in (on(each), rest)]
    row_px = ROOT_ROW_PX + ROW_PX * (numbers[0] - 1)
    return {
        "every mail is read": [*every, says(task)],
        "in a window of its own": [
            click(WINDOW, MAIL_PX, row_px, count=2),
            rest,
            says(task),
        ],
        "the folder is left": [on(numbers[0]), rest, on_folder(2), rest, says(task, "{}.")],
    }


def mail_attachment(task: Task) -> Ways:
    scenario = mails(task)
    part = click(WINDOW, -19, 466)
    there, done = label(".*", "Documents"), label("push.button", "Save")
    saved: list[Act] = [wait("Save as"), there, rest, done, gone("Save as"), rest]
    path = types(f"/home/user/Documents/{scenario.attached}")
    return {
        "by the File menu": [on(scenario.number), rest, part, rest, *menu("File", "Save part as..."), *saved],
        "by its path": [on(scenario.number), rest, part, rest, "y", wait("Save as"), "ctrl+a", path, "Return", rest],
        "by the context menu": [
            *(on(scenario.number), rest, click(WINDOW, -19, 466, button=CONTEXT), *SAVE),
            *saved,
        ],
    }


def mail_folder(task: Task) -> Ways:
    scenario = mails(task)
    number, new, dialog = scenario.number, types(scenario.new_folder), "New folder"
    row = scenario.folder_row(scenario.new_folder)
    named: list[Act] = [wait(dialog), "ctrl+a", new, rest]
    created: list[Act] = [on_folder(0, CONTEXT), *CREATE, *named]
    entered: list[Act] = ["Return", gone(dialog), rest]
    return {
        "dragged": [*created, *entered, dragged(number, row), rest],
        "with the button, then by the menu": [
            *(*created, label("push.button", "OK"), gone(dialog), rest, on(number), *menu("Message", "Move...")),
            *to_folder(row),
        ],
        "not at first": [
            *created,
            "Escape",
            gone(dialog),
            rest,
            *created,
            *entered,
            on(number),
            "ctrl+o",
            *to_folder(row),
        ],
        "created where it is moved to": [
            *(on(number), "ctrl+o", wait(SELECT), click(SELECT, 80, SELECT_ROOT_PX), label("push.button", "New")),
            *(*named, *entered, *to_folder(row)),
        ],
    }


def mail_draft(task: Task) -> Ways:
    to, subject, text = told(task, r'mail to (\S+) with the subject "(.*)" and the text "(.*)", and')
    fields = [(BODY_PX, text), (SUBJECT_PX, subject), (TO_PX, to)]
    typed = [act for place, each in fields for act in (click(COMPOSE, *place), types(each))]
    opened: list[Act] = [label("push.button", "Compose"), wait(COMPOSE)]
    close, save = "ctrl+w", label("push.button", "Save to Drafts")
    return {
        "from the end, saved when it is closed": [*opened, *typed, close, rest, save, gone(COMPOSE), rest],
        "saved by keys, left open": [*opened, *typed, "ctrl+s", rest],
        "saved twice": [
            "ctrl+m",
            wait(COMPOSE),
            *typed[2:],
            "ctrl+s",
            rest,
            *typed[:2],
            label("push.button", "Draft"),
            rest,
        ],
    }


def mail_reply(task: Task) -> Ways:
    (text,) = told(task, r'with the text "(.*)", and choose')
    number, later = mails(task).number, label("push.button", "Send later")
    return {
        "by the button, without the quote": [
            *(on(number), rest, label("push.button", "Reply"), wait(COMPOSE), click(COMPOSE, *BODY_PX), "ctrl+a"),
            *(types(text), later, gone(COMPOSE), rest),
        ],
        "by the context menu": [
            *(on(number), on(number, CONTEXT), *REPLY, wait(COMPOSE), types(text)),
            *("shift+ctrl+s", gone(COMPOSE), rest),
        ],
        "above the quote": [
            *(on(number), "ctrl+r", wait(COMPOSE), click(COMPOSE, *BODY_PX), "ctrl+Home", types(f"{text}\n")),
            *(label(".*menu.*", "Message", -1), label("menu.item", "Send later"), gone(COMPOSE), rest),
        ],
    }


def mail_to_note(task: Task) -> Ways:
    scenario = mails(task)
    looked = [act for each in scenario.mails for act in (on(each), rest)]
    anew, _, line_more = written(task)
    numbers = [line.rpartition(" ")[2] for line in answer_of(task, NOTE).splitlines()]
    behind = [act for number in numbers for act in ("End", types(f" {number}"), "Down")]
    return {
        "written anew": [*looked, *anew],
        "saved by the menu": [*looked[::-1], TEXT, "ctrl+Home", *behind, "alt+f s", rest],
        "with a new line": [*looked, *line_more],
    }


WAYS = {
    "mail_move": mail_move,
    "mail_trash": mail_trash,
    "mail_mark": mail_mark,
    "mail_ask": mail_ask,
    "mail_ask_missing": mail_ask,
    "mail_attachment": mail_attachment,
    "mail_folder": mail_folder,
    "mail_draft": mail_draft,
    "mail_reply": mail_reply,
    "mail_to_note": mail_to_note,
}
