"""Families `web/booking/*`: searching, booking and canceling trains."""

from __future__ import annotations

from deskhand.tasks.suites.web.apps import booking
from deskhand.tasks.suites.web.content import PEOPLE
from deskhand.tasks.suites.web.families.forms import (
    booking_form,
    booking_text,
    fill_booking,
    submit,
    submit_each,
    twice,
)
from deskhand.tasks.suites.web.families.items import having, other_item, ranked
from deskhand.tasks.suites.web.scenario import Goal, State, WebScenario, choose, go, see, web_family

SEARCH = "/booking/search"


def _form(web: WebScenario) -> State:
    return booking_form(web.pick(list(PEOPLE)), web.rng.randint(2, 6), web.pick(list(booking.SEATS[1:])))


def _goal(web: WebScenario, instruction: str, train: State, other: State) -> Goal:
    form = {**_form(web), "id": train["id"]}
    return Goal(
        f"{instruction}: {booking_text(form)}",
        fill_booking(train, form),
        right=submit(booking.book, form),
        wrong={
            "another train": submit(booking.book, form, id=other["id"]),
            "another seat": submit(booking.book, form, seat="Window"),
            "one traveler": submit(booking.book, form, travelers="1"),
            "twice": twice(submit(booking.book, form)),
        },
        max_steps=30,
    )


@web_family(
    "booking/train", SEARCH, "hard", "book a train", "fill in a form", "find something", "work in several steps"
)
def book_train(web: WebScenario) -> Goal:
    train = web.pick(web.state["booking"]["trains"])
    other = other_item(having(web.state["booking"]["trains"], to=train["to"]), train)
    return _goal(web, f"Book the train at {train['time']} to {train['to']}", train, other)


@web_family(
    "booking/cheapest", SEARCH, "hard", "book the cheapest train to a town", "fill in a form", "read and compare"
)
def book_cheapest(web: WebScenario) -> Goal:
    town = web.pick(web.state["booking"]["trains"])["to"]
    cheapest, second, *_ = ranked(web.state["booking"]["trains"], "price", to=town)
    return _goal(web, f"Book the cheapest train to {town}", cheapest, second)


@web_family("booking/cancel", SEARCH, "easy", "cancel a booking", "find something")
def cancel_booking(web: WebScenario) -> Goal:
    mine = web.state["booking"]["bookings"]
    booked = web.pick(mine)
    other = other_item(mine, booked)
    new = {**booked, "id": web.state["booking"]["trains"][0]["id"], "travelers": "2", "terms": "on"}
    return Goal(
        f"Cancel the booking of the train to {booked['town']}",
        (go("My bookings"), go("Cancel", booked["town"])),
        right=submit(booking.cancel, booked),
        wrong={
            "another booking": submit(booking.cancel, other),
            "both": submit_each(booking.cancel, [booked, other]),
            "another train booked": submit(booking.book, new),
        },
    )


@web_family(
    "booking/price",
    SEARCH,
    "medium",
    "say what the last train to a town costs",
    "read and compare",
    "answer a question",
)
def last_price(web: WebScenario) -> Goal:
    town = web.pick(web.state["booking"]["trains"])["to"]
    trains = ranked(web.state["booking"]["trains"], "time", to=town)
    return Goal(
        f"What does the last train of the day to {town} cost, in euros? Answer with the number only",
        (choose("Town", town), go("Show trains"), see(trains[-1]["time"])),
        answer=str(trains[-1]["price"]),
        wrong_answers=(*(str(each["price"]) for each in trains[:-1]), trains[-1]["time"]),
    )


@web_family(
    "booking/no_train", SEARCH, "medium", "book a train to a town without trains", "recognize an infeasible task"
)
def no_train(web: WebScenario) -> Goal:
    town = next(each for each in web.state["booking"]["towns"][::-1])
    return Goal(
        f"Book the cheapest train to {town}: {booking_text(_form(web))}",
        (choose("Town", town), go("Show trains")),
        infeasible=True,
    )


@web_family(
    "booking/travelers",
    SEARCH,
    "easy",
    "say for how many travelers a train is booked",
    "find something",
    "answer a question",
)
def travelers(web: WebScenario) -> Goal:
    booked = web.pick(web.state["booking"]["bookings"])
    count = booked["travelers"]
    return Goal(
        f"For how many travelers is the train to {booked['town']} booked? Answer with the number only",
        (go("My bookings"), see(booked["name"])),
        answer=str(count),
        wrong_answers=(str(count + 1), str(count - 1), booked["time"]),
    )


@web_family(
    "booking/cancel_missing", SEARCH, "easy", "cancel a booking that does not exist", "recognize an infeasible task"
)
def cancel_missing(web: WebScenario) -> Goal:
    town = web.pick(web.state["booking"]["towns"][3:])
    return Goal(f"Cancel the booking of the train to {town}", (go("My bookings"),), infeasible=True)
