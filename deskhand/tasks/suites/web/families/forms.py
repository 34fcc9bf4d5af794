"""Forms of the applications: the values that they send, the changes that follow, and the walks through them.

The families use these to say what the right end is, what is nearly right, and how the oracle does it. A function
`..._form` returns the values that a form sends. A function `fill_...` returns the walk that fills in a form and sends
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deskhand.tasks.suites.web.scenario import Act, Change, State, choose, fill, go, tick
from deskhand.tasks.suites.web.web_app import Action


def submit(action: Action, values: State, **different: Any) -> Change:
    """Return the change that an action makes with these values, of which `different` replaces some."""
    app = action.__module__.rpartition(".")[2]  # an application and its part of the state are named after its module
    return lambda state: action(state[app], {**values, **different})


def submit_each(action: Action, items: Iterable[State], **different: Any) -> Change:
    """Return the change that an action makes with each of the items, in order."""
    return both(*(submit(action, each, **different) for each in items))


def both(*changes: Change) -> Change:
    """Return the change that makes all of these, in order."""
    return lambda state: [change(state) for change in changes]


def twice(change: Change) -> Change:
    return both(change, change)


def reply_form(message: State, text: str) -> State:
    return {"to": message["sender"], "subject": f"Re: {message['subject']}", "text": text}


def fill_reply(message: State, text: str) -> tuple[Act, ...]:
    return go(message["subject"]), go("Reply"), fill("Text", text), go("Send")


def forward_form(message: State, person: str) -> State:
    return {"to": person, "subject": f"Fwd: {message['subject']}", "text": message["text"]}


def fill_forward(message: State, person: str) -> tuple[Act, ...]:
    return go(message["subject"]), go("Forward"), fill("To", person), go("Send")


def fill_cart(good: State, number: int) -> tuple[Act, ...]:
    """Return the walk that puts a product into the cart."""
    return go(good["category"]), go(good["name"]), choose("Number", str(number)), go("Add to cart")


def fill_order(form: State) -> tuple[Act, ...]:
    return fill("Name", form["name"]), fill("Town", form["town"]), choose("Delivery", form["delivery"]), go("Order")


def fill_event(event: State) -> tuple[Act, ...]:
    fields = fill("Title", event["title"]), choose("Day", event["day"]), fill("Time", event["time"])
    return go("New event"), *fields, fill("Place", event["place"]), go("Save")


def issue_form(issue: State, **different: Any) -> State:
    """Return what the form of an existing issue sends, with some values replaced."""
    new = {**issue, **different}
    return {"id": new["id"], "assignee": new["assignee"], **dict.fromkeys(new["labels"], "on")}


def fill_issue(title: str, text: str, label: str) -> tuple[Act, ...]:
    """Return the walk that reports an issue."""
    return go("New issue"), fill("Title", title), fill("Text", text), tick(label), go("Create")


def booking_form(name: str, travelers: int, seat: str) -> State:
    email = f"{name.lower()}@example.org"
    return {"name": name, "email": email, "travelers": str(travelers), "seat": seat, "terms": "on"}


def booking_text(form: State) -> str:
    """Return how an instruction names the fields of a booking."""
    travelers = "1 traveler" if form["travelers"] == "1" else f"{form['travelers']} travelers"
    return f"name {form['name']}, email {form['email']}, {travelers}, seat {form['seat']}, and accept the terms"


def fill_booking(train: State, form: State) -> tuple[Act, ...]:
    search = choose("Town", train["to"]), go("Show trains"), go(f"Book {train['time']}")
    fields = fill("Name", form["name"]), fill("Email", form["email"]), fill("Travelers", form["travelers"])
    return *search, *fields, choose("Seat", form["seat"]), tick("I accept the terms"), go("Book")


def open_file(file: State) -> tuple[Act, ...]:
    return go(file["folder"]), go(file["name"])
