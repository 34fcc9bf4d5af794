"""More families `web/across/*`: a message asks for something that other applications know or do."""

from __future__ import annotations

from deskhand.tasks.suites.web.apps import calendar, files, mail, shop
from deskhand.tasks.suites.web.content import GOODS, times
from deskhand.tasks.suites.web.families.across import REQUEST, across_family, buy_text, inbox_message, other_person
from deskhand.tasks.suites.web.families.forms import both, fill_cart, fill_reply, open_file, reply_form, submit
from deskhand.tasks.suites.web.families.items import having, inbox, new_goods, open_issues, other_item, ranked
from deskhand.tasks.suites.web.scenario import Act, Change, Goal, WebScenario, choose, fill, go, see


@across_family(
    "across/which_day",
    "look up in the calendar what a message asks, and answer it",
    "find something",
    "work in several steps",
)
def which_day(web: WebScenario) -> Goal:
    event = web.pick(web.state["calendar"]["events"])
    message = inbox_message(web, f"On which day is {event['title']}?")
    day = event["day"]
    other = next(each for each in calendar.DAYS if each != day)
    form = reply_form(message, day)
    return Goal(
        f"The email about {message['subject']} asks on which day an event is. Look it up in the calendar, and answer "
        "the email with the day of the week only",
        (
            *(go(message["subject"]), see(event["title"]), go("Calendar"), go(day), see(event["title"])),
            *(go("Mail"), *fill_reply(message, day)),
        ),
        right=submit(mail.send, form),
        wrong={
            "another day": submit(mail.send, form, text=other),
            "with the time": submit(mail.send, form, text=f"{day} {event['time']}"),
            "to somebody else": submit(mail.send, form, to=other_person(web, message["sender"])),
            "the event is moved": both(submit(mail.send, form, text=other), submit(calendar.change, event, day=other)),
        },
    )


@across_family(
    "across/what_price",
    "look up in the shop what a message asks, and answer it",
    "find something",
    "work in several steps",
)
def what_price(web: WebScenario) -> Goal:
    good = web.pick(web.state["shop"]["goods"])
    message = inbox_message(web, f"What does the product called {good['name']} cost in the shop ({good['category']})?")
    price = str(good["price"])
    form = reply_form(message, price)
    other = other_item(having(web.state["shop"]["goods"], category=good["category"]), good, "price")
    return Goal(
        f"The email about {message['subject']} asks for a price. Look it up in the shop, and answer the email with the "
        "number only",
        (
            *(go(message["subject"]), see(good["name"]), go("Shop"), go(good["category"]), see(good["name"])),
            *(go("Mail"), *fill_reply(message, price)),
        ),
        right=submit(mail.send, form),
        wrong={
            "the price of another": submit(mail.send, form, text=str(other["price"])),
            "with the name": submit(mail.send, form, text=f"{good['name']}: {price}"),
            "bought too": both(submit(mail.send, form), submit(shop.put, good, number=1)),
        },
    )


@across_family(
    "across/two_requests", "put what two messages ask for into the cart", "find something", "work in several steps"
)
def two_requests(web: WebScenario) -> Goal:
    goods, numbers = web.rng.sample(new_goods(web), 2), web.rng.sample(range(2, 10), 2)
    messages = web.rng.sample(inbox(web), 2)
    walk: list[Act] = []
    for message, good, number in zip(messages, goods, numbers, strict=True):
        message["text"] = f"{buy_text(number, good['name'], good['category'])} {message['text']}"
        walk += [go("Mail"), go(message["subject"]), see(good["name"]), go("Shop"), *fill_cart(good, number)]

    def put(*counts: int) -> Change:
        return both(*(submit(shop.put, good, number=count) for good, count in zip(goods, counts, strict=False)))

    few, many = numbers
    return Goal(
        f"In the shop, put what the email about {messages[0]['subject']} and the email about {messages[1]['subject']} "
        "ask for into the cart. Do not order yet",
        tuple(walk[1:]),
        right=put(few, many),
        wrong={
            "only one": put(few),
            "the numbers are swapped": put(many, few),
            "one too many": both(put(few, many), put(1)),
        },
        max_steps=36,
    )


