"""Booking of trains: a search, a list of trains, and a form whose fields are checked."""

from __future__ import annotations

import re
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

SEATS = ("Window", "Aisle", "Any")
app = WebApp("booking", "Trains", {"Search": "/search", "My bookings": "/bookings"})


def _towns(state: State) -> list[str]:
    return sorted({train["to"] for train in state["trains"]} | set(state["towns"]))


@app.view("/search")
def show_search(state: State, values: Mapping[str, str]) -> Page:
    return Page("Search", form("/trains", "Show trains", choice("town", "Town", _towns(state)), get=True))


@app.view("/trains")
def show_trains(state: State, values: Mapping[str, str]) -> Page:
    found = sorted((each for each in state["trains"] if each["to"] == values["town"]), key=lambda each: each["time"])
    if not found:
        return Page(f"Trains to {values['town']}", "<p>No train goes there this week.</p>")
    rows = [
        [each["time"], f"{each['price']} euros", item_link("train", each, f"Book {each['time']}")] for each in found
    ]
    return Page(f"Trains to {values['town']}", table(("Time", "Price", ""), rows))


@app.view("/train/{id}")
def show_train(state: State, values: Mapping[str, str]) -> Page:
    train = find(state["trains"], values["id"])
    fields = text_field("name", "Name"), text_field("email", "Email"), text_field("travelers", "Travelers")
    more = choice("seat", "Seat", SEATS), tick("terms", "I accept the terms")
    title = f"{train['time']} to {train['to']}"
    return Page(title, f"<p>{train['price']} euros</p>" + form(f"/book/{train['id']}", "Book", *fields, *more))


@app.view("/bookings")
def show_bookings(state: State, values: Mapping[str, str]) -> Page:
    rows = [
        [
            *(escape(str(each[name])) for name in ("town", "time", "name", "travelers", "seat")),
            form(f"/cancel/{each['id']}", "Cancel", inline=True),
        ]
        for each in state["bookings"]
    ]
    return Page("My bookings", table(("To", "Time", "Name", "Travelers", "Seat", ""), rows))


@app.action("/book/{id}")
def book(state: State, values: Mapping[str, str]) -> str:
    train = find(state["trains"], values["id"])
    name, email, travelers = required(values, "name", "email", "travelers")
    if not re.fullmatch(r"[^@\s]+@[^@\s]+\.[a-z]+", email):
        raise Invalid("The email must be like name@example.org.")
    if not (travelers.isdecimal() and 1 <= int(travelers) <= 6):
        raise Invalid("One to six travelers can be booked.")
    if "terms" not in values:
        raise Invalid("Please accept the terms.")
    if values["seat"] not in SEATS:
        raise Invalid("There is no such seat.")
    place = {"town": train["to"], "time": train["time"], "seat": values["seat"]}
    add(state["bookings"], **place, name=name, email=email, travelers=int(travelers))
    return "/bookings"


@app.action("/cancel/{id}")
def cancel(state: State, values: Mapping[str, str]) -> str:
    state["bookings"].remove(find(state["bookings"], values["id"]))
    return "/bookings"
