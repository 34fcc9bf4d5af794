"""Mail: folders of messages, reading, writing, replying, forwarding."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from deskhand.tasks.suites.web.web_app import (
    Invalid,
    Page,
    State,
    WebApp,
    add,
    find,
    form,
    item_link,
    link,
    required,
    table,
    text_field,
)

FOLDERS = ("Inbox", "Archive", "Sent", "Trash")
app = WebApp("mail", "Mail", {**{name: f"/folder/{name}" for name in FOLDERS}, "Write": "/write"})


@app.view("/folder/{folder}")
def show_folder(state: State, values: Mapping[str, str]) -> Page:
    shown = [each for each in state["messages"] if each["folder"] == values["folder"]]
    rows = [
        [
            escape(each["to"] if values["folder"] == "Sent" else each["sender"]),
            item_link("message", each, each["subject"]),
        ]
        for each in reversed(shown)
    ]
    return Page(values["folder"], table(("To" if values["folder"] == "Sent" else "From", "Subject"), rows))


@app.view("/message/{id}")
def show_message(state: State, values: Mapping[str, str]) -> Page:
    message = find(state["messages"], values["id"])
    about = f"<p>From: {escape(message['sender'])}<br>To: {escape(message['to'])}</p>"
    targets = {kind: f"/write?{kind.lower()}={message['id']}" for kind in ("Reply", "Forward")}
    links = "".join(f"<p>{link(path, kind)}</p>" for kind, path in targets.items())
    moves = "".join(
        form(f"/move/{message['id']}/{folder}", button, inline=True)
        for button, folder in (("Archive", "Archive"), ("Delete", "Trash"), ("Move to Inbox", "Inbox"))
        if folder != message["folder"]
    )
    text = escape(message["text"]).replace("\n", "<br>")
    return Page(message["subject"], f"{about}<p>{text}</p>{links}{moves}")


@app.view("/write")
def show_form(state: State, values: Mapping[str, str]) -> Page:
    to = subject = text = ""
    if key := values.get("reply") or values.get("forward"):
        message = find(state["messages"], key)
        if "reply" in values:
            to, subject = message["sender"], f"Re: {message['subject']}"
        else:
            subject, text = f"Fwd: {message['subject']}", message["text"]
    fields = text_field("to", "To", to), text_field("subject", "Subject", subject)
    return Page("New message", form("/send", "Send", *fields, text_field("text", "Text", text, long=True)))


@app.action("/send")
def send(state: State, values: Mapping[str, str]) -> str:
    to, subject = required(values, "to", "subject")
    if to not in state["people"]:
        raise Invalid(f"There is no address {to}.")
    add(state["messages"], folder="Sent", sender="me", to=to, subject=subject, text=values["text"].strip())
    return "/folder/Sent"


@app.action("/move/{id}/{folder}")
def move(state: State, values: Mapping[str, str]) -> str:
    message = find(state["messages"], values["id"])
    if values["folder"] not in FOLDERS:
        raise Invalid("There is no such folder.")
    before, message["folder"] = message["folder"], values["folder"]
    return f"/folder/{before}"
