"""Families `web/calendar/*`: adding, moving, canceling and finding events."""

from __future__ import annotations

from deskhand.tasks.suites.web.apps import calendar
from deskhand.tasks.suites.web.apps.calendar import DAYS
from deskhand.tasks.suites.web.content import EVENTS, PLACES, times
from deskhand.tasks.suites.web.scenario import Goal, State, WebScenario, choose, fill, go, see, web_family

WEEK = "/calendar/week"


def _new_title(web: WebScenario) -> str:
    taken = {each["title"] for each in web.state["calendar"]["events"]}
    return web.pick([title for title in EVENTS if title not in taken])


def _other_day(web: WebScenario, day: str) -> str:
    return web.pick([each for each in DAYS if each != day])


@web_family("calendar/add", WEEK, "medium", "add an event", "fill in a form")
def add_event(web: WebScenario) -> Goal:
    event = {
        "title": _new_title(web),
        "day": web.pick(list(DAYS[1:])),
        "time": times(web.rng, 1)[0],
        "place": web.pick(list(PLACES[:4])),
    }
    fields = fill("Title", event["title"]), choose("Day", event["day"]), fill("Time", event["time"])
    return Goal(
        f"In the calendar, add the event {event['title']} on {event['day']} at {event['time']}, place {event['place']}",
        (go("New event"), *fields, fill("Place", event["place"]), go("Save")),
        right=lambda state: calendar.create(state["calendar"], event),
        wrong={
            "on another day": lambda state: calendar.create(state["calendar"], {**event, "day": DAYS[0]}),
            "without the place": lambda state: calendar.create(state["calendar"], {**event, "place": ""}),
            "twice": lambda state: [calendar.create(state["calendar"], event) for _ in range(2)],
        },
    )


@web_family(
    "calendar/move", WEEK, "medium", "move an event to another day and time", "fill in a form", "find something"
)
def move_event(web: WebScenario) -> Goal:
    event = web.pick(web.state["calendar"]["events"])
    day, time = _other_day(web, event["day"]), times(web.rng, 1)[0]
    other = next(each for each in web.state["calendar"]["events"] if each is not event)

    def moved(which: State, **values: str) -> State:
        return {**which, "day": day, "time": time, **values}

    return Goal(
        f"In the calendar, move the event {event['title']} to {day} at {time}",
        (go(event["title"]), choose("Day", day), fill("Time", time), go("Save")),
        right=lambda state: calendar.change(state["calendar"], moved(event)),
        wrong={
            "another event": lambda state: calendar.change(state["calendar"], moved(other)),
            "on another day": lambda state: calendar.change(state["calendar"], moved(event, day=event["day"])),
            "copied": lambda state: calendar.create(state["calendar"], moved(event)),
        },
    )


@web_family("calendar/cancel", WEEK, "easy", "cancel an event", "find something")
def cancel_event(web: WebScenario) -> Goal:
    event = web.pick(web.state["calendar"]["events"])
    other = next(each for each in web.state["calendar"]["events"] if each is not event)
    return Goal(
        f"In the calendar, cancel the event {event['title']}",
        (go(event["title"]), go("Cancel event")),
        right=lambda state: calendar.cancel(state["calendar"], event),
        wrong={
            "another event": lambda state: calendar.cancel(state["calendar"], other),
            "two events": lambda state: [calendar.cancel(state["calendar"], each) for each in (event, other)],
            "renamed": lambda state: calendar.change(state["calendar"], {**event, "title": "Canceled"}),
        },
    )


@web_family("calendar/free_day", WEEK, "hard", "cancel every event of a day", "find something", "work in several steps")
def free_day(web: WebScenario) -> Goal:
    day = web.pick(list(DAYS))
    events = [each for each in web.state["calendar"]["events"] if each["day"] == day]
    other = next(each for each in web.state["calendar"]["events"] if each["day"] != day)
    return Goal(
        f"In the calendar, cancel every event on {day}",
        tuple(act for each in events for act in (go(each["title"]), go("Cancel event"))),
        right=lambda state: [calendar.cancel(state["calendar"], each) for each in events],
        wrong={
            "one is left": lambda state: [calendar.cancel(state["calendar"], each) for each in events[1:]],
            "one too many": lambda state: [calendar.cancel(state["calendar"], each) for each in (*events, other)],
            "of another day": lambda state: calendar.cancel(state["calendar"], other),
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
    events = sorted(
        (each for each in web.state["calendar"]["events"] if each["day"] == day), key=lambda each: each["time"]
    )
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
