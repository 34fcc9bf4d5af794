"""Families `web/mail/*`: reading, answering, forwarding, tidying up."""

from __future__ import annotations

from deskhand.tasks.suites.web.apps import mail
from deskhand.tasks.suites.web.families.forms import (
    fill_forward,
    fill_reply,
    forward_form,
    reply_form,
    submit,
    submit_each,
    twice,
)
from deskhand.tasks.suites.web.families.items import INBOX, having, inbox, other_item
from deskhand.tasks.suites.web.scenario import Goal, WebScenario, go, see, web_family

REPLIES = ("Yes, that suits me", "I will call you tomorrow", "Please send me the details", "Thank you, all is well")


@web_family("mail/reply", INBOX, "easy", "reply to a message", "fill in a form", "find something")
def reply(web: WebScenario) -> Goal:
    message, text = web.pick(inbox(web)), web.pick(list(REPLIES))
    form, other = reply_form(message, text), other_item(inbox(web), message, "sender")
    return Goal(
        f"In the mail app, reply to the message about {message['subject']}: {text}",
        fill_reply(message, text),
        right=submit(mail.send, form),
        wrong={
            "to somebody else": submit(mail.send, form, to=other["sender"]),
            "another text": submit(mail.send, form, text=text[:-1]),
            "twice": twice(submit(mail.send, form)),
        },
    )


@web_family("mail/forward", INBOX, "medium", "forward a message to a person", "fill in a form")
def forward(web: WebScenario) -> Goal:
    message = web.pick(inbox(web))
    person = web.pick([each for each in web.state["mail"]["people"] if each != message["sender"]])
    form = forward_form(message, person)
    return Goal(
        f"In the mail app, forward the message about {message['subject']} to {person}, with its text and subject",
        fill_forward(message, person),
        right=submit(mail.send, form),
        wrong={
            "to its sender": submit(mail.send, form, to=message["sender"]),
            "without its text": submit(mail.send, form, text=""),
            "as an answer": submit(mail.send, form, subject=f"Re: {message['subject']}"),
        },
    )


@web_family("mail/clean_up", INBOX, "medium", "delete all messages from a person", "work in several steps")
def clean_up(web: WebScenario) -> Goal:
    person = web.pick([each["sender"] for each in inbox(web)])
    found = having(inbox(web), sender=person)
    other = other_item(inbox(web), found[0], "sender")
    return Goal(
        f"In the mail app, delete every message from {person} that is in the Inbox",
        tuple(act for each in reversed(found) for act in (go(each["subject"]), go("Delete"))),
        right=submit_each(mail.move, found, folder="Trash"),
        wrong={
            "one is left": submit_each(mail.move, found[1:], folder="Trash"),
            "one too many": submit_each(mail.move, [*found, other], folder="Trash"),
            "archived": submit_each(mail.move, found, folder="Archive"),
        },
        max_steps=12 + 4 * len(found),
    )


@web_family("mail/restore", INBOX, "medium", "move a message back from the Archive", "find something")
def restore(web: WebScenario) -> Goal:
    kept = having(web.state["mail"]["messages"], folder="Archive")
    message = web.pick(kept)
    other = kept[kept.index(message) - 1]
    return Goal(
        f"In the mail app, move the message about {message['subject']} from the Archive back to the Inbox",
        (go("Archive"), go(message["subject"]), go("Move to Inbox")),
        right=submit(mail.move, message, folder="Inbox"),
        wrong={
            "another one": submit(mail.move, other, folder="Inbox"),
            "to the Trash": submit(mail.move, message, folder="Trash"),
            "one archived": submit(mail.move, inbox(web)[0], folder="Archive"),
        },
    )


@web_family("mail/who", INBOX, "easy", "say who wrote a message", "find something", "answer a question")
def who_wrote(web: WebScenario) -> Goal:
    message = web.pick(inbox(web))
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
    person = web.pick([each["sender"] for each in inbox(web)])
    count = sum(each["sender"] == person for each in inbox(web))
    return Goal(
        f"How many messages from {person} are in the Inbox? Answer with the number only",
        tuple(see(each["subject"]) for each in inbox(web)),
        answer=str(count),
        wrong_answers=(str(count + 1), str(count - 1), person),
        follows=tuple(each["subject"] for each in inbox(web)),
    )


@web_family(
    "mail/restore_missing", INBOX, "medium", "move back a message that does not exist", "recognize an infeasible task"
)
def restore_missing(web: WebScenario) -> Goal:
    message = web.pick(having(web.state["mail"]["messages"], folder="Archive"))
    web.state["mail"]["messages"].remove(message)
    return Goal(
        f"In the mail app, move the message about {message['subject']} from the Archive back to the Inbox",
        (go("Archive"), go("Trash"), go("Sent")),
        infeasible=True,
    )
