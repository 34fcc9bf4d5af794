"""More families `web/across/*`: a message asks for something that other applications know or do."""

from __future__ import annotations

from deskhand.tasks.suites.web.apps import calendar, mail, shop
from deskhand.tasks.suites.web.content import GOODS, times
from deskhand.tasks.suites.web.families.across import INBOX, REQUEST, both, inbox_message
from deskhand.tasks.suites.web.scenario import Act, Change, Goal, State, WebScenario, choose, fill, go, see, web_family


def _answer(message: State, text: str) -> tuple[Act, ...]:
    """Return the walk that answers a message of the Inbox."""
    return go("Mail"), go(message["subject"]), go("Reply"), fill("Text", text), go("Send")


def _answered(message: State, text: str, to: str = "") -> Change:
    values = {"to": to or message["sender"], "subject": f"Re: {message['subject']}", "text": text}
    return lambda state: mail.send(state["mail"], values)


@web_family(
    "across/which_day",
    INBOX,
    "hard",
    "look up in the calendar what a message asks, and answer it",
    "carry data between programs",
    "find something",
    "work in several steps",
)
def which_day(web: WebScenario) -> Goal:
    event = web.pick(web.state["calendar"]["events"])
    message = inbox_message(web, f"On which day is {event['title']}?")
    day = event["day"]
    other = next(each for each in calendar.DAYS if each != day)
    stranger = next(each for each in web.state["mail"]["people"] if each != message["sender"])
    return Goal(
        f"The email about {message['subject']} asks on which day an event is. Look it up in the calendar, and answer "
        "the email with the day of the week only",
        (
            *(go(message["subject"]), see(event["title"]), go("Calendar"), go(day), see(event["title"])),
            *_answer(message, day),
        ),
        right=_answered(message, day),
        wrong={
            "another day": _answered(message, other),
            "with the time": _answered(message, f"{day} {event['time']}"),
            "to somebody else": _answered(message, day, stranger),
            "the event is moved": both(
                _answered(message, other),
                lambda state: calendar.change(state["calendar"], {**event, "day": other}),
            ),
        },
    )


@web_family(
    "across/what_price",
    INBOX,
    "hard",
    "look up in the shop what a message asks, and answer it",
    "carry data between programs",
    "find something",
    "work in several steps",
)
def what_price(web: WebScenario) -> Goal:
    good = web.pick(web.state["shop"]["goods"])
    message = inbox_message(web, f"What does the product called {good['name']} cost in the shop ({good['category']})?")
    price = str(good["price"])
    same_category = [each for each in web.state["shop"]["goods"] if each["category"] == good["category"]]
    other = next(str(each["price"]) for each in same_category if each["price"] != good["price"])
    return Goal(
        f"The email about {message['subject']} asks for a price. Look it up in the shop, and answer the email with the "
        "number only",
        (
            *(go(message["subject"]), see(good["name"]), go("Shop"), go(good["category"]), see(good["name"])),
            *_answer(message, price),
        ),
        right=_answered(message, price),
        wrong={
            "the price of another": _answered(message, other),
            "with the name": _answered(message, f"{good['name']}: {price}"),
            "bought too": both(
                _answered(message, price),
                lambda state: shop.put(state["shop"], {"id": good["id"], "number": "1"}),
            ),
        },
    )


@web_family(
    "across/two_requests",
    INBOX,
    "hard",
    "put what two messages ask for into the cart",
    "carry data between programs",
    "find something",
    "work in several steps",
)
def two_requests(web: WebScenario) -> Goal:
    in_cart = {line["good"] for line in web.state["shop"]["cart"]}
    goods = web.rng.sample([each for each in web.state["shop"]["goods"] if each["name"] not in in_cart], 2)
    numbers = web.rng.sample(range(2, 10), 2)
    inbox = [each for each in web.state["mail"]["messages"] if each["folder"] == "Inbox"]
    walk: list[Act] = []
    messages = web.rng.sample(inbox, 2)
    for message, good, number in zip(messages, goods, numbers, strict=True):
        asked = f"Please buy {number} of the product called {good['name']} ({good['category']})."
        message["text"] = f"{asked} {message['text']}"
        walk += [go("Mail"), go(message["subject"]), see(good["name"])]
        walk += [go("Shop"), go(good["category"]), go(good["name"]), choose("Number", str(number)), go("Add to cart")]

    def put(*pairs: tuple[State, int]) -> Change:
        return lambda state: [
            shop.put(state["shop"], {"id": good["id"], "number": str(number)}) for good, number in pairs
        ]

    (first, second), (few, many) = goods, numbers
    return Goal(
        f"In the shop, put what the email about {messages[0]['subject']} and the email about {messages[1]['subject']} "
        "ask for into the cart. Do not order yet",
        tuple(walk[1:]),
        right=put((first, few), (second, many)),
        wrong={
            "only one": put((first, few)),
            "the numbers are swapped": put((first, many), (second, few)),
            "one too many": put((first, few), (second, many), (first, 1)),
        },
        max_steps=36,
    )


