"""Families `web/calendar/*`: adding, moving, canceling and finding events."""

from __future__ import annotations

from deskhand.tasks.suites.web.apps import calendar
from deskhand.tasks.suites.web.apps.calendar import DAYS
from deskhand.tasks.suites.web.content import EVENTS, PLACES, times
from deskhand.tasks.suites.web.families.forms import fill_event, submit, submit_each, twice
from deskhand.tasks.suites.web.families.items import having, new_title, other_item, ranked
from deskhand.tasks.suites.web.scenario import Goal, WebScenario, choose, fill, go, see, web_family

WEEK = "/calendar/week"


def _new_title(web: WebScenario) -> str:
    return new_title(web, EVENTS, web.state["calendar"]["events"])


@web_family("calendar/add", WEEK, "medium", "add an event", "fill in a form")
def add_event(web: WebScenario) -> Goal:
    event = {
        "title": _new_title(web),
        "day": web.pick(list(DAYS[1:])),
        "time": times(web.rng, 1)[0],
        "place": web.pick(list(PLACES[:4])),
    }
    return Goal(
        f"In the calendar, add the event {event['title']} on {event['day']} at {event['time']}, place {event['place']}",
        fill_event(event),
        right=submit(calendar.create, event),
        wrong={
            "on another day": submit(calendar.create, event, day=DAYS[0]),
            "without the place": submit(calendar.create, event, place=""),
            "twice": twice(submit(calendar.create, event)),
        },
    )


@web_family(
    "calendar/move", WEEK, "medium", "move an event to another day and time", "fill in a form", "find something"
)
def move_event(web: WebScenario) -> Goal:
    event = web.pick(web.state["calendar"]["events"])
    day, time = web.pick([each for each in DAYS if each != event["day"]]), times(web.rng, 1)[0]
    other = other_item(web.state["calendar"]["events"], event)
    return Goal(
        f"In the calendar, move the event {event['title']} to {day} at {time}",
        (go(event["title"]), choose("Day", day), fill("Time", time), go("Save")),
        right=submit(calendar.change, event, day=day, time=time),
        wrong={
            "another event": submit(calendar.change, other, day=day, time=time),
            "on another day": submit(calendar.change, event, time=time),
            "copied": submit(calendar.create, event, day=day, time=time),
        },
    )


@web_family("calendar/cancel", WEEK, "easy", "cancel an event", "find something")
def cancel_event(web: WebScenario) -> Goal:
    event = web.pick(web.state["calendar"]["events"])
    other = other_item(web.state["calendar"]["events"], event)
    return Goal(
        f"In the calendar, cancel the event {event['title']}",
        (go(event["title"]), go("Cancel event")),
        right=submit(calendar.cancel, event),
        wrong={
            "another event": submit(calendar.cancel, other),
            "two events": submit_each(calendar.cancel, [event, other]),
            "renamed": submit(calendar.change, event, title="Canceled"),
        },
    )


@web_family("calendar/free_day", WEEK, "hard", "cancel every event of a day", "find something", "work in several steps")
def free_day(web: WebScenario) -> Goal:
    day = web.pick(list(DAYS))
    events = having(web.state["calendar"]["events"], day=day)
    other = other_item(web.state["calendar"]["events"], events[0], "day")
    return Goal(
        f"In the calendar, cancel every event on {day}",
        tuple(act for each in events for act in (go(each["title"]), go("Cancel event"))),
        right=submit_each(calendar.cancel, events),
        wrong={
            "one is left": submit_each(calendar.cancel, events[1:]),
            "one too many": submit_each(calendar.cancel, [*events, other]),
            "of another day": submit(calendar.cancel, other),
        },
    )


@web_family("calendar/when", WEEK, "easy", "say when an event begins", "find something", "answer a question")
def when(web: WebScenario) -> Goal:
    event = web.pick(web.state["calendar"]["events"])
    return Goal(
        f"At what time does the event {event['title']} begin? Answer with the time as the calendar shows it",
        (see(event["title"]),),
        answer=event["time"],
        wrong_answers=(event["day"], event["place"], event["time"].replace(":", "")),
    )


@web_family("calendar/where", WEEK, "medium", "say where an event takes place", "find something", "answer a question")
def where(web: WebScenario) -> Goal:
    event = web.pick(web.state["calendar"]["events"])
    return Goal(
        f"Where does the event {event['title']} on {event['day']} take place? Answer with the place only",
        (go(event["day"]), see(event["place"])),
        answer=event["place"],
        wrong_answers=tuple(each for each in PLACES if each != event["place"]),
    )


@web_family(
    "calendar/cancel_missing", WEEK, "medium", "cancel an event that does not exist", "recognize an infeasible task"
)
def cancel_missing(web: WebScenario) -> Goal:
    title = _new_title(web)
    return Goal(f"In the calendar, cancel the event {title}", (go("Monday"), go("Friday"), go("Week")), infeasible=True)


@web_family(
    "calendar/first", WEEK, "medium", "say which event of a day is first", "read and compare", "answer a question"
)
def first_event(web: WebScenario) -> Goal:
    day = web.pick(list(DAYS))
    events = ranked(web.state["calendar"]["events"], "time", day=day)
    return Goal(
        f"Which event is the first on {day}? Answer with its title only",
        (go(day), *(see(each["title"]) for each in events)),
        answer=events[0]["title"],
        wrong_answers=(events[-1]["title"], events[0]["time"], day),
    )


@web_family(
    "calendar/move_missing", WEEK, "medium", "move an event that does not exist", "recognize an infeasible task"
)
def move_missing(web: WebScenario) -> Goal:
    return Goal(
        f"In the calendar, move the event {_new_title(web)} to {web.pick(list(DAYS))} at {times(web.rng, 1)[0]}",
        (go("Monday"), go("Week")),
        infeasible=True,
    )
