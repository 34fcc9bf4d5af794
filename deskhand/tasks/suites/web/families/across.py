"""Families `web/across/*`: what one application says is needed in another."""

from __future__ import annotations

from deskhand.tasks.suites.web.apps import booking, calendar, issues, mail, shop
from deskhand.tasks.suites.web.content import EVENTS, FAULT_TEXTS, FAULTS, PLACES, times
from deskhand.tasks.suites.web.scenario import (
    Change,
    Goal,
    State,
    WebScenario,
    choose,
    fill,
    go,
    see,
    tick,
    web_family,
)

INBOX = "/mail/folder/Inbox"
REQUEST = "In the shop, put what the email about {} asks for into the cart. Do not order yet"


def inbox_message(web: WebScenario, text: str = "") -> State:
    """Return a message of the Inbox, which now begins with `text`."""
    message = web.pick([each for each in web.state["mail"]["messages"] if each["folder"] == "Inbox"])
    message["text"] = f"{text} {message['text']}".strip()
    return message


def other_item(web: WebScenario, app: str, items: str, **different: object) -> State:
    return next(each for each in web.state[app][items] if all(each[key] != value for key, value in different.items()))


def both(*changes: Change) -> Change:
    """Return the change that makes all of these, in order."""
    return lambda state: [change(state) for change in changes]


@web_family(
    "across/invitation",
    INBOX,
    "hard",
    "add the event of a message to the calendar",
    "carry data between programs",
    "fill in a form",
    "work in several steps",
)
def invitation(web: WebScenario) -> Goal:
    taken = {each["title"] for each in web.state["calendar"]["events"]}
    title, place = web.pick([each for each in EVENTS if each not in taken]), web.pick(list(PLACES[:4]))
    event = {"title": title, "day": web.pick(list(calendar.DAYS[1:])), "time": times(web.rng, 1)[0], "place": place}
    message = inbox_message(web, f"You are invited to {title} on {event['day']} at {event['time']}, place {place}.")
    fields = fill("Title", title), choose("Day", event["day"]), fill("Time", event["time"]), fill("Place", place)
    return Goal(
        f"Add the event of the email about {message['subject']} to the calendar: title, day, time and place",
        (go(message["subject"]), see(title), go("Calendar"), go("New event"), *fields, go("Save")),
        right=lambda state: calendar.create(state["calendar"], event),
        wrong={
            "on another day": lambda state: calendar.create(state["calendar"], {**event, "day": "Monday"}),
            "without the place": lambda state: calendar.create(state["calendar"], {**event, "place": ""}),
            "the mail was deleted": lambda state: [
                calendar.create(state["calendar"], event),
                mail.move(state["mail"], {"id": message["id"], "folder": "Trash"}),
            ],
        },
    )


@web_family(
    "across/complaint",
    INBOX,
    "hard",
    "report what a message describes as an issue",
    "carry data between programs",
    "fill in a form",
    "work in several steps",
)
def complaint(web: WebScenario) -> Goal:
    taken = {each["title"] for each in web.state["issues"]["issues"]}
    title, text = web.pick([each for each in FAULTS if each not in taken]), web.pick(list(FAULT_TEXTS))
    message = inbox_message(web, f"{title}: {text}")
    values = {"title": title, "text": text, "bug": "on"}
    fields = fill("Title", title), fill("Text", text), tick("bug")
    return Goal(
        f"The email about {message['subject']} begins with a title, a colon and one sentence. Report it as a new issue "
        "with this title, this sentence as the text, and the label bug",
        (go(message["subject"]), see(title), go("Issues"), go("New issue"), *fields, go("Create")),
        right=lambda state: issues.create(state["issues"], values),
        wrong={
            "without the label": lambda state: issues.create(state["issues"], {"title": title, "text": text}),
            "the whole text": lambda state: issues.create(state["issues"], {**values, "text": message["text"]}),
            "the subject as the title": lambda state: issues.create(
                state["issues"], {**values, "title": message["subject"]}
            ),
        },
    )


