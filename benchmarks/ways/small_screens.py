"""Ways to do the families of `basics` on small screens."""

from __future__ import annotations

from benchmarks.ways.person import Act, Ways, click, drop, hit, label, menu, remembered, rest, told, types, wait
from deskhand.tasks.suites.basics import calculator, dialogs, editors, file_manager, forms, terminal_count, terminals
from deskhand.tasks.suites.basics.code_copy import CodeCopyScenario
from deskhand.tasks.task import Task


def calculator_number(task: Task) -> Ways:
    first, second = told(task, r"Enter (\d) (\d)")
    keys = calculator.CalculatorScenario(task.family, task.seed).boxes
    return {
        "by the keyboard": [types(f"{first}{second}")],
        "one by the mouse, one by the keyboard": [hit(keys, first), second],
        "by the mouse, with a menu left open": [hit(keys, first), hit(keys, second), "alt+h"],
        "a slip is taken back": [first, second, second, "BackSpace"],
    }


def calculator_sum(task: Task) -> Ways:
    (asked,) = told(task, r"Calculate (\S+)")
    keys = calculator.CalculatorScenario(task.family, task.seed).boxes
    return {
        "by the keyboard": [types(asked), "Return"],
        "by the keyboard, with the equals sign": [types(f"{asked}=")],
        "by the mouse, with a menu left open": [*(hit(keys, key) for key in f"{asked}="), "alt+h"],
        "digits by the mouse, then Enter": [*(hit(keys, key) for key in asked), "Return"],
    }


def terminal_run(task: Task) -> Ways:
    color, word = told(task, r"In the (\w+) terminal run touch (\w+)")
    boxes = terminals.TerminalScenario(task.family, task.seed).boxes
    return {
        "typed, then Enter": [hit(boxes, color), types(f"touch {word}"), "Return"],
        "after another command": [hit(boxes, color), types(f"ls\ntouch {word}\n")],
        "with a slip taken back": [hit(boxes, color), types(f"touch {word}x"), "BackSpace", "Return"],
        "clicked elsewhere in the window": [click(color, 0.3, 0.2), types(f"touch {word}\n")],
    }


def terminal_close(task: Task) -> Ways:
    (color,) = told(task, r"Close the (\w+) terminal")
    boxes = terminals.TerminalScenario(task.family, task.seed).boxes
    return {
        "alt+f4": [hit(boxes, color), "alt+F4"],
        "exit": [hit(boxes, color), types("exit\n")],
        "the end of input": [hit(boxes, color), "ctrl+d"],
    }


def dialog_choice(task: Task) -> Ways:
    (label,) = told(task, r"Press (\w+) in")
    scenario = dialogs.DialogScenario(task.family, task.seed)
    # The focus begins at the last button; Tab goes on to the question, then to the first button.
    back = 2 - list[str](scenario.labels).index(label)
    steps = (4 - back) % 4
    return {
        "tab and Enter": [*["Tab"] * steps, "Return"],
        "tab and space": [*["Tab"] * steps, "space"],
        "back by shift+tab": [*["shift+Tab"] * back, "Return"],
        "arrow keys": [*["Left"] * back, "space"],
    }


def editor_append(task: Task) -> Ways:
    line, name = told(task, r'Add the line "(.*)" at the end of (\S+) ')
    boxes = editors.EditorScenario(task.family, task.seed).boxes
    there: list[Act] = [hit(boxes, name), "ctrl+End", types(f"\n{line}")]
    return {
        "saved by the File menu": [*there, *menu("File", "Save")],
        "a new line at the end of the file": [hit(boxes, name), "ctrl+End", types(f"\n{line}\n"), "ctrl+s"],
        "saved in the question at closing": [*there, "alt+F4", rest, label("push-button", "Save|Yes")],
    }


def editor_replace(task: Task) -> Ways:
    name, old, new = told(task, r"In (\S+) replace every (\w+) with (\w+) ")
    scenario = editors.ReplaceScenario(task.family, task.seed)
    text = scenario.texts[name].replace(old, new)
    boxes = scenario.boxes
    words: list[Act] = []
    for line in scenario.texts[name].splitlines():
        number = line.split()[0]
        words += ["Home", *["Right"] * (len(number) + 1), *["shift+Right"] * len(old), types(new), "Down"]
    return {
        "all of it is typed anew": [hit(boxes, name), "ctrl+a", types(text), "ctrl+s"],
        "word by word": [hit(boxes, name), "ctrl+Home", *words, "ctrl+s"],
        "typed anew, saved by the menu": [hit(boxes, name), "ctrl+a", "Delete", types(text), *menu("File", "Save")],
    }


