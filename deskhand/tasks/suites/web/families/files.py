"""Families `web/files/*`: sharing, renaming and moving files, and saying who has access."""

from __future__ import annotations

from pathlib import PurePath

from deskhand.tasks.suites.web.apps import files
from deskhand.tasks.suites.web.apps.files import FOLDERS, RIGHTS
from deskhand.tasks.suites.web.content import FILES
from deskhand.tasks.suites.web.scenario import Goal, State, WebScenario, choose, fill, go, see, web_family

REPORTS = "/files/folder/Reports"


def _file(web: WebScenario) -> State:
    return web.pick(web.state["files"]["files"])


def _other(web: WebScenario, file: State) -> State:
    return next(each for each in web.state["files"]["files"] if each is not file)


def _stranger(web: WebScenario, file: State) -> str:
    return web.pick([each for each in web.state["files"]["people"] if each not in file["shared"]])


@web_family("files/share", REPORTS, "medium", "share a file with a person", "fill in a form", "find something")
def share_file(web: WebScenario) -> Goal:
    file = _file(web)
    person, right = _stranger(web, file), web.pick(list(RIGHTS))
    values = {"id": file["id"], "person": person, "right": right}
    less = RIGHTS[1 - RIGHTS.index(right)]
    return Goal(
        f"Share the file {file['name']} (folder {file['folder']}) with {person}, who {right} it",
        (go(file["folder"]), go(file["name"]), choose("Person", person), choose("Right", right), go("Share")),
        right=lambda state: files.share(state["files"], values),
        wrong={
            "with another right": lambda state: files.share(state["files"], {**values, "right": less}),
            "another file": lambda state: files.share(state["files"], {**values, "id": _other(web, file)["id"]}),
            "with everybody": lambda state: [
                files.share(state["files"], {**values, "person": each}) for each in state["files"]["people"]
            ],
        },
    )


@web_family("files/unshare", REPORTS, "medium", "revoke a person's access to a file", "find something")
def unshare_file(web: WebScenario) -> Goal:
    file = _file(web)
    person = web.pick(sorted(file["shared"]))
    other = _other(web, file)
    values = {"id": file["id"], "person": person}
    elsewhere = {"id": other["id"], "person": min(other["shared"])}
    return Goal(
        f"Stop sharing the file {file['name']} (folder {file['folder']}) with {person}",
        (go(file["folder"]), go(file["name"]), go("Stop", person)),
        right=lambda state: files.unshare(state["files"], values),
        wrong={
            "another file": lambda state: files.unshare(state["files"], elsewhere),
            "deleted": lambda state: files.delete(state["files"], file),
            "two files": lambda state: [files.unshare(state["files"], each) for each in (values, elsewhere)],
        },
    )


@web_family("files/rename", REPORTS, "easy", "rename a file", "fill in a form", "find something")
def rename_file(web: WebScenario) -> Goal:
    file = _file(web)
    taken = {PurePath(each["name"]).stem for each in web.state["files"]["files"]}
    name = f"{web.pick([each for each in FILES if each not in taken])}{PurePath(file['name']).suffix}"
    return Goal(
        f"Rename the file {file['name']} (folder {file['folder']}) to {name}",
        (go(file["folder"]), go(file["name"]), fill("Name", name), go("Rename")),
        right=lambda state: files.rename(state["files"], {**file, "name": name}),
        wrong={
            "another file": lambda state: files.rename(state["files"], {**_other(web, file), "name": name}),
            "without its ending": lambda state: files.rename(state["files"], {**file, "name": PurePath(name).stem}),
            "moved": lambda state: files.move(state["files"], {**file, "folder": _other(web, file)["folder"]}),
        },
    )


@web_family("files/collect", REPORTS, "hard", "move two files to a folder", "find something", "work in several steps")
def collect(web: WebScenario) -> Goal:
    target = web.pick(list(FOLDERS))
    chosen = web.rng.sample([each for each in web.state["files"]["files"] if each["folder"] != target], 2)
    third = next(each for each in web.state["files"]["files"] if each["folder"] != target and each not in chosen)
    names = " and ".join(f"{each['name']} (folder {each['folder']})" for each in chosen)

    def moved(state: State, *which: State, to: str = target) -> None:
        for each in which:
            files.move(state["files"], {**each, "folder": to})

    elsewhere = next(each for each in FOLDERS if each not in (target, chosen[0]["folder"]))
    return Goal(
        f"Move the files {names} to the folder {target}",
        tuple(
            act
            for each in chosen
            for act in (go(each["folder"]), go(each["name"]), choose("Folder", target), go("Move"))
        ),
        right=lambda state: moved(state, *chosen),
        wrong={
            "only one": lambda state: moved(state, chosen[0]),
            "one too many": lambda state: moved(state, *chosen, third),
            "to another folder": lambda state: moved(state, *chosen, to=elsewhere),
        },
    )


@web_family(
    "files/who_edits", REPORTS, "medium", "say what a person may do with a file", "find something", "answer a question"
)
def who_edits(web: WebScenario) -> Goal:
    file = _file(web)
    person = web.pick(sorted(file["shared"]))
    right = file["shared"][person].split()[1]
    return Goal(
        f"May {person} only read the file {file['name']} (folder {file['folder']}), or edit it? "
        "Answer with one word: read or edit",
        (go(file["folder"]), go(file["name"]), see(person)),
        answer=right,
        wrong_answers=("edit" if right == "read" else "read", "", file["shared"][person]),
    )


@web_family(
    "files/share_missing", REPORTS, "medium", "share a file that does not exist", "recognize an infeasible task"
)
def share_missing(web: WebScenario) -> Goal:
    file = _file(web)
    person, right = _stranger(web, file), web.pick(list(RIGHTS))
    web.state["files"]["files"].remove(file)
    return Goal(
        f"Share the file {file['name']} (folder {file['folder']}) with {person}, who {right} it",
        tuple(go(each) for each in (file["folder"], *FOLDERS)),
        infeasible=True,
    )


@web_family(
    "files/largest", REPORTS, "medium", "name the largest file in a folder", "read and compare", "answer a question"
)
def largest(web: WebScenario) -> Goal:
    folder = web.pick(list(FOLDERS))
    for file, size in zip(web.state["files"]["files"], web.rng.sample(range(12, 900), 12), strict=True):
        file["size"] = size
    found = sorted(
        (each for each in web.state["files"]["files"] if each["folder"] == folder), key=lambda each: each["size"]
    )
    return Goal(
        f"Which file in the folder {folder} is the largest? Answer with its name",
        (go(folder), *(see(each["name"]) for each in found)),
        answer=found[-1]["name"],
        wrong_answers=(*(each["name"] for each in found[:-1]), str(found[-1]["size"])),
    )


@web_family("files/rename_taken", REPORTS, "medium", "give a file a name that is taken", "recognize an infeasible task")
def rename_taken(web: WebScenario) -> Goal:
    file = _file(web)
    name = web.pick(
        [each["name"] for each in web.state["files"]["files"] if each["folder"] == file["folder"] and each is not file]
    )
    return Goal(
        f"Rename the file {file['name']} (folder {file['folder']}) to {name}",
        (go(file["folder"]), go(file["name"]), fill("Name", name), go("Rename")),
        infeasible=True,
    )
