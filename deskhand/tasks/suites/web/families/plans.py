"""More families `web/across/*`: what an event, an issue or a booking says is needed in another application."""

from __future__ import annotations

from deskhand.tasks.suites.web.apps import booking, calendar, files, issues, mail, shop
from deskhand.tasks.suites.web.content import times
from deskhand.tasks.suites.web.families.across import across_family, inbox_message, other_person
from deskhand.tasks.suites.web.families.forms import (
    booking_form,
    booking_text,
    both,
    fill_booking,
    fill_event,
    fill_forward,
    fill_issue,
    fill_order,
    forward_form,
    issue_form,
    open_file,
    submit,
)
from deskhand.tasks.suites.web.families.items import OPEN, having, open_issues, other_item, ranked
from deskhand.tasks.suites.web.scenario import Goal, WebScenario, choose, fill, go, see


@across_family(
    "across/departure",
    "add the departure of a booked train to the calendar",
    "fill in a form",
    "work in several steps",
    start="/booking/bookings",
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
        (see(booked["town"]), go("Calendar"), *fill_event(event)),
        right=submit(calendar.create, event),
        wrong={
            "at the time of another train": submit(calendar.create, event, time=other["time"]),
            "on another day": submit(calendar.create, event, day=calendar.DAYS[0]),
            "the booking is cancelled": both(submit(calendar.create, event), submit(booking.cancel, booked)),
        },
    )


@across_family(
    "across/delivery",
    "order to the place of an event",
    "fill in a form",
    "work in several steps",
    start="/calendar/week",
)
def delivery(web: WebScenario) -> Goal:
    event, name = web.pick(web.state["calendar"]["events"]), web.pick(web.state["mail"]["people"])
    town, other = web.rng.sample(web.state["booking"]["towns"], 2)
    event["place"] = town
    form = {"name": name, "town": town, "delivery": "Express"}
    return Goal(
        f"Order what is in the cart of the shop: name {name}, delivery Express, and the town is the place of the event "
        f"{event['title']} in the calendar",
        (go(event["day"]), see(town), go("Shop"), go("Cart"), *fill_order(form)),
        right=submit(shop.order, form),
        wrong={
            "to another town": submit(shop.order, form, town=other),
            "by another delivery": submit(shop.order, form, delivery="Standard"),
            "the event is cancelled too": both(submit(shop.order, form), submit(calendar.cancel, event)),
        },
    )


@across_family(
    "across/handover", "close an issue and write to its reporter", "fill in a form", "work in several steps", start=OPEN
)
def handover(web: WebScenario) -> Goal:
    issue = web.pick(open_issues(web))
    title, person = issue["title"], issue["reporter"]
    closed = submit(issues.switch, issue)
    form = {"to": person, "subject": title, "text": "It works again"}
    return Goal(
        f"In the issue tracker, close the issue {title}. Then write an email to the person who reported it: subject "
        f"{title}, text It works again",
        (
            *(go(title), see(person), go("Close issue"), go("Mail"), go("Write"), fill("To", person)),
            *(fill("Subject", title), fill("Text", "It works again"), go("Send")),
        ),
        right=both(closed, submit(mail.send, form)),
        wrong={
            "the issue is open": submit(mail.send, form),
            "to somebody else": both(closed, submit(mail.send, form, to=other_person(web, person))),
            "without the text": both(closed, submit(mail.send, form, text="")),
        },
    )


@across_family(
    "across/sold_out_report",
    "find what is sold out and report it as an issue",
    "fill in a form",
    "find something",
    "work in several steps",
    start="/shop/category/Kitchen",
)
def sold_out_report(web: WebScenario) -> Goal:
    category = web.pick(list(shop.CATEGORIES))
    goods = having(web.state["shop"]["goods"], category=category)
    index = web.rng.randrange(2, len(goods))
    goods[index]["stock"] = 0
    name = goods[index]["name"]
    looks = [act for each in goods[: index + 1] for act in (go(category), go(each["name"]))]
    form = {"title": name, "text": "Sold out", "urgent": "on"}
    return Goal(
        f"One of the products in the category {category} of the shop is sold out. Report it as a new issue: the title "
        "is the name of the product, the text is Sold out, the label is urgent",
        (*looks, see("Sold out"), go("Issues"), *fill_issue(name, "Sold out", "urgent")),
        right=submit(issues.create, form),
        wrong={
            "another good": submit(issues.create, form, title=goods[0]["name"]),
            "another label too": submit(issues.create, form, bug="on"),
            "without a text of that kind": submit(issues.create, form, text=name),
        },
        max_steps=32,
    )


