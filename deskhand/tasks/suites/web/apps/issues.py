"""Issue tracker: issues with an assignee, labels, comments and a state."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from deskhand.tasks.suites.web.web_app import (
    Invalid,
    Page,
    State,
    WebApp,
    add,
    choice,
    find,
    form,
    item_link,
    required,
    table,
    text_field,
    tick,
)

LABELS = ("bug", "docs", "urgent")
NOBODY = "nobody"
app = WebApp("issues", "Issues", {"Open": "/list/open", "Closed": "/list/closed", "New issue": "/new"})


@app.view("/list/{state}")
def show_list(state: State, values: Mapping[str, str]) -> Page:
    rows = [
        [item_link("issue", each, each["title"]), escape(each["assignee"]), ", ".join(each["labels"])]
        for each in state["issues"]
        if each["state"] == values["state"]
    ]
    return Page(f"{values['state'].capitalize()} issues", table(("Title", "Assignee", "Labels"), rows))


@app.view("/issue/{id}")
def show_issue(state: State, values: Mapping[str, str]) -> Page:
    issue = find(state["issues"], values["id"])
    key = issue["id"]
    said = "".join(f"<p>Comment: {escape(text)}</p>" for text in issue["comments"])
    assignee = choice("assignee", "Assignee", (NOBODY, *state["people"]), issue["assignee"])
    labels = [tick(name, name, on=name in issue["labels"]) for name in LABELS]
    change = form(f"/change/{key}", "Save", assignee, *labels)
    comment = form(f"/comment/{key}", "Add comment", text_field("text", "New comment"))
    button = "Close issue" if issue["state"] == "open" else "Reopen issue"
    switch = form(f"/switch/{key}", button)
    body = f"<p>State: {issue['state']}. Reported by {escape(issue['reporter'])}.</p><p>{escape(issue['text'])}</p>"
    return Page(issue["title"], f"{body}{said}{change}{comment}{switch}")


@app.view("/new")
def show_new(state: State, values: Mapping[str, str]) -> Page:
    fields = text_field("title", "Title"), text_field("text", "Text", long=True)
    return Page("New issue", form("/create", "Create", *fields, *(tick(name, name) for name in LABELS)))


@app.action("/create")
def create(state: State, values: Mapping[str, str]) -> str:
    title, text = required(values, "title", "text")
    labels = [name for name in LABELS if name in values]
    more = {"assignee": NOBODY, "labels": labels, "comments": [], "state": "open", "reporter": "me"}
    issue = add(state["issues"], title=title, text=text, **more)
    return f"/issue/{issue['id']}"


@app.action("/change/{id}")
def change(state: State, values: Mapping[str, str]) -> str:
    if values["assignee"] not in (NOBODY, *state["people"]):
        raise Invalid("There is no such person.")
    labels = [name for name in LABELS if name in values]
    find(state["issues"], values["id"]).update(assignee=values["assignee"], labels=labels)
    return f"/issue/{values['id']}"


@app.action("/comment/{id}")
def comment(state: State, values: Mapping[str, str]) -> str:
    (text,) = required(values, "text")
    find(state["issues"], values["id"])["comments"].append(text)
    return f"/issue/{values['id']}"


@app.action("/switch/{id}")
def switch(state: State, values: Mapping[str, str]) -> str:
    issue = find(state["issues"], values["id"])
    issue["state"] = "closed" if issue["state"] == "open" else "open"
    return f"/list/{'open' if issue['state'] == 'closed' else 'closed'}"
