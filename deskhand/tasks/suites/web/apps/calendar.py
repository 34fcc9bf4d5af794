"""Calendar: the events of a week, which can be added, changed and canceled."""

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
)

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
app = WebApp("calendar", "Calendar", {"Week": "/week", **{day: f"/day/{day}" for day in DAYS}, "New event": "/new"})


def _fields(day: str = "Monday", time: str = "", title: str = "", place: str = "") -> list[str]:
    texts = text_field("title", "Title", title), text_field("time", "Time", time), text_field("place", "Place", place)
    return [texts[0], choice("day", "Day", DAYS, day), *texts[1:]]


def _checked(values: Mapping[str, str]) -> dict[str, str]:
    title, day, time = required(values, "title", "day", "time")
    if not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", time):
        raise Invalid("The time must be like 09:30.")
    if day not in DAYS:
        raise Invalid("There is no such day.")
    return {"day": day, "time": time, "title": title, "place": values["place"].strip()}


@app.view("/week")
def show_week(state: State, values: Mapping[str, str]) -> Page:
    def cell(day: str) -> str:
        events = sorted((each for each in state["events"] if each["day"] == day), key=lambda each: each["time"])
        return "<br>".join(f"{each['time']} {item_link('event', each, each['title'])}" for each in events)

    return Page("This week", table(DAYS, [[cell(day) for day in DAYS]]))


@app.view("/day/{day}")
def show_day(state: State, values: Mapping[str, str]) -> Page:
    events = sorted((each for each in state["events"] if each["day"] == values["day"]), key=lambda each: each["time"])
    rows = [[each["time"], item_link("event", each, each["title"]), escape(each["place"])] for each in events]
    return Page(values["day"], table(("Time", "Title", "Place"), rows))


@app.view("/event/{id}")
def show_event(state: State, values: Mapping[str, str]) -> Page:
    event = find(state["events"], values["id"])
    fields = _fields(**{name: event[name] for name in ("day", "time", "title", "place")})
    cancel = form(f"/cancel/{event['id']}", "Cancel event")
    return Page(event["title"], form(f"/change/{event['id']}", "Save", *fields) + cancel)


@app.view("/new")
def show_new(state: State, values: Mapping[str, str]) -> Page:
    return Page("New event", form("/add", "Save", *_fields()))


@app.action("/add")
def create(state: State, values: Mapping[str, str]) -> str:
    add(state["events"], **_checked(values))
    return "/week"


@app.action("/change/{id}")
def change(state: State, values: Mapping[str, str]) -> str:
    find(state["events"], values["id"]).update(_checked(values))
    return "/week"


@app.action("/cancel/{id}")
def cancel(state: State, values: Mapping[str, str]) -> str:
    state["events"].remove(find(state["events"], values["id"]))
    return "/week"