def chosen(steps: int, key: str = "Down") -> Act:
    """Keys that go down an open menu and choose an item; with "Up", from its end. Programs add items to the top of
    the menu of a file: an archive manager can compress it."""
    return " ".join([key] * steps + ["Return"])


def file_delete(task: Task) -> Ways:
    (name,) = told(task, r"Delete the file (\S+)")
    scenario = file_manager.FileManagerScenario(task.family, task.seed)
    file = scenario.boxes
    agrees: list[Act] = [wait("Confirm"), "Return", rest] if scenario.confirm else [rest]
    return {
        "the context menu": [hit(file, name, button="right"), chosen(4, "Up"), *agrees],
        "the Edit menu": [hit(file, name), rest, "alt+e", chosen(4), *agrees],
        "for ever": [hit(file, name), rest, "shift+Delete", wait("Confirm"), "Return", rest],
    }


def file_rename(task: Task) -> Ways:
    name, new = told(task, r"Rename (\S+) to (\S+)")
    file = file_manager.FileManagerScenario(task.family, task.seed).boxes
    named: list[Act] = [wait("Rename"), "ctrl+a", types(new)]
    return {
        "the context menu": [hit(file, name, button="right"), chosen(2, "Up"), *named, "Return", rest],
        "OK by the keyboard": [hit(file, name), rest, "F2", *named, "alt+o", rest],
        "OK by the mouse": [hit(file, name), rest, "F2", *named, click("Rename", -50, -28), rest],
    }


def file_move(task: Task) -> Ways:
    name, folder = told(task, r"Move (\S+) to the folder (\w+)")
    file = remembered(file_manager.MoveScenario(task.family, task.seed).boxes)
    inside: list[Act] = [hit(file, folder, count=2), wait(folder)]
    return {
        "dragged": [drop(file, name, folder), rest],
        "dragged with shift": [drop(file, name, folder, "shift"), rest],
        "the Edit menu": [hit(file, name), rest, "alt+e", chosen(1), *inside, "ctrl+v", rest],
        "the context menu": [hit(file, name, button="right"), chosen(6, "Up"), *inside, "ctrl+v", rest],
    }


def form_fill(task: Task) -> Ways:
    scenario = forms.FormScenario(task.family, task.seed)
    wishes = dict(part.split(" ", 1) for part in told(task, r"OK: (.*)\. Leave")[0].split(", "))
    by_tab = types("\t".join(wishes.get(field, "") for field in scenario.fields))
    first = scenario.fields[0]
    return {
        "by the keyboard": [hit(scenario.boxes, first), by_tab, "Tab Tab Return"],
        "by the keyboard, OK by space": [hit(scenario.boxes, first), by_tab, "Tab Tab space"],
        "OK by the mouse": [hit(scenario.boxes, first), by_tab, click("zenity", -50, -24)],
    }


def code_copy(task: Task) -> Ways:
    (color,) = told(task, r"the (\w+) window into")
    scenario = CodeCopyScenario(task.family, task.seed)
    code, boxes = scenario.codes[color], scenario.boxes
    return {
        "saved by the File menu": [hit(boxes, "editor"), types(code), *menu("File", "Save")],
        "with a new line": [hit(boxes, "editor"), types(f"{code}\n"), "ctrl+s"],
        "selected and pasted by the middle button": [
            click(color, 0.5, 0.5, count=2),
            hit(boxes, "editor", button="middle"),
            "ctrl+s",
        ],
        "saved in the question at closing": [
            hit(boxes, "editor"),
            types(code),
            "alt+F4",
            rest,
            label("push-button", "Save|Yes"),
        ],
    }


def counting(task: Task) -> Ways:
    scenario = terminal_count.TerminalCountScenario(task.family, task.seed)
    find, name, to = (f"'{scenario.word}'" if scenario.word else "''"), scenario.file, scenario.result
    focus = hit(scenario.boxes, "terminal")
    return {
        "a pipe": [focus, types(f"cat {name} | grep {find} | wc -l > {to}\n")],
        "counted, then written": [focus, types(f"grep -c {find} {name}\n"), types(f"echo {scenario.count} > {to}\n")],
        "awk": [focus, types(f"awk '/{scenario.word or ''}/{{n++}} END{{print n}}' {name} > {to}\n")],
        "sed": [focus, types(f"sed -n '/{scenario.word or ''}/p' {name} | wc -l > {to}\n")],
    }


WAYS = {
    "calculator_number": calculator_number,
    "calculator_sum": calculator_sum,
    "terminal_run": terminal_run,
    "terminal_close": terminal_close,
    "dialog_choice": dialog_choice,
    "editor_append": editor_append,
    "editor_replace": editor_replace,
    "file_delete": file_delete,
    "file_rename": file_rename,
    "file_move": file_move,
    "form_fill": form_fill,
    "code_copy": code_copy,
    "terminal_count": counting,
}