@web_family(
    "across/request_missing",
    INBOX,
    "hard",
    "put what a message asks for into the cart, which the shop does not have",
    "carry data between programs",
    "recognize an infeasible task",
)
def request_missing(web: WebScenario) -> Goal:
    category = web.pick(list(GOODS))
    sold = {each["name"] for each in web.state["shop"]["goods"]}
    name = next(each for each in GOODS[category] if each not in sold)
    message = inbox_message(web, f"Please buy {web.rng.randint(2, 9)} of the product called {name} ({category}).")
    return Goal(
        REQUEST.format(message["subject"]),
        (go(message["subject"]), see(name), go("Shop"), go(category)),
        infeasible=True,
    )


@web_family(
    "across/postponed",
    INBOX,
    "hard",
    "move an event as a message asks, and delete the message",
    "carry data between programs",
    "fill in a form",
    "work in several steps",
)
def postponed(web: WebScenario) -> Goal:
    event = web.pick(web.state["calendar"]["events"])
    day, time = web.pick([each for each in calendar.DAYS if each != event["day"]]), times(web.rng, 2)
    new = next(each for each in time if each != event["time"])
    message = inbox_message(web, f"Please move {event['title']} to {day} at {new}.")

    def moved(**values: str) -> Change:
        return lambda state: calendar.change(state["calendar"], {**event, "day": day, "time": new, **values})

    def put(folder: str) -> Change:
        return lambda state: mail.move(state["mail"], {"id": message["id"], "folder": folder})

    return Goal(
        f"The email about {message['subject']} asks to move an event. Move it in the calendar, leave its title and "
        "place as they are, and then delete the email",
        (
            *(go(message["subject"]), see(event["title"]), go("Calendar"), go(event["title"])),
            *(choose("Day", day), fill("Time", new), go("Save"), go("Mail"), go(message["subject"]), go("Delete")),
        ),
        right=both(moved(), put("Trash")),
        wrong={
            "the mail is not deleted": moved(),
            "the mail is archived": both(moved(), put("Archive")),
            "at the old time": both(moved(time=event["time"]), put("Trash")),
            "on the old day": both(moved(day=event["day"]), put("Trash")),
        },
        max_steps=24,
    )


@web_family(
    "across/workload",
    INBOX,
    "hard",
    "say how many issues the sender of a message has",
    "carry data between programs",
    "read and compare",
    "answer a question",
)
def workload(web: WebScenario) -> Goal:
    message = inbox_message(web)
    person = message["sender"] = web.pick(web.state["issues"]["people"][:3])
    is_open = [each for each in web.state["issues"]["issues"] if each["state"] == "open"]
    is_open[0]["assignee"] = person
    found = [each["title"] for each in is_open if each["assignee"] == person]
    count = len(found)
    return Goal(
        f"Find out who wrote the email about {message['subject']}, and how many open issues of the issue tracker are "
        "assigned to that person. Answer with just the number",
        (go(message["subject"]), see(person), go("Issues"), see(found[0]), see(found[-1])),
        answer=str(count),
        wrong_answers=tuple(str(count + by) for by in (1, 2, 3)),
        follows=tuple(found),
    )


@web_family(
    "across/access_for_sender",
    INBOX,
    "hard",
    "share the largest file of a folder with the sender of a message",
    "carry data between programs",
    "fill in a form",
    "read and compare",
    "work in several steps",
)
def access_for_sender(web: WebScenario) -> Goal:
    message = inbox_message(web)
    person, folder = message["sender"], web.pick([each["folder"] for each in web.state["files"]["files"]])
    inside = sorted((each for each in web.state["files"]["files"] if each["folder"] == folder), key=lambda e: e["size"])
    inside[-1]["size"] = inside[-2]["size"] + web.rng.randint(1, 40)
    for each in inside:
        each["shared"].pop(person, None)
    stranger = next(each for each in web.state["files"]["people"] if each not in (person, *inside[-1]["shared"]))

    def shared(file: State, who: str, right: str) -> Change:
        def change(state: State) -> None:
            next(each for each in state["files"]["files"] if each["id"] == file["id"])["shared"][who] = right

        return change

    return Goal(
        f"In the file share, share the largest file of the folder {folder} with the person who wrote the email about "
        f"{message['subject']}. The person may edit it",
        (
            *(go(message["subject"]), see(person), go("Files"), go(folder), go(inside[-1]["name"])),
            *(choose("Person", person), choose("Right", "may edit"), go("Share")),
        ),
        right=shared(inside[-1], person, "may edit"),
        wrong={
            "another file": shared(inside[-2], person, "may edit"),
            "to read only": shared(inside[-1], person, "may read"),
            "with somebody else": shared(inside[-1], stranger, "may edit"),
        },
    )
