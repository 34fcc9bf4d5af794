"""Start states of the applications: people, messages, goods, events, issues, trains and files, drawn from a seed."""

from __future__ import annotations

import random
from typing import Any

from deskhand.tasks.suites.web.apps import booking, calendar, files, issues

PEOPLE = ("Ada", "Bruno", "Clara", "Dario", "Elsa", "Felix", "Greta", "Hugo", "Irma", "Jonas", "Karin", "Luis")
TOPICS = (
    "Budget", "Heating", "Lunch", "Parking", "Printer", "Travel", "Website", "Workshop", "Contract", "Garden party",
    "Insurance", "Library", "New chairs", "Newsletter", "Photo day", "Recycling", "Safety training", "Summer hours",
)  # fmt: skip
TEXTS = (
    "Please have a look before the end of the week.", "I will be away next month.", "Thank you for your help.",
    "Can we talk about it on the phone?", "The numbers are in the shared folder.", "Nothing has been decided yet.",
)  # fmt: skip
GOODS = {
    "Kitchen": ("Kettle", "Teapot", "Pan", "Toaster", "Bread knife", "Mixing bowl", "Coffee mill"),
    "Garden": ("Rake", "Spade", "Watering can", "Garden hose", "Wheelbarrow", "Flower pot", "Gloves"),
    "Office": ("Stapler", "Desk lamp", "Notebook", "Calculator", "Paper clips", "Whiteboard", "File box"),
}
GOOD_TEXTS = ("Made to last.", "Our best seller.", "New in this season.", "Light and handy.", "Comes in a box.")
EVENTS = (
    "Team meeting", "Dentist", "Piano lesson", "Lunch with the board", "Job interview", "Yoga", "Budget review",
    "Call with the bank", "Parents' evening", "Book club", "Haircut", "Site visit", "Choir", "Staff training",
)  # fmt: skip
PLACES = ("Room 1", "Room 2", "Room 7", "Main hall", "Café", "Online")
FAULTS = (
    "Login page is slow", "Wrong date on invoices", "Search finds nothing", "Logo is blurred", "Typo in the manual",
    "Crash when saving", "Menu is cut off", "Emails arrive twice", "Export has no header", "Dark mode is unreadable",
    "Old address in the footer", "Password reset fails", "Missing page about refunds", "Video does not play",
)  # fmt: skip
FAULT_TEXTS = ("It happens every day.", "Seen on two machines.", "A customer told us.", "Only in the new version.")
TOWNS = ("Oslo", "Lisbon", "Vienna", "Athens", "Dublin", "Prague", "Riga")
FILES = (
    "accounts", "minutes", "inventory", "timetable", "survey", "harvest", "statistics", "guests", "routes", "prices",
    "repairs", "members", "lighthouse", "orchard", "summary", "agenda",
)  # fmt: skip


def times(rng: random.Random, count: int) -> list[str]:
    """Return different times of day, in order."""
    return sorted(rng.sample([f"{hour:02}:{minute:02}" for hour in range(7, 20) for minute in (0, 15, 30, 45)], count))


def start_state(rng: random.Random) -> dict[str, Any]:
    """Return a site's state: one entry per application."""
    people = sorted(rng.sample(PEOPLE, 6))

    def numbered(*items: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"id": number, **item} for number, item in enumerate(items, 1)]

    messages = [
        {
            "folder": "Inbox" if index > 2 else "Archive",
            "sender": rng.choice(people),
            "to": "me",
            "subject": topic,
            "text": " ".join(rng.sample(TEXTS, 2)),
        }
        for index, topic in enumerate(rng.sample(TOPICS, 11))
    ]
    goods = [
        {"category": category, "name": name, "price": price, "stock": 9, "text": rng.choice(GOOD_TEXTS)}
        for category, names in GOODS.items()
        for name, price in zip(rng.sample(names, 6), rng.sample(range(5, 90), 6), strict=True)
    ]
    cart = [{"good": each["name"], "number": rng.randint(1, 4)} for each in rng.sample(goods, 3)]
    titles = rng.sample(EVENTS, 10)
    slots = [(calendar.DAYS[index % 5], time) for index, time in enumerate(times(rng, 10))]
    events = [
        {"day": day, "time": time, "title": title, "place": rng.choice(PLACES)}
        for (day, time), title in zip(slots, titles, strict=True)
    ]
    faults = [
        {
            "title": title,
            "text": rng.choice(FAULT_TEXTS),
            "assignee": rng.choice([issues.NOBODY, *people[:3]]),
            "labels": [name for name in issues.LABELS if rng.random() < 0.3],
            "comments": [],
            "state": "open" if index < 8 else "closed",
            "reporter": rng.choice(people),
        }
        for index, title in enumerate(rng.sample(FAULTS, 11))
    ]
    towns = rng.sample(TOWNS, 5)
    trains = [
        {"to": town, "time": time, "price": price}
        for town in towns[:4]
        for time, price in zip(times(rng, 5), rng.sample(range(15, 99), 5), strict=True)
    ]
    bookings = [
        {
            "town": town,
            "time": times(rng, 1)[0],
            "seat": rng.choice(booking.SEATS),
            "name": rng.choice(people),
            "email": "office@example.org",
            "travelers": rng.randint(1, 4),
        }
        for town in towns[:3]
    ]
    shared = [
        {
            "folder": files.FOLDERS[index % 3],
            "name": f"{name}.{rng.choice(['pdf', 'odt', 'csv'])}",
            "size": rng.randint(12, 900),
            "shared": {person: rng.choice(files.RIGHTS) for person in rng.sample(people, rng.randint(1, 3))},
        }
        for index, name in enumerate(rng.sample(FILES, 12))
    ]
    return {
        "mail": {"people": people, "messages": numbered(*messages)},
        "shop": {"goods": numbered(*goods), "cart": numbered(*cart), "orders": []},
        "calendar": {"events": numbered(*events)},
        "issues": {"people": people, "issues": numbered(*faults)},
        "booking": {"towns": towns, "trains": numbered(*trains), "bookings": numbered(*bookings)},
        "files": {"people": people, "files": numbered(*shared)},
    }
