"""More families `web/across/*`: a message or an issue says what has to be done, and often that it is done."""

from __future__ import annotations

from deskhand.tasks.suites.web.apps import booking, calendar, files, issues, mail
from deskhand.tasks.suites.web.content import FILES, PLACES
from deskhand.tasks.suites.web.families.across import INBOX, both, inbox_message, other_item
from deskhand.tasks.suites.web.scenario import Act, Change, Goal, State, WebScenario, fill, go, see, web_family


@web_family(
    "across/canceled_trip",
    INBOX,
    "hard",
    "cancel a train as a message asks, and answer it",
    "carry data between programs",
    "fill in a form",
    "work in several steps",
)
def canceled_trip(web: WebScenario) -> Goal:
    booked, other = web.rng.sample(web.state["booking"]["bookings"], 2)
    message = inbox_message(web, f"Please cancel the train to {booked['town']}.")

    def cancel(which: State) -> Change:
        return lambda state: booking.cancel(state["booking"], {"id": which["id"]})

    def answer(text: str) -> Change:
        values = {"to": message["sender"], "subject": f"Re: {message['subject']}", "text": text}
        return lambda state: mail.send(state["mail"], values)

    return Goal(
        f"Cancel the booked train that the email about {message['subject']} names. Then answer the email with the word "
        "Canceled only",
        (
            *(go(message["subject"]), see(booked["town"]), go("Trains"), go("My bookings")),
            *(go("Cancel", row=booked["town"]), go("Mail"), go(message["subject"]), go("Reply")),
            *(fill("Text", "Canceled"), go("Send")),
        ),
        right=both(cancel(booked), answer("Canceled")),
        wrong={
            "another train": both(cancel(other), answer("Canceled")),
            "it is not answered": cancel(booked),
            "it is still booked": answer("Canceled"),
            "by another text": both(cancel(booked), answer(f"Canceled {booked['town']}")),
        },
    )


@web_family(
    "across/promise",
    INBOX,
    "hard",
    "add what a message says about an issue as a comment",
    "carry data between programs",
    "fill in a form",
    "work in several steps",
)
def promise(web: WebScenario) -> Goal:
    issue = web.pick([each for each in web.state["issues"]["issues"] if each["state"] == "open"])
    day, other_day = web.rng.sample(calendar.DAYS, 2)
    message = inbox_message(web, f"The issue {issue['title']} will be fixed on {day}.")

    def comment(text: str, which: State = issue) -> Change:
        return lambda state: issues.comment(state["issues"], {"id": which["id"], "text": text})

    return Goal(
        f"The email about {message['subject']} says on which day an issue will be fixed. Add the day of the week, and "
        "nothing else, as a comment to this issue",
        (
            *(go(message["subject"]), see(issue["title"]), go("Issues"), go(issue["title"])),
            *(fill("New comment", day), go("Add comment")),
        ),
        right=comment(day),
        wrong={
            "another day": comment(other_day),
            "the whole sentence": comment(f"It will be fixed on {day}"),
            "another issue": comment(day, other_item(web, "issues", "issues", title=issue["title"])),
            "the issue is closed": both(
                comment(day), lambda state: issues.switch(state["issues"], {"id": issue["id"]})
            ),
        },
    )


@web_family(
    "across/file_name",
    "/issues/list/open",
    "hard",
    "rename a file as an issue says, and close the issue",
    "carry data between programs",
    "fill in a form",
    "work in several steps",
)
def file_name(web: WebScenario) -> Goal:
    issue = web.pick([each for each in web.state["issues"]["issues"] if each["state"] == "open"])
    file = web.pick(web.state["files"]["files"])
    other = other_item(web, "files", "files", name=file["name"])
    taken = {each["name"].split(".")[0] for each in web.state["files"]["files"]}
    name = f"{web.pick([each for each in FILES if each not in taken])}.{file['name'].split('.')[1]}"
    issue["text"] = f"The file {file['name']} (folder {file['folder']}) should be called {name}."

    def rename(which: State, new: str) -> Change:
        return lambda state: files.rename(state["files"], {"id": which["id"], "name": new})

    def closed(state: State) -> None:
        issues.switch(state["issues"], {"id": issue["id"]})

    return Goal(
        f"In the file share, rename a file as the issue {issue['title']} says. Then close the issue",
        (
            *(go(issue["title"]), see(name), go("Files"), go(file["folder"]), go(file["name"]), fill("Name", name)),
            *(go("Rename"), go("Issues"), go(issue["title"]), go("Close issue")),
        ),
        right=both(rename(file, name), closed),
        wrong={
            "the issue is open": rename(file, name),
            "the file has its old name": closed,
            "another file": both(rename(other, name), closed),
            "without the end of the name": both(rename(file, name.split(".")[0]), closed),
        },
    )


@web_family(
    "across/closed_room",
    "/issues/list/open",
    "hard",
    "move all events out of a room that an issue names",
    "carry data between programs",
    "fill in a form",
    "find something",
    "work in several steps",
)
def closed_room(web: WebScenario) -> Goal:
    issue = web.pick([each for each in web.state["issues"]["issues"] if each["state"] == "open"])
    room, other = web.rng.sample(PLACES[:4], 2)
    events = web.state["calendar"]["events"]
    for event in events:
        event["place"] = other if event["place"] == room else event["place"]
    *moved, elsewhere = web.rng.sample(events, 3)
    elsewhere["place"] = other
    for event in moved:
        event["place"] = room
    issue["text"] = f"Nobody can use {room} this week."
    walk: list[Act] = [go(issue["title"]), see(room), go("Calendar")]
    for day in calendar.DAYS:
        walk.append(go(day))
        for event in (each for each in moved if each["day"] == day):
            walk += [go(event["title"]), fill("Place", "Online"), go("Save"), go(day)]

    def placed(*which: State, place: str = "Online") -> Change:
        def change(state: State) -> None:
            for event in which:
                calendar.change(state["calendar"], {**event, "place": place})

        return change

    return Goal(
        f"The issue {issue['title']} names a room that is closed. In the calendar, change the place of all events in "
        "this room to Online",
        tuple(walk),
        right=placed(*moved),
        wrong={
            "only one event": placed(moved[0]),
            "another event too": placed(*moved, elsewhere),
            "to another room": placed(*moved, place=other),
        },
        max_steps=32,
    )


@web_family(
    "across/file_missing",
    INBOX,
    "hard",
    "share a file that does not exist with the sender of a message",
    "carry data between programs",
    "recognize an infeasible task",
)
def file_missing(web: WebScenario) -> Goal:
    taken = {each["name"].split(".")[0] for each in web.state["files"]["files"]}
    name = f"{web.pick([each for each in FILES if each not in taken])}.odt"
    message = inbox_message(web, f"May I edit the file {name} in the folder {web.pick(list(files.FOLDERS))}?")
    looks = [go(folder) for folder in files.FOLDERS]
    return Goal(
        f"The person who wrote the email about {message['subject']} asks for a file of the file share. Share it with "
        "the person, who may edit it",
        (go(message["subject"]), see(name), go("Files"), *looks),
        infeasible=True,
    )