@across_family(
    "across/request_missing",
    "put what a message asks for into the cart, which the shop does not have",
    "recognize an infeasible task",
)
def request_missing(web: WebScenario) -> Goal:
    category = web.pick(list(GOODS))
    sold = {each["name"] for each in web.state["shop"]["goods"]}
    name = next(each for each in GOODS[category] if each not in sold)
    message = inbox_message(web, buy_text(web.rng.randint(2, 9), name, category))
    return Goal(
        REQUEST.format(message["subject"]),
        (go(message["subject"]), see(name), go("Shop"), go(category)),
        infeasible=True,
    )


@across_family(
    "across/postponed",
    "move an event as a message asks, and delete the message",
    "fill in a form",
    "work in several steps",
)
def postponed(web: WebScenario) -> Goal:
    event = web.pick(web.state["calendar"]["events"])
    day, time = web.pick([each for each in calendar.DAYS if each != event["day"]]), times(web.rng, 2)
    new = next(each for each in time if each != event["time"])
    message = inbox_message(web, f"Please move {event['title']} to {day} at {new}.")
    moved, deleted = {**event, "day": day, "time": new}, submit(mail.move, message, folder="Trash")
    return Goal(
        f"The email about {message['subject']} asks to move an event. Move it in the calendar, leave its title and "
        "place as they are, and then delete the email",
        (
            *(go(message["subject"]), see(event["title"]), go("Calendar"), go(event["title"])),
            *(choose("Day", day), fill("Time", new), go("Save"), go("Mail"), go(message["subject"]), go("Delete")),
        ),
        right=both(submit(calendar.change, moved), deleted),
        wrong={
            "the mail is not deleted": submit(calendar.change, moved),
            "the mail is archived": both(submit(calendar.change, moved), submit(mail.move, message, folder="Archive")),
            "at the old time": both(submit(calendar.change, moved, time=event["time"]), deleted),
            "on the old day": both(submit(calendar.change, moved, day=event["day"]), deleted),
        },
        max_steps=24,
    )


@across_family(
    "across/workload", "say how many issues the sender of a message has", "read and compare", "answer a question"
)
def workload(web: WebScenario) -> Goal:
    message = inbox_message(web)
    person = message["sender"] = web.pick(web.state["issues"]["people"][:3])
    open_issues(web)[0]["assignee"] = person
    found = [each["title"] for each in having(open_issues(web), assignee=person)]
    count = len(found)
    return Goal(
        f"Find out who wrote the email about {message['subject']}, and how many open issues of the issue tracker are "
        "assigned to that person. Answer with just the number",
        (go(message["subject"]), see(person), go("Issues"), see(found[0]), see(found[-1])),
        answer=str(count),
        wrong_answers=tuple(str(count + by) for by in (1, 2, 3)),
        follows=tuple(found),
    )


@across_family(
    "across/access_for_sender",
    "share the largest file of a folder with the sender of a message",
    "fill in a form",
    "read and compare",
    "work in several steps",
)
def access_for_sender(web: WebScenario) -> Goal:
    message = inbox_message(web)
    person, folder = message["sender"], web.pick([each["folder"] for each in web.state["files"]["files"]])
    inside = ranked(web.state["files"]["files"], "size", folder=folder)
    *_, second, largest = inside
    largest["size"] = second["size"] + web.rng.randint(1, 40)
    for each in inside:
        each["shared"].pop(person, None)
    stranger = next(each for each in web.state["files"]["people"] if each not in (person, *largest["shared"]))
    form = {"id": largest["id"], "person": person, "right": "may edit"}
    return Goal(
        f"In the file share, share the largest file of the folder {folder} with the person who wrote the email about "
        f"{message['subject']}. The person may edit it",
        (
            *(go(message["subject"]), see(person), go("Files"), *open_file(largest)),
            *(choose("Person", person), choose("Right", "may edit"), go("Share")),
        ),
        right=submit(files.share, form),
        wrong={
            "another file": submit(files.share, form, id=second["id"]),
            "to read only": submit(files.share, form, right="may read"),
            "with somebody else": submit(files.share, form, person=stranger),
        },
    )
