"""Families `web/files/*`: sharing, renaming and moving files, and saying who has access."""

from __future__ import annotations

from pathlib import PurePath

from deskhand.tasks.suites.web.apps import files
from deskhand.tasks.suites.web.apps.files import FOLDERS, RIGHTS
from deskhand.tasks.suites.web.families.forms import both, open_file, submit, submit_each
from deskhand.tasks.suites.web.families.items import new_file_name, other_item, ranked
from deskhand.tasks.suites.web.scenario import Goal, State, WebScenario, choose, fill, go, see, web_family

REPORTS = "/files/folder/Reports"


def _file(web: WebScenario) -> State:
    return web.pick(web.state["files"]["files"])


def _other(web: WebScenario, file: State) -> State:
    return other_item(web.state["files"]["files"], file)


def _stranger(web: WebScenario, file: State) -> str:
    return web.pick([each for each in web.state["files"]["people"] if each not in file["shared"]])


@web_family("files/share", REPORTS, "medium", "share a file with a person", "fill in a form", "find something")
def share_file(web: WebScenario) -> Goal:
    file = _file(web)
    person, right = _stranger(web, file), web.pick(list(RIGHTS))
    form = {"id": file["id"], "person": person, "right": right}
    everybody = [{**form, "person": each} for each in web.state["files"]["people"]]
    return Goal(
        f"Share the file {file['name']} (folder {file['folder']}) with {person}, who {right} it",
        (*open_file(file), choose("Person", person), choose("Right", right), go("Share")),
        right=submit(files.share, form),
        wrong={
            "with another right": submit(files.share, form, right=RIGHTS[1 - RIGHTS.index(right)]),
            "another file": submit(files.share, form, id=_other(web, file)["id"]),
            "with everybody": submit_each(files.share, everybody),
        },
    )


@web_family("files/unshare", REPORTS, "medium", "revoke a person's access to a file", "find something")
def unshare_file(web: WebScenario) -> Goal:
    file = _file(web)
    person = web.pick(sorted(file["shared"]))
    other = _other(web, file)
    stopped = submit(files.unshare, file, person=person)
    elsewhere = submit(files.unshare, other, person=min(other["shared"]))
    return Goal(
        f"Stop sharing the file {file['name']} (folder {file['folder']}) with {person}",
        (*open_file(file), go("Stop", person)),
        right=stopped,
        wrong={
            "another file": elsewhere,
            "deleted": submit(files.delete, file),
            "two files": both(stopped, elsewhere),
        },
    )


@web_family("files/rename", REPORTS, "easy", "rename a file", "fill in a form", "find something")
def rename_file(web: WebScenario) -> Goal:
    file = _file(web)
    other, name = _other(web, file), new_file_name(web, PurePath(file["name"]).suffix)
    return Goal(
        f"Rename the file {file['name']} (folder {file['folder']}) to {name}",
        (*open_file(file), fill("Name", name), go("Rename")),
        right=submit(files.rename, file, name=name),
        wrong={
            "another file": submit(files.rename, other, name=name),
            "without its ending": submit(files.rename, file, name=PurePath(name).stem),
            "moved": submit(files.move, file, folder=other["folder"]),
        },
    )


@web_family("files/collect", REPORTS, "hard", "move two files to a folder", "find something", "work in several steps")
def collect(web: WebScenario) -> Goal:
    target = web.pick(list(FOLDERS))
    chosen = web.rng.sample([each for each in web.state["files"]["files"] if each["folder"] != target], 2)
    third = next(each for each in web.state["files"]["files"] if each["folder"] != target and each not in chosen)
    names = " and ".join(f"{each['name']} (folder {each['folder']})" for each in chosen)
    elsewhere = next(each for each in FOLDERS if each not in (target, chosen[0]["folder"]))
    return Goal(
        f"Move the files {names} to the folder {target}",
        tuple(act for each in chosen for act in (*open_file(each), choose("Folder", target), go("Move"))),
        right=submit_each(files.move, chosen, folder=target),
        wrong={
            "only one": submit(files.move, chosen[0], folder=target),
            "one too many": submit_each(files.move, [*chosen, third], folder=target),
            "to another folder": submit_each(files.move, chosen, folder=elsewhere),
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
        (*open_file(file), see(person)),
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
    found = ranked(web.state["files"]["files"], "size", folder=folder)
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
        (*open_file(file), fill("Name", name), go("Rename")),
        infeasible=True,
    )
