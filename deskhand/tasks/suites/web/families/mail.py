"""Families `web/mail/*`: reading, answering, forwarding, tidying up."""

from __future__ import annotations

from deskhand.tasks.suites.web.apps import mail
from deskhand.tasks.suites.web.scenario import Change, Goal, State, WebScenario, fill, go, see, web_family

INBOX = "/mail/folder/Inbox"
REPLIES = ("Yes, that suits me", "I will call you tomorrow", "Please send me the details", "Thank you, all is well")


def _inbox(web: WebScenario) -> list[State]:
    return [each for each in web.state["mail"]["messages"] if each["folder"] == "Inbox"]


def _sent(message: State, **values: str) -> State:
    return {"to": message["sender"], "subject": f"Re: {message['subject']}", "text": "", **values}


@web_family("mail/reply", INBOX, "easy", "reply to a message", "fill in a form", "find something")
def reply(web: WebScenario) -> Goal:
    message, text = web.pick(_inbox(web)), web.pick(list(REPLIES))
    other = next(each for each in _inbox(web) if each["sender"] != message["sender"])
    return Goal(
        f"In the mail app, reply to the message about {message['subject']}: {text}",
        (go(message["subject"]), go("Reply"), fill("Text", text), go("Send")),
        right=lambda state: mail.send(state["mail"], _sent(message, text=text)),
        wrong={
            "to somebody else": lambda state: mail.send(state["mail"], _sent(message, text=text, to=other["sender"])),
            "another text": lambda state: mail.send(state["mail"], _sent(message, text=text[:-1])),
            "twice": lambda state: [mail.send(state["mail"], _sent(message, text=text)) for _ in range(2)],
        },
    )


@web_family("mail/forward", INBOX, "medium", "forward a message to a person", "fill in a form")
def forward(web: WebScenario) -> Goal:
    message = web.pick(_inbox(web))
    person = web.pick([each for each in web.state["mail"]["people"] if each != message["sender"]])
    values = _sent(message, to=person, subject=f"Fwd: {message['subject']}", text=message["text"])
    return Goal(
        f"In the mail app, forward the message about {message['subject']} to {person}, with its text and subject",
        (go(message["subject"]), go("Forward"), fill("To", person), go("Send")),
        right=lambda state: mail.send(state["mail"], values),
        wrong={
            "to its sender": lambda state: mail.send(state["mail"], {**values, "to": message["sender"]}),
            "without its text": lambda state: mail.send(state["mail"], {**values, "text": ""}),
            "as an answer": lambda state: mail.send(state["mail"], {**values, "subject": f"Re: {message['subject']}"}),
        },
    )


@web_family("mail/clean_up", INBOX, "medium", "delete all messages from a person", "work in several steps")
def clean_up(web: WebScenario) -> Goal:
    person = web.pick([each["sender"] for each in _inbox(web)])
    found = [each for each in _inbox(web) if each["sender"] == person]

    def moved(folder: str, messages: list[State]) -> Change:
        return lambda state: [mail.move(state["mail"], {"id": each["id"], "folder": folder}) for each in messages]

    other = next(each for each in _inbox(web) if each["sender"] != person)
    return Goal(
        f"In the mail app, delete every message from {person} that is in the Inbox",
        tuple(act for each in reversed(found) for act in (go(each["subject"]), go("Delete"))),
        right=moved("Trash", found),
        wrong={
            "one is left": moved("Trash", found[1:]),
            "one too many": moved("Trash", [*found, other]),
            "archived": moved("Archive", found),
        },
        max_steps=12 + 4 * len(found),
    )


@web_family("mail/restore", INBOX, "medium", "move a message back from the Archive", "find something")
def restore(web: WebScenario) -> Goal:
    kept = [each for each in web.state["mail"]["messages"] if each["folder"] == "Archive"]
    message, inbox = web.pick(kept), _inbox(web)[0]
    values, other = ({"id": each["id"], "folder": "Inbox"} for each in (message, kept[kept.index(message) - 1]))
    return Goal(
        f"In the mail app, move the message about {message['subject']} from the Archive back to the Inbox",
        (go("Archive"), go(message["subject"]), go("Move to Inbox")),
        right=lambda state: mail.move(state["mail"], values),
        wrong={
            "another one": lambda state: mail.move(state["mail"], other),
            "to the Trash": lambda state: mail.move(state["mail"], {**values, "folder": "Trash"}),
            "one archived": lambda state: mail.move(state["mail"], {"id": inbox["id"], "folder": "Archive"}),
        },
    )


@web_family("mail/who", INBOX, "easy", "say who wrote a message", "find something", "answer a question")
def who_wrote(web: WebScenario) -> Goal:
    message = web.pick(_inbox(web))
    return Goal(
        f"Who wrote the message about {message['subject']} in the Inbox? Answer with the name only",
        (see(message["subject"]),),
        answer=message["sender"],
        wrong_answers=tuple(each for each in web.state["mail"]["people"] if each != message["sender"]),
    )


@web_family(
    "mail/reply_missing",
    INBOX,
    "medium",
    "reply to a message that does not exist",
    "find something",
    "recognize an infeasible task",
)
def reply_missing(web: WebScenario) -> Goal:
    message, text = web.pick(web.state["mail"]["messages"]), web.pick(list(REPLIES))
    web.state["mail"]["messages"].remove(message)
    return Goal(
        f"In the mail app, reply to the message about {message['subject']}: {text}",
        (go("Archive"), go("Sent"), go("Trash"), go("Inbox")),
        infeasible=True,
    )


@web_family("mail/count", INBOX, "medium", "count the messages from a person", "read and compare", "answer a question")
def count_messages(web: WebScenario) -> Goal:
    person = web.pick([each["sender"] for each in _inbox(web)])
    count = sum(each["sender"] == person for each in _inbox(web))
    return Goal(
        f"How many messages from {person} are in the Inbox? Answer with the number only",
        tuple(see(each["subject"]) for each in _inbox(web)),
        answer=str(count),
        wrong_answers=(str(count + 1), str(count - 1), person),
        follows=tuple(each["subject"] for each in _inbox(web)),
    )


@web_family(
    "mail/restore_missing", INBOX, "medium", "move back a message that does not exist", "recognize an infeasible task"
)
def restore_missing(web: WebScenario) -> Goal:
    message = web.pick([each for each in web.state["mail"]["messages"] if each["folder"] == "Archive"])
    web.state["mail"]["messages"].remove(message)
    return Goal(
        f"In the mail app, move the message about {message['subject']} from the Archive back to the Inbox",
        (go("Archive"), go("Trash"), go("Sent")),
        infeasible=True,
    )