@across_family(
    "across/farewell",
    "unassign a person's issue, revoke a share, and delete a message",
    "find something",
    "work in several steps",
)
def farewell(web: WebScenario) -> Goal:
    message = inbox_message(web)
    person = message["sender"] = web.pick(web.state["issues"]["people"])
    issue, file = web.pick(open_issues(web)), web.pick(web.state["files"]["files"])
    issue["assignee"], file["shared"][person] = person, "may edit"
    deleted = submit(mail.move, message, folder="Trash")
    stopped = submit(files.unshare, file, person=person)
    given_up = submit(issues.change, issue_form(issue, assignee=issues.NOBODY))
    return Goal(
        f"The person who wrote the email about {message['subject']} leaves. Delete this email, take away the access of "
        f"the person to the file {file['name']} (folder {file['folder']}), and assign the issue {issue['title']} to "
        "nobody",
        (
            *(go(message["subject"]), see(person), go("Delete"), go("Files"), *open_file(file)),
            *(go("Stop", row=person), go("Issues"), go(issue["title"]), choose("Assignee", issues.NOBODY), go("Save")),
        ),
        right=both(deleted, stopped, given_up),
        wrong={
            "the mail is still there": both(stopped, given_up),
            "the mail is archived": both(submit(mail.move, message, folder="Archive"), stopped, given_up),
            "the file is still shared": both(deleted, given_up),
            "the issue is still assigned": both(deleted, stopped),
        },
        max_steps=28,
    )


@across_family(
    "across/trip",
    "book the cheapest train to a town and add it to the calendar",
    "fill in a form",
    "read and compare",
    "work in several steps",
    start="/booking/search",
)
def trip(web: WebScenario) -> Goal:
    trains = web.state["booking"]["trains"]
    town = web.pick(trains)["to"]
    train, second, *_ = ranked(trains, "price", to=town)
    form, day = booking_form(web.pick(web.state["mail"]["people"]), 1, "Any"), web.pick(list(calendar.DAYS[1:]))
    event = {"title": f"Train to {town}", "day": day, "time": train["time"], "place": "Station"}
    booked, added = submit(booking.book, form, id=train["id"]), submit(calendar.create, event)
    elsewhere = submit(booking.book, form, id=other_item(trains, train, "to")["id"])
    return Goal(
        f"Book the cheapest train to {town}: {booking_text(form)}. Then add it to the calendar: title "
        f"{event['title']}, day {day}, the time of its departure, place Station",
        (*fill_booking(train, form), go("Calendar"), *fill_event(event)),
        right=both(booked, added),
        wrong={
            "another train": both(
                submit(booking.book, form, id=second["id"]), submit(calendar.create, event, time=second["time"])
            ),
            "it is not in the calendar": booked,
            "at another time": both(booked, submit(calendar.create, event, time=second["time"])),
            "to another town": both(elsewhere, added),
        },
        max_steps=36,
    )


@across_family(
    "across/for_assignee",
    "forward a message to the assignee of an issue",
    "find something",
    "work in several steps",
    start=OPEN,
)
def for_assignee(web: WebScenario) -> Goal:
    message, issue = inbox_message(web), web.pick(open_issues(web))
    person = issue["assignee"] = web.pick(
        [each for each in web.state["issues"]["people"] if each not in (message["sender"], issue["reporter"])]
    )
    form = forward_form(message, person)
    return Goal(
        f"Forward the email about {message['subject']}, with its text and subject, to the person to whom the issue "
        f"{issue['title']} is assigned",
        (see(issue["title"]), see(person), go("Mail"), *fill_forward(message, person)),
        right=submit(mail.send, form),
        wrong={
            "to its reporter": submit(mail.send, form, to=issue["reporter"]),
            "to its sender": submit(mail.send, form, to=message["sender"]),
            "without its text": submit(mail.send, form, text=""),
        },
    )
