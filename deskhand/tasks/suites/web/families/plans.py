"""More families `web/across/*`: what an event, an issue or a booking says is needed in another application."""

from __future__ import annotations

from deskhand.tasks.suites.web.apps import booking, calendar, files, issues, mail, shop
from deskhand.tasks.suites.web.content import times
from deskhand.tasks.suites.web.families.across import INBOX, both, inbox_message, other_item
from deskhand.tasks.suites.web.scenario import (
    Act,
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


def _create(**event: str) -> Change:
    return lambda state: calendar.create(state["calendar"], event)


def _new_event(title: str, day: str, time: str, place: str) -> tuple[Act, ...]:
    """Return the walk that adds an event to the calendar."""
    fields = fill("Title", title), choose("Day", day), fill("Time", time), fill("Place", place)
    return go("Calendar"), go("New event"), *fields, go("Save")


@web_family(
    "across/departure",
    "/booking/bookings",
    "hard",
    "add the departure of a booked train to the calendar",
    "carry data between programs",
    "fill in a form",
    "work in several steps",
)
def departure(web: WebScenario) -> Goal:
    booked, other = web.rng.sample(web.state["booking"]["bookings"], 2)
    if other["time"] == booked["time"]:
        other["time"] = next(each for each in times(web.rng, 2) if each != booked["time"])
    day, title = web.pick(list(calendar.DAYS[1:])), f"Train to {booked['town']}"
    event = {"title": title, "day": day, "time": booked["time"], "place": "Station"}
    return Goal(
        f"Add the booked train to {booked['town']} to the calendar: title {title}, day {day}, the time of its "
        "departure, place Station",
        (see(booked["town"]), *_new_event(**event)),
        right=_create(**event),
        wrong={
            "at the time of another train": _create(**{**event, "time": other["time"]}),
            "on another day": _create(**{**event, "day": calendar.DAYS[0]}),
            "the booking is cancelled": both(
                _create(**event), lambda state: booking.cancel(state["booking"], {"id": booked["id"]})
            ),
        },
    )


@web_family(
    "across/delivery",
    "/calendar/week",
    "hard",
    "order to the place of an event",
    "carry data between programs",
    "fill in a form",
    "work in several steps",
)
def delivery(web: WebScenario) -> Goal:
    event, name = web.pick(web.state["calendar"]["events"]), web.pick(web.state["mail"]["people"])
    town, other = web.rng.sample(web.state["booking"]["towns"], 2)
    event["place"] = town
    values = {"name": name, "town": town, "delivery": "Express"}

    def order(**different: str) -> Change:
        return lambda state: shop.order(state["shop"], {**values, **different})

    return Goal(
        f"Order what is in the cart of the shop: name {name}, delivery Express, and the town is the place of the event "
        f"{event['title']} in the calendar",
        (
            *(go(event["day"]), see(town), go("Shop"), go("Cart"), fill("Name", name), fill("Town", town)),
            *(choose("Delivery", "Express"), go("Order")),
        ),
        right=order(),
        wrong={
            "to another town": order(town=other),
            "by another delivery": order(delivery="Standard"),
            "the event is cancelled too": both(
                order(), lambda state: calendar.cancel(state["calendar"], {"id": event["id"]})
            ),
        },
    )


@web_family(
    "across/handover",
    "/issues/list/open",
    "hard",
    "close an issue and write to its reporter",
    "carry data between programs",
    "fill in a form",
    "work in several steps",
)
def handover(web: WebScenario) -> Goal:
    issue = web.pick([each for each in web.state["issues"]["issues"] if each["state"] == "open"])
    title, person = issue["title"], issue["reporter"]
    stranger = next(each for each in web.state["mail"]["people"] if each != person)

    def sent(**different: str) -> Change:
        values = {"to": person, "subject": title, "text": "It works again", **different}
        return lambda state: mail.send(state["mail"], values)

    def closed(state: State) -> None:
        issues.switch(state["issues"], {"id": issue["id"]})

    return Goal(
        f"In the issue tracker, close the issue {title}. Then write an email to the person who reported it: subject "
        f"{title}, text It works again",
        (
            *(go(title), see(person), go("Close issue"), go("Mail"), go("Write"), fill("To", person)),
            *(fill("Subject", title), fill("Text", "It works again"), go("Send")),
        ),
        right=both(closed, sent()),
        wrong={
            "the issue is open": sent(),
            "to somebody else": both(closed, sent(to=stranger)),
            "without the text": both(closed, sent(text="")),
        },
    )


@web_family(
    "across/sold_out_report",
    "/shop/category/Kitchen",
    "hard",
    "find what is sold out and report it as an issue",
    "carry data between programs",
    "fill in a form",
    "find something",
    "work in several steps",
)
def sold_out_report(web: WebScenario) -> Goal:
    category = web.pick(list(shop.CATEGORIES))
    goods = [each for each in web.state["shop"]["goods"] if each["category"] == category]
    index = web.rng.randrange(2, len(goods))
    goods[index]["stock"] = 0
    name = goods[index]["name"]
    looks = [act for each in goods[: index + 1] for act in (go(category), go(each["name"]))]
    values = {"title": name, "text": "Sold out", "urgent": "on"}

    def create(**different: str) -> Change:
        return lambda state: issues.create(state["issues"], {**values, **different})

    return Goal(
        f"One of the products in the category {category} of the shop is sold out. Report it as a new issue: the title "
        "is the name of the product, the text is Sold out, the label is urgent",
        (
            *(*looks, see("Sold out"), go("Issues"), go("New issue"), fill("Title", name), fill("Text", "Sold out")),
            *(tick("urgent"), go("Create")),
        ),
        right=create(),
        wrong={
            "another good": create(title=goods[0]["name"]),
            "another label too": create(bug="on"),
            "without a text of that kind": create(text=name),
        },
        max_steps=32,
    )


@web_family(
    "across/farewell",
    INBOX,
    "hard",
    "unassign a person's issue, revoke a share, and delete a message",
    "carry data between programs",
    "find something",
    "work in several steps",
)
def farewell(web: WebScenario) -> Goal:
    message = inbox_message(web)
    person = message["sender"] = web.pick(web.state["issues"]["people"])
    issue = web.pick([each for each in web.state["issues"]["issues"] if each["state"] == "open"])
    file = web.pick(web.state["files"]["files"])
    issue["assignee"], file["shared"][person] = person, "may edit"
    given = {"id": issue["id"], "assignee": issues.NOBODY, **dict.fromkeys(issue["labels"], "on")}

    def given_up(state: State) -> None:
        issues.change(state["issues"], given)

    def stopped(state: State) -> None:
        files.unshare(state["files"], {"id": file["id"], "person": person})

    def put(folder: str) -> Change:
        return lambda state: mail.move(state["mail"], {"id": message["id"], "folder": folder})

    return Goal(
        f"The person who wrote the email about {message['subject']} leaves. Delete this email, take away the access of "
        f"the person to the file {file['name']} (folder {file['folder']}), and assign the issue {issue['title']} to "
        "nobody",
        (
            *(go(message["subject"]), see(person), go("Delete"), go("Files"), go(file["folder"]), go(file["name"])),
            *(go("Stop", row=person), go("Issues"), go(issue["title"]), choose("Assignee", issues.NOBODY), go("Save")),
        ),
        right=both(put("Trash"), stopped, given_up),
        wrong={
            "the mail is still there": both(stopped, given_up),
            "the mail is archived": both(put("Archive"), stopped, given_up),
            "the file is still shared": both(put("Trash"), given_up),
            "the issue is still assigned": both(put("Trash"), stopped),
        },
        max_steps=28,
    )


@web_family(
    "across/trip",
    "/booking/search",
    "hard",
    "book the cheapest train to a town and add it to the calendar",
    "carry data between programs",
    "fill in a form",
    "read and compare",
    "work in several steps",
)
def trip(web: WebScenario) -> Goal:
    town = web.pick(web.state["booking"]["trains"])["to"]
    by_price = sorted((each for each in web.state["booking"]["trains"] if each["to"] == town), key=lambda e: e["price"])
    train, name, day = by_price[0], web.pick(web.state["mail"]["people"]), web.pick(list(calendar.DAYS[1:]))
    values = {"name": name, "email": f"{name.lower()}@example.org", "travelers": "1", "seat": "Any", "terms": "on"}
    event = {"title": f"Train to {town}", "day": day, "time": train["time"], "place": "Station"}
    fields = fill("Name", name), fill("Email", values["email"]), fill("Travelers", "1"), choose("Seat", "Any")

    def book(which: State) -> Change:
        return lambda state: booking.book(state["booking"], {**values, "id": which["id"]})

    return Goal(
        f"Book the cheapest train to {town}: name {name}, email {values['email']}, 1 traveler, seat Any, and accept "
        f"the terms. Then add it to the calendar: title {event['title']}, day {day}, the time of its departure, "
        "place Station",
        (
            *(choose("Town", town), go("Show trains"), go(f"Book {train['time']}"), *fields),
            *(tick("I accept the terms"), go("Book"), *_new_event(**event)),
        ),
        right=both(book(train), _create(**event)),
        wrong={
            "another train": both(book(by_price[1]), _create(**{**event, "time": by_price[1]["time"]})),
            "it is not in the calendar": book(train),
            "at another time": both(book(train), _create(**{**event, "time": by_price[1]["time"]})),
            "to another town": both(book(other_item(web, "booking", "trains", to=town)), _create(**event)),
        },
        max_steps=36,
    )


@web_family(
    "across/for_assignee",
    "/issues/list/open",
    "hard",
    "forward a message to the assignee of an issue",
    "carry data between programs",
    "find something",
    "work in several steps",
)
def for_assignee(web: WebScenario) -> Goal:
    message = inbox_message(web)
    subject, text = message["subject"], message["text"]
    issue = web.pick([each for each in web.state["issues"]["issues"] if each["state"] == "open"])
    person = issue["assignee"] = web.pick(
        [each for each in web.state["issues"]["people"] if each not in (message["sender"], issue["reporter"])]
    )

    def forwarded(**different: str) -> Change:
        values = {"to": person, "subject": f"Fwd: {subject}", "text": text, **different}
        return lambda state: mail.send(state["mail"], values)

    return Goal(
        f"Forward the email about {subject}, with its text and subject, to the person to whom the issue "
        f"{issue['title']} is assigned",
        (
            *(see(issue["title"]), see(person), go("Mail"), go(subject), go("Forward"), fill("To", person)),
            go("Send"),
        ),
        right=forwarded(),
        wrong={
            "to its reporter": forwarded(to=issue["reporter"]),
            "to its sender": forwarded(to=message["sender"]),
            "without its text": forwarded(text=""),
        },
    )
