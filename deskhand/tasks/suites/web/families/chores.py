"""More families `web/across/*`: a message or an issue says what has to be done, and often that it is done."""

from __future__ import annotations

from pathlib import PurePath

from deskhand.tasks.suites.web.apps import booking, calendar, files, issues, mail
from deskhand.tasks.suites.web.content import PLACES
from deskhand.tasks.suites.web.families.across import across_family, inbox_message
from deskhand.tasks.suites.web.families.forms import both, fill_reply, open_file, reply_form, submit, submit_each
from deskhand.tasks.suites.web.families.items import OPEN, having, new_file_name, open_issues, other_item
from deskhand.tasks.suites.web.scenario import Act, Goal, WebScenario, fill, go, see


@across_family(
    "across/canceled_trip", "cancel a train as a message asks, and answer it", "fill in a form", "work in several steps"
)
def canceled_trip(web: WebScenario) -> Goal:
    booked, other = web.rng.sample(web.state["booking"]["bookings"], 2)
    message = inbox_message(web, f"Please cancel the train to {booked['town']}.")
    canceled, form = submit(booking.cancel, booked), reply_form(message, "Canceled")
    answered = submit(mail.send, form)
    return Goal(
        f"Cancel the booked train that the email about {message['subject']} names. Then answer the email with the word "
        "Canceled only",
        (
            *(go(message["subject"]), see(booked["town"]), go("Trains"), go("My bookings")),
            *(go("Cancel", row=booked["town"]), go("Mail"), *fill_reply(message, "Canceled")),
        ),
        right=both(canceled, answered),
        wrong={
            "another train": both(submit(booking.cancel, other), answered),
            "it is not answered": canceled,
            "it is still booked": answered,
            "by another text": both(canceled, submit(mail.send, form, text=f"Canceled {booked['town']}")),
        },
    )


@across_family(
    "across/promise", "add what a message says about an issue as a comment", "fill in a form", "work in several steps"
)
def promise(web: WebScenario) -> Goal:
    issue = web.pick(open_issues(web))
    day, other_day = web.rng.sample(calendar.DAYS, 2)
    message = inbox_message(web, f"The issue {issue['title']} will be fixed on {day}.")
    other = other_item(web.state["issues"]["issues"], issue)
    commented = submit(issues.comment, issue, text=day)
    return Goal(
        f"The email about {message['subject']} says on which day an issue will be fixed. Add the day of the week, and "
        "nothing else, as a comment to this issue",
        (
            *(go(message["subject"]), see(issue["title"]), go("Issues"), go(issue["title"])),
            *(fill("New comment", day), go("Add comment")),
        ),
        right=commented,
        wrong={
            "another day": submit(issues.comment, issue, text=other_day),
            "the whole sentence": submit(issues.comment, issue, text=f"It will be fixed on {day}"),
            "another issue": submit(issues.comment, other, text=day),
            "the issue is closed": both(commented, submit(issues.switch, issue)),
        },
    )


@across_family(
    "across/file_name",
    "rename a file as an issue says, and close the issue",
    "fill in a form",
    "work in several steps",
    start=OPEN,
)
def file_name(web: WebScenario) -> Goal:
    issue, file = web.pick(open_issues(web)), web.pick(web.state["files"]["files"])
    other = other_item(web.state["files"]["files"], file)
    name = new_file_name(web, PurePath(file["name"]).suffix)
    issue["text"] = f"The file {file['name']} (folder {file['folder']}) should be called {name}."
    renamed, closed = submit(files.rename, file, name=name), submit(issues.switch, issue)
    return Goal(
        f"In the file share, rename a file as the issue {issue['title']} says. Then close the issue",
        (
            *(go(issue["title"]), see(name), go("Files"), *open_file(file), fill("Name", name), go("Rename")),
            *(go("Issues"), go(issue["title"]), go("Close issue")),
        ),
        right=both(renamed, closed),
        wrong={
            "the issue is open": renamed,
            "the file has its old name": closed,
            "another file": both(submit(files.rename, other, name=name), closed),
            "without the end of the name": both(submit(files.rename, file, name=PurePath(name).stem), closed),
        },
    )


@across_family(
    "across/closed_room",
    "move all events out of a room that an issue names",
    "fill in a form",
    "find something",
    "work in several steps",
    start=OPEN,
)
def closed_room(web: WebScenario) -> Goal:
    issue = web.pick(open_issues(web))
    room, other = web.rng.sample(PLACES[:4], 2)
    events = web.state["calendar"]["events"]
    for event in having(events, place=room):
        event["place"] = other
    *moved, elsewhere = web.rng.sample(events, 3)
    elsewhere["place"] = other
    for event in moved:
        event["place"] = room
    issue["text"] = f"Nobody can use {room} this week."
    walk: list[Act] = [go(issue["title"]), see(room), go("Calendar")]
    for day in calendar.DAYS:
        walk.append(go(day))
        for event in having(moved, day=day):
            walk += [go(event["title"]), fill("Place", "Online"), go("Save"), go(day)]
    return Goal(
        f"The issue {issue['title']} names a room that is closed. In the calendar, change the place of all events in "
        "this room to Online",
        tuple(walk),
        right=submit_each(calendar.change, moved, place="Online"),
        wrong={
            "only one event": submit(calendar.change, moved[0], place="Online"),
            "another event too": submit_each(calendar.change, [*moved, elsewhere], place="Online"),
            "to another room": submit_each(calendar.change, moved, place=other),
        },
        max_steps=32,
    )


@across_family(
    "across/file_missing",
    "share a file that does not exist with the sender of a message",
    "recognize an infeasible task",
)
def file_missing(web: WebScenario) -> Goal:
    name = new_file_name(web, ".odt")
    message = inbox_message(web, f"May I edit the file {name} in the folder {web.pick(list(files.FOLDERS))}?")
    looks = [go(folder) for folder in files.FOLDERS]
    return Goal(
        f"The person who wrote the email about {message['subject']} asks for a file of the file share. Share it with "
        "the person, who may edit it",
        (go(message["subject"]), see(name), go("Files"), *looks),
        infeasible=True,
    )
