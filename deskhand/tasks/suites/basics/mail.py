"""Families `mail_*`: mails in Claws Mail. The mails of all folders are judged, or an answer, a note or a saved file."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator

from deskhand.actions.ops import Click, Op, Point, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks import mail_reader
from deskhand.tasks.guest_files import read_file, read_folder
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.cross_app import NOTE, note, open_beside
from deskhand.tasks.suites.basics.hd_screen import Steps, click_at, click_in, press
from deskhand.tasks.suites.basics.mailbox import (
    ASKED,
    BODY_PX,
    CREATE_PX,
    DRAFT_PX,
    LATER_PX,
    MARKS,
    PART_PX,
    PLACE_PX,
    ROOT_ROW_PX,
    SELECT_ROOT_PX,
    SELECT_ROW_PX,
    SUBJECT_PX,
    TO_PX,
    MailScenario,
    message_id,
    read,
)  # fmt: skip
from deskhand.tasks.suites.basics.scenario import clause, milestone, same_files, scenario_family
from deskhand.tasks.suites.basics.told_ends import told_task
from deskhand.tasks.task import FileContents, Task


def select_folder(scenario: MailScenario, row: int) -> Steps:
    """Return the steps in the dialog that asks where mails are moved to."""

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        dialog = await hd_screen.wait_shown(desktop, "Select folder")
        yield [click_at(dialog.x + 80, dialog.y + SELECT_ROOT_PX + SELECT_ROW_PX * row)]
        yield press("enter")

    return steps


async def move(scenario: MailScenario, desktop: StageableDesktop, number: int, row: int) -> AsyncIterator[list[Op]]:
    """Yield the steps that move a mail to the folder in a row."""
    yield scenario.row(number)
    yield press("ctrl+o")
    async for ops in hd_screen.play(desktop, select_folder(scenario, row)):
        yield ops


@scenario_family(
    MailScenario,
    "mail_move",
    "easy",
    "move a mail to a folder",
    abilities=("find something", "use menus and dialogs"),
)
def move_mail(scenario: MailScenario) -> Task:
    (twin,), folder, other = scenario.numbers(scenario.namesake), *scenario.folders[:2]
    number = scenario.number
    return scenario.edit_task(
        f'move the mail "{scenario.subject}" from {scenario.person} to the folder {folder}',
        lambda desktop: move(scenario, desktop, number, scenario.folder_row(folder)),
        scenario.moved(folder, number),
        {
            "the mail of the other one": scenario.moved(folder, twin),
            "both mails": scenario.moved(folder, number, twin),
            "into another folder": scenario.moved(other, number),
            "it is copied": {**scenario.start, folder: (number,)},
            "it is gone": {**scenario.moved(folder, number), folder: ()},
        },
    )


@scenario_family(
    MailScenario,
    "mail_trash",
    "medium",
    "move all mails of a person to the trash",
    abilities=("find something", "read and compare", "work in several steps"),
)
def trash_mails(scenario: MailScenario) -> Task:
    numbers = scenario.numbers(scenario.often)
    steps = [ops for each in reversed(numbers) for ops in (scenario.row(each), press("ctrl+d"))]
    return scenario.edit_task(
        f"move every mail from {scenario.often} to the trash",
        steps,
        scenario.moved("trash", *numbers),
        {
            "only two of them": scenario.moved("trash", *numbers[1:]),
            "one too many": scenario.moved("trash", *numbers, scenario.number),
            "into another folder": scenario.moved(scenario.folders[0], *numbers),
            "they are gone": {**scenario.moved("trash", *numbers), "trash": ()},
        },
    )


@scenario_family(
    MailScenario,
    "mail_mark",
    "medium",
    "mark the mails of a person",
    abilities=("find something", "use menus and dialogs", "work in several steps"),
)
def mark_mails(scenario: MailScenario) -> Task:
    numbers, every = scenario.numbers(scenario.often), tuple(scenario.mails)
    (twin,) = scenario.numbers(scenario.namesake)

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        marked = await read(mail_reader.marked_mails, await read_file(desktop, MARKS))
        found = None if marked is None else sorted(set(marked))
        return [clause("the marked mails", found, [*numbers]), await scenario.found(desktop, scenario.start)]

    def state(*marked: int, flag: int = mail_reader.MARKED) -> FileContents:
        pairs = [part for each in every for part in (each, flag if each in marked else 0)]
        return {**scenario.files(), MARKS: struct.pack(f"<{1 + len(pairs)}I", mail_reader.MARKS_VERSION, *pairs)}

    steps = [ops for each in numbers for ops in (scenario.row(each), press("shift+8"))]
    return scenario.mail_task(
        f"mark every mail from {scenario.often}, so that it has a check mark in the list, and then quit the program",
        [*steps, press("ctrl+q")],
        clauses,
        {
            "only two of them": state(*numbers[1:]),
            "one too many": state(*numbers, twin),
            "all mails": state(*every),
            "marked as unread": state(*numbers, flag=2),
            "no file of marks": {**scenario.files(), MARKS: b"\2\0\0"},
        },
        state(*numbers),
    )


def ask(scenario: MailScenario, name: str, answer: str | None) -> Task:
    return told_task(
        scenario,
        f"In the mail program find out {ASKED[scenario.fact]} that {name} wrote about, and answer with just the number",
        scenario.files(),
        [scenario.row(each) for each in scenario.numbers(name)],
        answer,
        wrong_answers=[str(value) for who, value in scenario.facts.items() if who != name] if answer else (),
        unchanged=lambda desktop: scenario.found(desktop, scenario.start),
    )


@scenario_family(
    MailScenario,
    "mail_ask",
    "easy",
    "say what a mail says",
    abilities=("find something", "answer a question"),
)
def ask_mail(scenario: MailScenario) -> Task:
    return ask(scenario, scenario.person, str(scenario.facts[scenario.person]))


@scenario_family(
    MailScenario,
    "mail_ask_missing",
    "medium",
    "say what a person wrote who did not write",
    abilities=("find something", "recognize an infeasible task"),
)
def ask_missing(scenario: MailScenario) -> Task:
    return ask(scenario, scenario.missing, None)


@scenario_family(
    MailScenario,
    "mail_attachment",
    "medium",
    "save an attachment",
    abilities=("find something", "use menus and dialogs", "manage files"),
)
def save_attachment(scenario: MailScenario) -> Task:
    attachments = {each: (scenario.mails[each].attachment or ("", b""))[1] for each in scenario.mails}
    number, (twin,), name = scenario.number, scenario.numbers(scenario.namesake), scenario.attached
    path = f"Documents/{name}"

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        saved = await read_folder(desktop, "Documents")
        files = same_files("the files in Documents", saved, {name: attachments[number]})
        return [files, await scenario.found(desktop, scenario.start)]

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield scenario.row(number)
        yield [click_at(scenario.x + scenario.size[0] + PART_PX[0], scenario.y + PART_PX[1]), *press("y")]
        dialog = await hd_screen.wait_shown(desktop, "Save as")
        yield [click_at(dialog.x + PLACE_PX[0], dialog.y + PLACE_PX[1])]
        await hd_screen.wait_still(desktop, 0.4)
        yield [click_at(dialog.x + dialog.width - 48, dialog.y + dialog.height - 23)]

    def state(data: bytes, where: str = path) -> FileContents:
        return {**scenario.files(), where: data}

    return scenario.mail_task(
        f'save the attachment {name} of the mail "{scenario.subject}" from {scenario.person} in the folder Documents',
        steps,
        clauses,
        {
            "of the other one": state(attachments[twin]),
            "in Downloads": state(attachments[number], f"Downloads/{name}"),
            "with another name": state(attachments[number], "Documents/2.csv"),
            "the whole mail": state(scenario.contents[number]),
            "cut short": state(attachments[number][:-2]),
        },
        state(attachments[number]),
    )


@scenario_family(
    MailScenario,
    "mail_folder",
    "medium",
    "create a folder and move a mail into it",
    abilities=("find something", "use menus and dialogs", "work in several steps"),
)
def make_folder(scenario: MailScenario) -> Task:
    number, new, (twin,) = scenario.number, scenario.new_folder, scenario.numbers(scenario.namesake)
    root = scenario.x + 70, scenario.y + ROOT_ROW_PX

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [Click(Point(*root, hd_screen.SPACE), button="right")]
        await hd_screen.wait_still(desktop, 0.4)
        yield [click_at(root[0] + CREATE_PX[0], root[1] + CREATE_PX[1])]
        await hd_screen.wait_shown(desktop, "New folder")
        yield [*press("ctrl+a"), Type(new), *press("enter")]
        await hd_screen.wait_closed(desktop, "New folder")
        async for ops in move(scenario, desktop, number, scenario.folder_row(new)):
            yield ops

    return scenario.edit_task(
        f'create the folder {new} next to the inbox, and move the mail "{scenario.subject}" from {scenario.person} '
        "into it",
        steps,
        scenario.moved(new, number),
        {
            "the mail of the other one": scenario.moved(new, twin),
            "both mails": scenario.moved(new, number, twin),
            "into another folder": scenario.moved(scenario.folders[0], number),
            "it is copied": {**scenario.start, new: (number,)},
        },
    )


def write_mail(
    scenario: MailScenario, open_it: list[list[Op]], text: list[tuple[tuple[int, int], str]], button: tuple[int, int]
) -> Steps:
    """Return the steps that open the window of a new mail, type texts at places in it, and click on a button."""

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        for ops in open_it:
            yield ops
        window = await hd_screen.wait_shown(desktop, "Compose message")
        for (x, y), typed in text:
            yield [click_at(window.x + x, window.y + y), Type(typed)]
        yield [click_at(window.x + button[0], window.y + button[1])]

    return steps


@scenario_family(
    MailScenario,
    "mail_draft",
    "medium",
    "write a mail and save it as a draft",
    abilities=("fill in a form", "edit text"),
)
def write_draft(scenario: MailScenario) -> Task:
    to, subject, text = scenario.addresses[scenario.person], scenario.new_subjects[0], scenario.new_text
    wanted = {"to": [to], "subject": subject, "text": text, "parts": 1}
    other = scenario.addresses[scenario.namesake]
    ends = scenario.new_mail(
        "draft",
        wanted,
        {
            "to another": {"to": [other]},
            "to one more": {"to": [to, other]},
            "no subject": {"subject": ""},
            "subject and text swapped": {"subject": text, "text": subject},
            "another text": {"text": text[:-1]},
            "in the queue": {"folder": "queue"},
        },
    )
    typed = [(TO_PX, to), (SUBJECT_PX, subject), (BODY_PX, text)]
    return scenario.mail_task(
        f'write a new mail to {to} with the subject "{subject}" and the text "{text}", and save it as a draft',
        write_mail(scenario, [press("ctrl+m")], typed, DRAFT_PX),
        **ends,
    )


@scenario_family(
    MailScenario,
    "mail_reply",
    "medium",
    "answer the mail of the right person",
    abilities=("find something", "edit text", "work in several steps"),
)
def reply(scenario: MailScenario) -> Task:
    text, (twin,), number = scenario.new_text, scenario.numbers(scenario.namesake), scenario.number
    to, other, subject = scenario.addresses[scenario.person], scenario.addresses[scenario.namesake], scenario.subject
    wanted = {"to": [to], "subject": f"Re: {subject}", "text": text, "answers": message_id(number), "parts": 1}
    ends = scenario.new_mail(
        "queue",
        wanted,
        {
            "to the other one": {"to": [other], "answers": message_id(twin)},
            "to both": {"to": [to, other]},
            "a new mail": {"answers": ""},
            "another text": {"text": text[:-1]},
            "no text": {"text": ""},
            "as a draft": {"folder": "draft"},
        },
    )
    return scenario.mail_task(
        f'reply to the mail "{subject}" from {scenario.person} with the text "{text}", and choose to send it later, so '
        "that it is in the folder Queue",
        write_mail(scenario, [scenario.row(number), press("ctrl+r")], [(BODY_PX, text)], LATER_PX),
        **ends,
    )


@scenario_family(
    MailScenario,
    "mail_to_note",
    "hard",
    "write what several mails say in a note",
    "mousepad",
    abilities=("find something", "edit text", "work in several steps", "carry data between programs"),
)
def mail_to_note(scenario: MailScenario) -> Task:
    names = scenario.rng.sample([scenario.person, scenario.namesake, *list(scenario.facts)[2:]], 3)
    said, wanted = "".join(f"{name}\n" for name in names), [f"{name} {scenario.facts[name]}" for name in names]

    async def lines(desktop: StageableDesktop) -> list[str]:
        return [" ".join(line.split()) for line in (await note(desktop) or "").splitlines()]

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        found = clause("the lines of the note", await lines(desktop), wanted)
        return [found, await scenario.found(desktop, scenario.start)]

    async def setup(desktop: StageableDesktop) -> None:
        await open_beside(scenario, desktop, "Claws Mail", said)
        scenario.x, scenario.y = hd_screen.LEFT_PX

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        for name in names:
            for number in scenario.numbers(name):
                yield scenario.row(number)
                await hd_screen.wait_still(desktop, 0.4)
        yield [click_in((await desktop.wait_window("mousepad"))[0])]
        yield [*press("ctrl+a"), Type("\n".join(wanted))]
        yield press("ctrl+s")

    async def share_written(desktop: StageableDesktop) -> float:
        found = await lines(desktop)
        return sum(line in found for line in wanted) / len(wanted)

    def state(*written: str) -> FileContents:
        return {**scenario.files(), NOTE: "".join(f"{line}\n" for line in written).encode()}

    swapped = [f"{name} {scenario.facts[other]}" for name, other in zip(names, names[::-1], strict=True)]
    return scenario.mail_task(
        f"find out {ASKED[scenario.fact]} that each person in note.txt wrote about. Write the number behind the name "
        "in note.txt, with a space between them, and save it",
        steps,
        clauses,
        {
            "only two": state(*wanted[:2], names[2]),
            "swapped": state(*swapped),
            "only numbers": state(*(line.split()[-1] for line in wanted)),
            "one too many": state(*wanted, wanted[0]),
            "another order": state(*wanted[::-1]),
        },
        state(*wanted),
        setup=setup,
        max_steps=18,
        milestones=(milestone("lines are written", 0.4, share_written),),
    )
