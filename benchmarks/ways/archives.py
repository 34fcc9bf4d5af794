"""Ways to do the families of `basics` in the archive manager Xarchiver."""

from __future__ import annotations

from benchmarks.ways.person import Act, Ways, gone, label, menu, rest, told, types, wait
from benchmarks.ways.questions import says
from deskhand.tasks.task import Task

EXTRACT = "Extract"


def cell(name: str, *, count: int = 1) -> Act:
    return label("table-cell", name.replace(".", r"\."), count=count)


def into(folder: str, *more: Act) -> list[Act]:
    """Fill in the dialog for extracting; `more` comes before it is agreed to by the mouse."""
    return [wait(EXTRACT), "ctrl+a", types(f"/home/user/{folder}"), *more, label("push-button", EXTRACT, -1), rest]


def archive_extract(task: Task) -> Ways:
    name, folder = told(task, r"the file (\S+) of pack.* folder (\w+)")
    if task.infeasible_reward is not None:
        return {
            "after a look": [rest, says(task)],
            "sorted by name": [label(".*header", "Filename"), rest, says(task)],
            "after a search": ["ctrl+b", rest, types(name), "Return", rest, says(task)],
        }
    return {
        "by the Action menu": [cell(name), *menu("Action", EXTRACT), *into(folder)],
        "by the tool bar": [cell(name), label("push-button", EXTRACT), *into(folder)],
        "without any path": [cell(name), "ctrl+e", *into(folder, label("radio-button", "Without any path"))],
    }


def archive_extract_all(task: Task) -> Ways:
    (folder,) = told(task, r"folder (\w+)")
    return {
        "by the Action menu": [*menu("Action", EXTRACT), *into(folder)],
        "all are selected first": ["ctrl+a", "ctrl+e", *into(folder)],
        "directly into the folder": [
            label("push-button", EXTRACT), *into(folder, label("check-box", "Ensure a containing.*"))
        ],
    }  # fmt: skip


def archive_delete(task: Task) -> Ways:
    (name,) = told(task, r"the file (\S+) from")
    agree: list[Act] = [rest, label("push-button", "OK"), rest]
    return {
        "by the Delete key": [cell(name), "Delete", *agree],
        "by the Action menu": [cell(name), *menu("Action", "Delete"), *agree],
        "the keyboard agrees": [cell(name), "Delete", rest, "Tab Return", rest],
    }


def archive_add(task: Task) -> Ways:
    name, folder = told(task, r"the file (\S+) of the folder (\w+)")
    dialog = "Add files"
    there: list[Act] = [wait(dialog), label("label", folder), rest]
    add: list[Act] = [label("push-button", "Add", -1), gone(dialog), rest]
    return {
        "by the Action menu": [*menu("Action", "Add"), *there, cell(name), *add],
        "by the tool bar": [label("push-button", "Add"), *there, cell(name), *add],
        "from the home folder": [
            "ctrl+d",
            wait(dialog),
            label("label", "Home"),
            rest,
            cell(folder, count=2),
            rest,
            cell(name),
            *add,
        ],
    }


def archive_size(task: Task) -> Ways:
    return {
        "after a look": [rest, says(task, "{}.")],
        "sorted by size": [label(".*header", "Original Size"), rest, says(task)],
        "all are selected": ["ctrl+a", rest, says(task)],
    }


WAYS = {
    "archive_extract": archive_extract,
    "archive_extract_missing": archive_extract,
    "archive_extract_all": archive_extract_all,
    "archive_delete": archive_delete,
    "archive_add": archive_add,
    "archive_size": archive_size,
}
