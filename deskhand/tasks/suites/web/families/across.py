"""Families `web/across/*`: what one application says is needed in another."""

from __future__ import annotations

from collections.abc import Callable

from deskhand.tasks.abilities import Ability
from deskhand.tasks.suites.web.apps import booking, calendar, files, issues, mail, shop
from deskhand.tasks.suites.web.content import EVENTS, FAULT_TEXTS, FAULTS, PLACES, times
from deskhand.tasks.suites.web.families.forms import (
    booking_form,
    booking_text,
    both,
    fill_booking,
    fill_cart,
    fill_event,
    fill_issue,
    fill_reply,
    open_file,
    reply_form,
    submit,
)
from deskhand.tasks.suites.web.families.items import INBOX, inbox, new_goods, new_title, other_item, ranked
from deskhand.tasks.suites.web.scenario import Goal, State, WebScenario, go, see, web_family
from deskhand.tasks.task import Family

REQUEST = "In the shop, put what the email about {} asks for into the cart. Do not order yet"


def across_family(
    name: str, summary: str, *abilities: Ability, start: str = INBOX
) -> Callable[[Callable[[WebScenario], Goal]], Family]:
    """Return a decorator like `web_family`, for a hard family that needs several applications."""
    return web_family(name, start, "hard", summary, "carry data between programs", *abilities)


def inbox_message(web: WebScenario, text: str = "") -> State:
    """Return a message of the Inbox, which now begins with `text`."""
    message = web.pick(inbox(web))
    message["text"] = f"{text} {message['text']}".strip()
    return message


def other_person(web: WebScenario, person: str) -> str:
    return next(each for each in web.state["mail"]["people"] if each != person)


def buy_text(number: int, name: str, category: str) -> str:
    """Return how a message asks to buy something."""
    return f"Please buy {number} of the product called {name} ({category})."


@across_family(
    "across/invitation", "add the event of a message to the calendar", "fill in a form", "work in several steps"
)
def invitation(web: WebScenario) -> Goal:
    title, place = new_title(web, EVENTS, web.state["calendar"]["events"]), web.pick(list(PLACES[:4]))
    event = {"title": title, "day": web.pick(list(calendar.DAYS[1:])), "time": times(web.rng, 1)[0], "place": place}
    message = inbox_message(web, f"You are invited to {title} on {event['day']} at {event['time']}, place {place}.")
    return Goal(
        f"Add the event of the email about {message['subject']} to the calendar: title, day, time and place",
        (go(message["subject"]), see(title), go("Calendar"), *fill_event(event)),
        right=submit(calendar.create, event),
        wrong={
            "on another day": submit(calendar.create, event, day="Monday"),
            "without the place": submit(calendar.create, event, place=""),
            "the mail was deleted": both(submit(calendar.create, event), submit(mail.move, message, folder="Trash")),
        },
    )


@across_family(
    "across/complaint", "report what a message describes as an issue", "fill in a form", "work in several steps"
)
def complaint(web: WebScenario) -> Goal:
    title, text = new_title(web, FAULTS, web.state["issues"]["issues"]), web.pick(list(FAULT_TEXTS))
    message = inbox_message(web, f"{title}: {text}")
    form = {"title": title, "text": text, "bug": "on"}
    return Goal(
        f"The email about {message['subject']} begins with a title, a colon and one sentence. Report it as a new issue "
        "with this title, this sentence as the text, and the label bug",
        (go(message["subject"]), see(title), go("Issues"), *fill_issue(title, text, "bug")),
        right=submit(issues.create, form),
        wrong={
            "without the label": submit(issues.create, {"title": title, "text": text}),
            "the whole text": submit(issues.create, form, text=message["text"]),
            "the subject as the title": submit(issues.create, form, title=message["subject"]),
        },
    )


@across_family("across/request", "put what a message asks for into the cart", "find something", "work in several steps")
def request(web: WebScenario) -> Goal:
    good, number = web.pick(new_goods(web)), web.rng.randint(2, 9)
    message = inbox_message(web, buy_text(number, good["name"], good["category"]))
    other = other_item(web.state["shop"]["goods"], good)
    put = submit(shop.put, good, number=number)
    return Goal(
        REQUEST.format(message["subject"]),
        (go(message["subject"]), see(good["name"]), go("Shop"), *fill_cart(good, number)),
        right=put,
        wrong={
            "one less": submit(shop.put, good, number=number - 1),
            "another good": submit(shop.put, other, number=number),
            "ordered": both(put, submit(shop.order, {"name": "me", "town": "Oslo", "delivery": "Standard"})),
        },
    )


@across_family(
    "across/journey",
    "book a train to where an event takes place",
    "fill in a form",
    "read and compare",
    "work in several steps",
    start="/calendar/week",
)
def journey(web: WebScenario) -> Goal:
    event, trains = web.pick(web.state["calendar"]["events"]), web.state["booking"]["trains"]
    town = event["place"] = web.pick(trains)["to"]
    first, *_, last = ranked(trains, "time", to=town)
    form = booking_form(web.pick(web.state["mail"]["people"]), 2, "Aisle")
    return Goal(
        f"Book the first train of the day to the town where the event {event['title']} takes place: "
        f"{booking_text(form)}",
        (go(event["day"]), see(town), go("Trains"), *fill_booking(first, form)),
        right=submit(booking.book, form, id=first["id"]),
        wrong={
            "the last train": submit(booking.book, form, id=last["id"]),
            "another seat": submit(booking.book, form, id=first["id"], seat="Any"),
            "another town": submit(booking.book, form, id=other_item(trains, first, "to")["id"]),
        },
        max_steps=30,
    )


@across_family(
    "across/right_of_access",
    "look up in the file share what a message asks, and answer it",
    "find something",
    "work in several steps",
)
def right_of_access(web: WebScenario) -> Goal:
    file = web.pick(web.state["files"]["files"])
    message = inbox_message(web, f"Who has access to the file {file['name']} (folder {file['folder']})?")
    person = web.pick(web.state["files"]["people"])
    file["shared"] = {person: "may read"}
    form, stranger = reply_form(message, person), other_person(web, person)
    return Goal(
        f"The email about {message['subject']} asks who has access to a file. Look it up in the file share, and answer "
        "the email with the name only",
        (
            *(go(message["subject"]), see(file["name"]), go("Files"), *open_file(file), see(person)),
            *(go("Mail"), *fill_reply(message, person)),
        ),
        right=submit(mail.send, form),
        wrong={
            "another name": submit(mail.send, form, text=stranger),
            "to somebody else": submit(mail.send, form, to=other_person(web, message["sender"])),
            "more access": both(submit(mail.send, form), submit(files.share, file, person=stranger, right="may edit")),
        },
        max_steps=24,
    )
