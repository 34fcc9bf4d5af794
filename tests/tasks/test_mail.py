"""Mails: what a check reads of Claws Mail's files, and what it makes of files that are forged, damaged or hostile."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from test_near_misses import judged

from deskhand.tasks.guest_files import MAX_FILES
from deskhand.tasks.mail_reader import mail_facts, marked_mails
from deskhand.tasks.outcome import Scored
from deskhand.tasks.suites.basics import FAMILIES
from deskhand.tasks.suites.basics.mailbox import MARKS, MailScenario, message_id, read
from deskhand.tasks.task import FileContents

NAMES = sorted(name for name in FAMILIES if name.startswith("mail_"))
MOVED = ("mail_move", "mail_trash", "mail_folder")
QUEUED = b"""AF:
S:alex@home.example
R:<tom@oak.example>
RMID:#mh/Mail/inbox\t3\t<3@home.example>
X-Claws-End-Special-Headers: 1
From: Alex Morgan <alex@home.example>
To: Tom Lee <tom@oak.example>
Subject: Re: Photos
In-Reply-To: <3@home.example>
Content-Type: text/plain; charset=US-ASCII

On Mon, 03 Jun 2026 09:03:00 +0000
Tom Lee <tom@oak.example> wrote:

> Here they are.
> On Monday I wrote:

Thank you.
See you
"""
FACTS = {
    "to": ["tom@oak.example"],
    "subject": "Re: Photos",
    "text": "Thank you. See you",
    "answers": "<3@home.example>",
}


async def score(name: str, seed: int, files: FileContents, folder: Path) -> float:
    folders = {f"Mail/{place}" for place in MailScenario(name, seed).start} | {"Documents"}
    used = {"/".join(path.split("/")[:-1]) for path in files}
    outcome = await judged(FAMILIES[name].generate(seed), folder, files, folders - used)
    assert isinstance(outcome, Scored)
    return outcome.value


def test_a_queued_reply_is_read_without_its_quote() -> None:
    assert mail_facts(QUEUED) == FACTS | {"parts": 1}


@pytest.mark.parametrize(
    ("old", "new", "key", "value"),
    [
        (b"Subject:", b"Cc: Ann <ANN@elm.example>\nSubject:", "to", ["ann@elm.example", "tom@oak.example"]),
        (b"Subject:", b"Bcc: ann@elm.example\nSubject:", "to", ["ann@elm.example", "tom@oak.example"]),
        (b"R:<tom@oak.example>", b"R:<ann@elm.example>", "to", ["ann@elm.example", "tom@oak.example"]),
        (b"Subject: Re: Photos\n", b"", "subject", ""),
        (b"Thank you.", b"Thank   you.\r", "text", "Thank you. See you"),
        (b"Thank you.", b"Thank \xff.", "text", "Thank \N{REPLACEMENT CHARACTER}. See you"),
        (b"In-Reply-To: <3", b"In-Reply-To: <4", "answers", "<4@home.example>"),
    ],
)
def test_recipients_subject_and_text_are_read_as_the_program_may_write_them(
    old: bytes, new: bytes, key: str, value: object
) -> None:
    assert mail_facts(QUEUED.replace(old, new))[key] == value


async def test_hostile_mails_and_marks_are_wrong_answers() -> None:
    deep = b"".join(b'Content-Type: multipart/mixed; boundary="%d"\n\n--%d\n' % (n, n) for n in range(20_000))
    wide = b'Content-Type: multipart/mixed; boundary="a"\n\n' + b"--a\n\nx\n" * 500_000
    for data in (deep, wide, b"To: " + b"(" * 1_000_000, b"\0" * 100_000, b"noise", b"", None, b"x" * (40 * 2**20)):
        found = await read(mail_facts, data)
        assert found is None or found["to"] != FACTS["to"]
    for data in (b"", None, b"\2\0\0", struct.pack("<II", 2, 1), struct.pack("<III", 9, 1, 4), b"\2\0\0\0" * (2**24)):
        assert await read(marked_mails, data) is None


def test_marked_mails_are_those_with_the_flag() -> None:
    assert marked_mails(struct.pack("<7I", 2, 1, 4, 2, 2, 3, 4 | 8)) == [1, 3]


@pytest.mark.parametrize("name", MOVED)
async def test_only_mails_count_and_the_files_of_the_program_do_not(name: str, tmp_path: Path) -> None:
    states = FAMILIES[name].generate(1).example_end_states
    assert states is not None
    right = dict(states().positive or {})
    assert await score(name, 1, right, tmp_path) == 1.0
    moved = next(path for path in right if not path.startswith("Mail/inbox"))
    mail = MailScenario(name, 1)
    told = next(each for number, each in mail.mails.items() if mail.contents[number] == right[moved])
    folder, data = moved.rpartition("/")[0], right.pop(moved)
    wrong: dict[str, FileContents] = {
        "named like the mail": {f"{folder}/{told.subject} ({told.sender})": b"x"},
        "hidden": {f"{folder}/.1": data},
        "below": {f"{folder}/1/1": data},
        "twice": {moved: data, f"{folder}/7": data},
        "changed": {moved: data + b"\n"},
        "another folder too": {moved: data, "Mail/Other/1": data},
        "too many": {moved: data, **{f"{folder}/{number}": b"" for number in range(2, MAX_FILES + 3)}},
    }
    for what, files in wrong.items():
        assert await score(name, 1, {**right, **files}, tmp_path) == 0.0, what
    own = {f"{folder}/.claws_cache": b"x", f"{folder}/.mh_sequences": b"", MARKS: b"x"}
    assert await score(name, 1, right | own | {f"{folder}/8": data}, tmp_path) == 1.0


@pytest.mark.parametrize("name", NAMES)
def test_people_and_mails_are_told_apart(name: str) -> None:
    for seed in range(40):
        scenario = MailScenario(name, seed)
        assert len(set(scenario.addresses.values())) == len(scenario.addresses) == 7
        assert len({(mail.sender, mail.subject) for mail in scenario.mails.values()}) == len(scenario.mails) == 9
        assert scenario.person.split()[0] == scenario.namesake.split()[0]
        assert scenario.missing not in scenario.addresses
        assert len({*scenario.contents.values()}) == 9
        assert len(scenario.numbers(scenario.often)) == 3
        assert all(message_id(number).encode() in content for number, content in scenario.contents.items())
        assert len(set(scenario.facts.values())) == len(scenario.facts) == 6
