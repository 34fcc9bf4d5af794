"""File share: folders of files, which can be renamed, moved, deleted and shared with people."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from deskhand.tasks.suites.web.web_app import (
    Invalid,
    Page,
    State,
    WebApp,
    choice,
    find,
    form,
    item_link,
    required,
    table,
    text_field,
)

FOLDERS = ("Reports", "Photos", "Plans")
RIGHTS = ("may read", "may edit")
app = WebApp("files", "Files", {name: f"/folder/{name}" for name in FOLDERS})


@app.view("/folder/{folder}")
def show_folder(state: State, values: Mapping[str, str]) -> Page:
    shown = sorted(
        (each for each in state["files"] if each["folder"] == values["folder"]), key=lambda each: each["name"]
    )
    rows = [[item_link("file", each, each["name"]), f"{each['size']} kB"] for each in shown]
    return Page(values["folder"], table(("Name", "Size"), rows))


@app.view("/file/{id}")
def show_file(state: State, values: Mapping[str, str]) -> Page:
    file = find(state["files"], values["id"])
    key = file["id"]
    shared = [
        [escape(person), right, form(f"/unshare/{key}/{person}", "Stop", inline=True)]
        for person, right in sorted(file["shared"].items())
    ]
    people = table(("Shared with", "Right", ""), shared) if shared else "<p>Not shared.</p>"
    share = form(
        f"/share/{key}", "Share", choice("person", "Person", state["people"]), choice("right", "Right", RIGHTS)
    )
    rename = form(f"/rename/{key}", "Rename", text_field("name", "Name", file["name"]))
    move = form(f"/move/{key}", "Move", choice("folder", "Folder", FOLDERS, file["folder"]))
    return Page(file["name"], people + share + rename + move + form(f"/delete/{key}", "Delete"))


@app.action("/share/{id}")
def share(state: State, values: Mapping[str, str]) -> str:
    if values["person"] not in state["people"] or values["right"] not in RIGHTS:
        raise Invalid("There is no such person.")
    find(state["files"], values["id"])["shared"][values["person"]] = values["right"]
    return f"/file/{values['id']}"


@app.action("/unshare/{id}/{person}")
def unshare(state: State, values: Mapping[str, str]) -> str:
    del find(state["files"], values["id"])["shared"][values["person"]]
    return f"/file/{values['id']}"


@app.action("/rename/{id}")
def rename(state: State, values: Mapping[str, str]) -> str:
    (name,) = required(values, "name")
    file = find(state["files"], values["id"])
    if any(each["name"] == name and each["folder"] == file["folder"] for each in state["files"]):
        raise Invalid(f"There is a file {name} already.")
    file["name"] = name
    return f"/folder/{file['folder']}"


@app.action("/move/{id}")
def move(state: State, values: Mapping[str, str]) -> str:
    if values["folder"] not in FOLDERS:
        raise Invalid("There is no such folder.")
    find(state["files"], values["id"])["folder"] = values["folder"]
    return f"/folder/{values['folder']}"


@app.action("/delete/{id}")
def delete(state: State, values: Mapping[str, str]) -> str:
    file = find(state["files"], values["id"])
    state["files"].remove(file)
    return f"/folder/{file['folder']}"