@web_family(
    "across/request",
    INBOX,
    "hard",
    "put what a message asks for into the cart",
    "carry data between programs",
    "find something",
    "work in several steps",
)
def request(web: WebScenario) -> Goal:
    in_cart = {line["good"] for line in web.state["shop"]["cart"]}
    good = web.pick([each for each in web.state["shop"]["goods"] if each["name"] not in in_cart])
    number = web.rng.randint(2, 9)
    message = inbox_message(web, f"Please buy {number} of the product called {good['name']} ({good['category']}).")
    values: State = {"id": good["id"], "number": number}
    other = other_item(web, "shop", "goods", name=good["name"])
    return Goal(
        REQUEST.format(message["subject"]),
        (
            *(go(message["subject"]), see(good["name"]), go("Shop"), go(good["category"]), go(good["name"])),
            *(choose("Number", str(number)), go("Add to cart")),
        ),
        right=lambda state: shop.put(state["shop"], values),
        wrong={
            "one less": lambda state: shop.put(state["shop"], {**values, "number": str(number - 1)}),
            "another good": lambda state: shop.put(state["shop"], {**values, "id": other["id"]}),
            "ordered": lambda state: [
                shop.put(state["shop"], values),
                shop.order(state["shop"], {"name": "me", "town": "Oslo", "delivery": "Standard"}),
            ],
        },
    )


@web_family(
    "across/journey",
    "/calendar/week",
    "hard",
    "book a train to where an event takes place",
    "carry data between programs",
    "fill in a form",
    "read and compare",
    "work in several steps",
)
def journey(web: WebScenario) -> Goal:
    event, town = web.pick(web.state["calendar"]["events"]), web.pick(web.state["booking"]["trains"])["to"]
    event["place"] = town
    found = [each for each in web.state["booking"]["trains"] if each["to"] == town]
    first, last = (pick(found, key=lambda each: each["time"]) for pick in (min, max))
    name = web.pick(web.state["mail"]["people"])
    email = f"{name.lower()}@example.org"
    values = {"id": first["id"], "name": name, "email": email, "travelers": "2", "seat": "Aisle", "terms": "on"}
    fields = fill("Name", name), fill("Email", email), fill("Travelers", "2"), choose("Seat", "Aisle")
    return Goal(
        f"Book the first train of the day to the town where the event {event['title']} takes place: name {name}, "
        f"email {email}, 2 travelers, seat Aisle, and accept the terms",
        (
            *(go(event["day"]), see(town), go("Trains"), choose("Town", town), go("Show trains")),
            *(go(f"Book {first['time']}"), *fields, tick("I accept the terms"), go("Book")),
        ),
        right=lambda state: booking.book(state["booking"], values),
        wrong={
            "the last train": lambda state: booking.book(state["booking"], {**values, "id": last["id"]}),
            "another seat": lambda state: booking.book(state["booking"], {**values, "seat": "Any"}),
            "another town": lambda state: booking.book(
                state["booking"], {**values, "id": other_item(web, "booking", "trains", to=town)["id"]}
            ),
        },
        max_steps=30,
    )


@web_family(
    "across/right_of_access",
    INBOX,
    "hard",
    "look up in the file share what a message asks, and answer it",
    "carry data between programs",
    "find something",
    "work in several steps",
)
def right_of_access(web: WebScenario) -> Goal:
    file = web.pick(web.state["files"]["files"])
    message = inbox_message(web, f"Who has access to the file {file['name']} (folder {file['folder']})?")
    person = web.pick(web.state["files"]["people"])
    file["shared"] = {person: "may read"}
    values = {"to": message["sender"], "subject": f"Re: {message['subject']}", "text": person}
    stranger = next(each for each in web.state["files"]["people"] if each != person)
    return Goal(
        f"The email about {message['subject']} asks who has access to a file. Look it up in the file share, and answer "
        "the email with the name only",
        (
            *(go(message["subject"]), see(file["name"]), go("Files"), go(file["folder"]), go(file["name"])),
            *(see(person), go("Mail"), go(message["subject"]), go("Reply"), fill("Text", person), go("Send")),
        ),
        right=lambda state: mail.send(state["mail"], values),
        wrong={
            "another name": lambda state: mail.send(state["mail"], {**values, "text": stranger}),
            "to somebody else": lambda state: mail.send(
                state["mail"], {**values, "to": next(each for each in state["mail"]["people"] if each != values["to"])}
            ),
            "more access": lambda state: [
                mail.send(state["mail"], values),
                state["files"]["files"][web.state["files"]["files"].index(file)]["shared"].update(
                    {stranger: "may edit"}
                ),
            ],
        },
        max_steps=24,
    )
