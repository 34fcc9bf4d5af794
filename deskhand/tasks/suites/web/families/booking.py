"""Families `web/booking/*`: searching, booking and canceling trains."""

from __future__ import annotations

from deskhand.tasks.suites.web.apps import booking
from deskhand.tasks.suites.web.content import PEOPLE
from deskhand.tasks.suites.web.scenario import Act, Goal, State, WebScenario, choose, fill, go, see, tick, web_family

SEARCH = "/booking/search"


def _details(web: WebScenario) -> State:
    name = web.pick(list(PEOPLE))
    more = {"travelers": str(web.rng.randint(2, 6)), "seat": web.pick(list(booking.SEATS[1:])), "terms": "on"}
    return {"name": name, "email": f"{name.lower()}@example.org", **more}


def _told(values: State) -> str:
    return (
        f"name {values['name']}, email {values['email']}, {values['travelers']} travelers, "
        f"seat {values['seat']}, and accept the terms"
    )


def _walk(train: State, values: State) -> tuple[Act, ...]:
    fields = fill("Name", values["name"]), fill("Email", values["email"]), fill("Travelers", values["travelers"])
    search = choose("Town", train["to"]), go("Show trains"), go(f"Book {train['time']}")
    return (*search, *fields, choose("Seat", values["seat"]), tick("I accept the terms"), go("Book"))


def _goal(web: WebScenario, instruction: str, train: State, other: State) -> Goal:
    values = _details(web)

    def booked(which: State, **changes: str) -> State:
        return {**values, **changes, "id": which["id"]}

    return Goal(
        f"{instruction}: {_told(values)}",
        _walk(train, values),
        right=lambda state: booking.book(state["booking"], booked(train)),
        wrong={
            "another train": lambda state: booking.book(state["booking"], booked(other)),
            "another seat": lambda state: booking.book(state["booking"], booked(train, seat="Window")),
            "one traveler": lambda state: booking.book(state["booking"], booked(train, travelers="1")),
            "twice": lambda state: [booking.book(state["booking"], booked(train)) for _ in range(2)],
        },
        max_steps=30,
    )


@web_family(
    "booking/train", SEARCH, "hard", "book a train", "fill in a form", "find something", "work in several steps"
)
def book_train(web: WebScenario) -> Goal:
    train = web.pick(web.state["booking"]["trains"])
    other = next(each for each in web.state["booking"]["trains"] if each["to"] == train["to"] and each is not train)
    return _goal(web, f"Book the train at {train['time']} to {train['to']}", train, other)


@web_family(
    "booking/cheapest", SEARCH, "hard", "book the cheapest train to a town", "fill in a form", "read and compare"
)
def book_cheapest(web: WebScenario) -> Goal:
    town = web.pick(web.state["booking"]["trains"])["to"]
    trains = sorted(
        (each for each in web.state["booking"]["trains"] if each["to"] == town), key=lambda each: each["price"]
    )
    return _goal(web, f"Book the cheapest train to {town}", trains[0], trains[1])


@web_family("booking/cancel", SEARCH, "easy", "cancel a booking", "find something")
def cancel_booking(web: WebScenario) -> Goal:
    mine = web.state["booking"]["bookings"]
    booked = web.pick(mine)
    other = next(each for each in mine if each is not booked)
    new = {**booked, "id": web.state["booking"]["trains"][0]["id"], "travelers": "2", "terms": "on"}
    return Goal(
        f"Cancel the booking of the train to {booked['town']}",
        (go("My bookings"), go("Cancel", booked["town"])),
        right=lambda state: booking.cancel(state["booking"], booked),
        wrong={
            "another booking": lambda state: booking.cancel(state["booking"], other),
            "both": lambda state: [booking.cancel(state["booking"], each) for each in (booked, other)],
            "another train booked": lambda state: booking.book(state["booking"], new),
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
    trains = sorted(
        (each for each in web.state["booking"]["trains"] if each["to"] == town), key=lambda each: each["time"]
    )
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
        f"Book the cheapest train to {town}: {_told(_details(web))}",
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
