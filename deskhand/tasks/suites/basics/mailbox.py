"""`MailScenario`: an inbox in Claws Mail, and what a check reads of its folders. The families are in `mail`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any

from deskhand.actions.ops import Done, Op
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks import mail_reader
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.guest_files import list_folder, read_folder
from deskhand.tasks.outcome import Finding
from deskhand.tasks.subprocess_call import read_in_subprocess
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.hd_screen import HdScenario, Steps, click_at
from deskhand.tasks.suites.basics.layout import scatter
from deskhand.tasks.suites.basics.scenario import THEMES, clause, same_files
from deskhand.tasks.suites.basics.screen_search import wait_until
from deskhand.tasks.task import ExampleEndStates, FileContents, Task

FIRST = ("Rosa", "Tom", "Ann", "Greta", "Omar", "Lena", "Victor", "Mia", "Paul", "Nora", "Sam", "Ines")
LAST = ("Diaz", "Lee", "Poe", "Stone", "Webb", "Novak", "Hale", "Brandt", "Silva", "Kerr", "Moss", "Ito")
DOMAINS = ("pine.example", "oak.example", "elm.example", "birch.example")
SUBJECTS = (
    "Lunch on Friday", "The new printer", "Keys for the office", "Your order", "Summer party", "Minutes of the meeting",
    "A question", "Train tickets", "The broken window", "Photos", "Reading list", "Parking",
)  # fmt: skip
LINES = ("I hope you are well.", "Sorry for the late reply.", "Thank you for your help.", "It was good to see you.")
FACTS = {
    "room": "The meeting is in room {}.",
    "price": "The repair costs {} dollars.",
    "code": "The code of the door is {}.",
    "seat": "Your seat has the number {}.",
}
ASKED = {
    "room": "in which room the meeting is",
    "price": "how many dollars the repair costs",
    "code": "what the code of the door is",
    "seat": "which number the seat has",
}
FOLDERS = ("Bills", "Clubs", "Family", "Garden", "School", "Travel", "Work")
ATTACHED = ("list.csv", "prices.csv", "members.csv", "hours.csv")
TEXTS = ("That suits me well.", "Please call me tomorrow.", "I will bring the papers.", "Noon is too early for me.")
INBOX, SYSTEM = "Mail/inbox", ("inbox", "sent", "draft", "queue", "trash")
MARKS = f"{INBOX}/.claws_mark"
ROOT_ROW_PX, ROW_PX, MAIL_PX = 130, 17, 400
"""In the window: the middle of the rows of the mailbox and of the first mail, the next row, and the mails."""
SELECT_ROOT_PX, SELECT_ROW_PX = 33, 18
"""The same in the dialog Select folder."""
PART_PX, PLACE_PX = (-19, 466), (75, 152)
"""The icon of the attachment, from the right edge of the window, and the folder Documents in the dialog Save as."""
TO_PX, SUBJECT_PX, BODY_PX, LATER_PX, DRAFT_PX = (330, 188), (400, 312), (300, 450), (118, 58), (200, 58)
"""In the window of a new mail: three fields, and the buttons Send later and Draft."""
CREATE_PX = (90, 13)
"""In the context menu of a folder, from where it was opened."""
Folders = Mapping[str, tuple[int, ...]]
"""The numbers of the mails, as they were in the inbox, that are in each folder."""


@dataclass(frozen=True)
class Mail:
    sender: str
    address: str
    subject: str
    text: str
    attachment: tuple[str, bytes] | None

    def content(self, number: int) -> bytes:
        """Return the file. `number`, from 1 on, gives it a date and an ID."""
        message = EmailMessage()
        message["From"] = f"{self.sender} <{self.address}>"
        message["To"] = "Alex Morgan <alex@home.example>"
        message["Subject"] = self.subject
        message["Date"] = f"{('Mon', 'Tue', 'Wed', 'Thu', 'Fri', 'Sat', 'Sun')[number % 7 - 1]}, {number:02} Jun 2026"
        message.replace_header("Date", f"{message['Date']} 09:{number:02}:00 +0000")
        message["Message-ID"] = message_id(number)
        message.set_content(self.text)
        if self.attachment is not None:
            name, data = self.attachment
            message.add_attachment(data, maintype="text", subtype="csv", filename=name)
            message.set_boundary("part")
        return message.as_bytes()


def message_id(number: int) -> str:
    return f"<{number}@home.example>"


class MailScenario(HdScenario):
    """An inbox of nine mails. Two people share a first name and a subject, and one person wrote three mails."""

    applications = ("claws-mail",)
    size = (1180, 640)

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        rng = self.rng
        self.theme = rng.choice(THEMES)
        firsts, lasts, subjects = rng.sample(FIRST, 7), rng.sample(LAST, 8), rng.sample(SUBJECTS, 9)
        self.person, self.often, *others, self.missing = map(" ".join, zip(firsts, lasts, strict=False))
        self.namesake = f"{firsts[0]} {lasts[7]}"
        self.subject, *self.new_subjects = subjects
        self.fact = rng.choice(list(FACTS))
        self.facts: dict[str, int] = dict(
            zip((self.person, self.namesake, *others), rng.sample(range(100, 999), 6), strict=True)
        )
        self.attached = rng.choice(ATTACHED)
        self.new_text = rng.choice(TEXTS)
        *self.folders, self.new_folder = rng.sample(FOLDERS, 4)
        senders = [self.person, self.namesake, *others, *[self.often] * 3]
        rng.shuffle(senders)
        self.addresses = {name: f"{'.'.join(name.split()).lower()}@{rng.choice(DOMAINS)}" for name in senders}
        self.mails = {number: self._mail(name) for number, name in enumerate(senders, 1)}
        self.contents = {number: mail.content(number) for number, mail in self.mails.items()}
        ((self.x, self.y),) = scatter(rng, [self.size], self.width, self.height)

    def _mail(self, name: str) -> Mail:
        twins = (self.person, self.namesake)
        lines = [self.rng.choice(LINES), FACTS[self.fact].format(self.facts[name])] if name in self.facts else LINES[:2]
        rows = "".join(f"{self.rng.choice(LAST)},{self.rng.randint(10, 99)}\n" for _ in range(4)).encode()
        subject = self.subject if name in twins else self.new_subjects.pop()
        attachment = (self.attached, rows) if name in (*twins, self.often) else None
        return Mail(name, self.addresses[name], subject, "\n".join(lines), attachment)

    def numbers(self, *names: str) -> tuple[int, ...]:
        """Return the numbers of the mails of these people."""
        return tuple(number for number, mail in self.mails.items() if mail.sender in names)

    @property
    def number(self) -> int:
        (number,) = self.numbers(self.person)
        return number

    @property
    def start(self) -> dict[str, tuple[int, ...]]:
        return {"inbox": tuple(self.mails), **dict.fromkeys((*SYSTEM[1:], *self.folders), ())}

    def moved(self, folder: str, *numbers: int) -> dict[str, tuple[int, ...]]:
        """Return the folders after these mails were moved."""
        left = tuple(number for number in self.mails if number not in numbers)
        return self.start | {"inbox": left, folder: numbers}

    def files(self, folders: Folders | None = None) -> dict[str, bytes]:
        """Return the files of the mails in these folders, as a program would leave them; default: the start."""
        found = {}
        for folder, numbers in (folders or self.start).items():
            for place, number in enumerate(numbers, 1):
                name = number if folder == "inbox" else place
                found[f"Mail/{folder}/{name}"] = self.contents[number]
        return found

    async def setup(self, desktop: StageableDesktop) -> None:
        for folder in self.start:
            await desktop.push(f"Mail/{folder}/.mh_sequences", b"")
        for path, data in self.files().items():
            await desktop.push(path, data)
        listed = (await desktop.pull(".claws-mail/folderlist.xml")).decode()
        more = "".join(f'<folderitem type="normal" name="{name}" path="{name}"/>' for name in self.folders)
        await desktop.push(".claws-mail/folderlist.xml", listed.replace("</folder>", f"{more}</folder>").encode())
        await desktop.launch(["claws-mail", "--select", "#mh/Mail/inbox"])
        (window,) = await desktop.wait_window("Claws Mail", timeout_s=hd_screen.WINDOW_TIMEOUT_S)
        await desktop.place_window(window, self.x, self.y, *self.size)
        await hd_screen.wait_responsive(desktop, "down", "home")

    async def found(self, desktop: StageableDesktop, wanted: Folders, *skipped: str) -> Finding:
        """Return the clause that exactly these mails are in these folders, and no other folder is there."""
        names = {self.contents[number]: f"{mail.subject} ({mail.sender})" for number, mail in self.mails.items()}
        expected = {f"{folder}/{names[self.contents[each]]}": 1 for folder in wanted for each in wanted[folder]}
        shown: dict[str, Any] = {}
        for folder in await list_folder(desktop, "Mail"):
            if folder not in wanted and not folder.startswith("."):
                shown[folder] = "another folder"
            elif folder not in skipped:
                for name, data in (await read_folder(desktop, f"Mail/{folder}")).items():
                    if not name.startswith("."):
                        known = names.get(data or b"") if name.isdigit() else None
                        key = f"{folder}: file {name}" if known is None else f"{folder}/{known}"
                        shown[key] = shown.get(key, 0) + 1
        return same_files("the mails", shown, expected)

    async def written(self, desktop: StageableDesktop, folder: str) -> list[dict[str, Any] | None]:
        """Return the facts of the mails that were written into a folder; None for what is no mail."""
        found = await read_folder(desktop, f"Mail/{folder}")
        return [await read(mail_reader.mail_facts, data) for name, data in found.items() if not name.startswith(".")]

    def row(self, number: int) -> list[Op]:
        """Return the click on a mail of the inbox, from which nothing was taken yet."""
        return [click_at(self.x + MAIL_PX, self.y + ROOT_ROW_PX + ROW_PX * (number - 1))]

    def folder_row(self, name: str) -> int:
        """Return the row of a folder in lists of folders, in which the mailbox is the first."""
        return [*SYSTEM, *sorted({*self.folders, name} - {*SYSTEM})].index(name) + 1

    def edit_task(
        self, instruction: str, steps: Steps, wanted: Folders, wrong: Mapping[str, Folders], **fields: Any
    ) -> Task:
        """Return a task. The mails must be in the folders `wanted`; each of `wrong` is nearly right."""

        async def clauses(desktop: StageableDesktop) -> list[Finding]:
            return [await self.found(desktop, wanted)]

        states = {what: self.files(folders) for what, folders in wrong.items()}
        states["cut short"] = {
            path: data[: -2 if path.startswith(INBOX) else None] for path, data in self.files(wanted).items()
        }
        return self.mail_task(instruction, steps, clauses, states, self.files(wanted), **fields)

    def mail_task(
        self,
        instruction: str,
        steps: Steps,
        clauses: Any,
        wrong: Mapping[str, FileContents],
        right: FileContents | None,
        **fields: Any,
    ) -> Task:
        """Return a task whose end must meet `clauses`. `wrong` are files that are nearly right."""

        async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
            async for ops in hd_screen.play(desktop, steps):
                yield ops
                await hd_screen.wait_still(desktop, 0.4)

            async def is_done() -> bool:
                return all(finding.value == 1.0 for finding in await clauses(desktop))

            await wait_until(is_done, 10.0, interval_s=0.1)
            yield [Done()]

        return self.build_task(
            f"In the mail program {instruction}",
            clauses=clauses,
            oracle=oracle,
            example_end_states=lambda: ExampleEndStates(dict(wrong), right),
            **({"max_steps": 12} | fields),
        )

    def new_mail(
        self, folder: str, wanted: Mapping[str, Any], wrong: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return the clauses, and the states of the end, of a task in which a mail is written into a folder."""

        async def clauses(desktop: StageableDesktop) -> list[Finding]:
            written = [{key: (each or {}).get(key) for key in wanted} for each in await self.written(desktop, folder)]
            return [
                clause(f"the mails in {folder}", written, [dict(wanted)]),
                await self.found(desktop, self.start, folder),
            ]

        def state(change: Mapping[str, Any]) -> FileContents:
            facts = {**wanted, **change}
            message = EmailMessage()
            message["To"], message["Subject"] = ", ".join(facts["to"]), facts["subject"]
            message["In-Reply-To"] = facts.get("answers", "")
            message.set_content(facts["text"])
            return {**self.files(), f"Mail/{facts.get('folder', folder)}/1": message.as_bytes()}

        return {"clauses": clauses, "wrong": {what: state(each) for what, each in wrong.items()}, "right": state({})}


async def read(reader: Any, data: bytes | None) -> Any:
    """Return what a reader of `mail_reader` finds in a file, or None."""
    try:
        return await read_in_subprocess(reader, data or b"")
    except InvalidDocument:
        return None
