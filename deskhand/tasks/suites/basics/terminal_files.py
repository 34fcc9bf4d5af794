"""Families `shell_*`: files in a terminal. Only the resulting files are judged, not how they were made."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import AsyncIterator, Callable
from typing import Any

from deskhand.actions.ops import Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks import document_readers
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.guest_files import list_folder, read_file, read_folder
from deskhand.tasks.outcome import Finding
from deskhand.tasks.subprocess_call import read_in_subprocess
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.hd_screen import HdScenario, click_in, press
from deskhand.tasks.suites.basics.scenario import (
    THEMES,
    Clauses,
    clause,
    milestone,
    near_misses,
    same_files,
    scenario_family,
)
from deskhand.tasks.task import ExampleEndStates, FileContents, Milestone, Task

FOLDER = "Papers"
STEMS = ("bill", "letter", "plan", "list", "draft", "photo", "poem", "table", "index", "report")
WORDS = (
    "apple", "bread", "cloud", "delta", "eagle", "flame", "grape", "house", "island", "jewel", "lemon", "melon",
    "north",
)  # fmt: skip
PLACES = ("north", "south", "east", "west")


class TerminalFilesScenario(HdScenario):
    """A terminal in a folder of files."""

    applications = ("xfce4-terminal",)

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        self.theme = self.rng.choice(THEMES)
        self.size = (self.rng.randint(80, 110), self.rng.randint(20, 28))
        self.files: dict[str, bytes] = {}
        """By path relative to the folder."""

    async def setup(self, desktop: StageableDesktop) -> None:
        for path, data in self.files.items():
            await desktop.push(f"{FOLDER}/{path}", data)
        geometry = f"--geometry={self.size[0]}x{self.size[1]}"
        await desktop.launch(["xfce4-terminal", "--disable-server", geometry], cwd=FOLDER)
        await desktop.wait_window("xfce4-terminal")
        await hd_screen.wait_still(desktop, 0.4)

    def shell_task(
        self,
        instruction: str,
        command: str,
        clauses: Clauses,
        result: str,
        end_states: Callable[[], ExampleEndStates],
        *milestones: Milestone,
        **fields: Any,
    ) -> Task:
        """Return a task. `command` is what the oracle types, `result` the last file that it creates."""

        async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
            (window,) = await desktop.wait_window("xfce4-terminal")
            yield [click_in(window)]
            yield [Type(command)]
            yield press("enter")

        return self.build_task(
            instruction,
            max_steps=8,
            clauses=clauses,
            oracle=hd_screen.until_written(f"{FOLDER}/{result}", steps),
            milestones=milestones,
            example_end_states=end_states,
            oracle_knows=("sort -u", "tar -czf", "mkdir", "mv"),
            **fields,
        )

    def random_text(self) -> bytes:
        return "".join(
            f"{self.rng.choice(WORDS)} {self.rng.randint(1, 99)}\n" for _ in range(self.rng.randint(2, 6))
        ).encode()


@scenario_family(
    TerminalFilesScenario,
    "shell_sort",
    "medium",
    "sort the lines of a file into another",
    abilities=("use a shell", "manage files"),
)
def sort_lines(scenario: TerminalFilesScenario) -> Task:
    lines = scenario.rng.choices(WORDS, k=scenario.rng.randint(12, 20))
    lines += scenario.rng.sample(lines, 3)
    result = f"{scenario.rng.choice(STEMS)}.txt"
    scenario.files["words.txt"] = "".join(f"{line}\n" for line in lines).encode()
    wanted = "".join(f"{line}\n" for line in sorted(set(lines))).encode()

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        return [
            same_files("the files of the folder", await read_folder(desktop, FOLDER), scenario.files | {result: wanted})
        ]

    def end_states() -> ExampleEndStates:
        right = {f"{FOLDER}/{name}": data for name, data in (scenario.files | {result: wanted}).items()}
        path = f"{FOLDER}/{result}"
        doubled = "".join(f"{line}\n" for line in sorted(lines)).encode()
        mixed = "".join(f"{line}\n" for line in dict.fromkeys(lines)).encode()
        in_place = {**right, f"{FOLDER}/words.txt": wanted}
        return near_misses(
            right, path, with_doubles={**right, path: doubled}, not_sorted={**right, path: mixed}, words_too=in_place
        )

    text = f"In the terminal write the lines of words.txt into {result}, sorted from A to Z and each only once"
    return scenario.shell_task(text, f"sort -u words.txt > {result}", clauses, result, end_states)


@scenario_family(
    TerminalFilesScenario,
    "shell_pack",
    "hard",
    "archive all files of one type",
    abilities=("use a shell", "manage files"),
)
def pack(scenario: TerminalFilesScenario) -> Task:
    kind, other = scenario.rng.sample(["txt", "csv", "log"], 2)
    stems = scenario.rng.sample(STEMS, 6)
    for index, stem in enumerate(stems):
        scenario.files[f"{stem}.{kind if index < 3 else other}"] = scenario.random_text()
    wanted = {name: data for name, data in scenario.files.items() if name.endswith(kind)}

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        found = await read_folder(desktop, FOLDER)
        packed = found.pop("packed.tar.gz", None)
        return [
            same_files("the other files of the folder", found, scenario.files),
            same_files("the content of packed.tar.gz", await members_of(packed) or {}, wanted),
        ]

    async def packed_files(desktop: StageableDesktop) -> dict[str, bytes] | None:
        data = await read_file(desktop, f"{FOLDER}/packed.tar.gz")
        return None if data is None else await members_of(data)

    async def is_archive(desktop: StageableDesktop) -> bool:
        return await packed_files(desktop) is not None

    async def share_packed(desktop: StageableDesktop) -> float:
        found = await packed_files(desktop) or {}
        return sum(found.get(name) == data for name, data in wanted.items()) / len(wanted)

    def end_states() -> ExampleEndStates:
        def with_archive(files: dict[str, bytes]) -> FileContents:
            return {
                f"{FOLDER}/{name}": data
                for name, data in (scenario.files | {"packed.tar.gz": archive_of(files)}).items()
            }

        first = next(iter(wanted))
        negatives = {
            "all files are in it": with_archive(scenario.files),
            "one file is missing": with_archive({name: data for name, data in wanted.items() if name != first}),
            "one file is empty": with_archive({**wanted, first: b""}),
            "its files are gone": {f"{FOLDER}/packed.tar.gz": archive_of(wanted)},
        }
        return ExampleEndStates(negatives, with_archive(wanted))

    archive = "packed.tar.gz (a gzipped tar archive)"
    text = f"In the terminal pack all .{kind} files of the folder, and only these, into {archive}"
    milestones = (
        milestone("an archive is there", 0.1, is_archive),
        milestone("the files are in it", 0.2, share_packed),
    )
    return scenario.shell_task(
        text, f"tar -czf packed.tar.gz *.{kind}", clauses, "packed.tar.gz", end_states, *milestones
    )


def archive_of(files: dict[str, bytes]) -> bytes:
    """Return a gzipped archive of these files."""
    buffer = io.BytesIO()
    packed = gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0)  # else the bytes would depend on the time
    with packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


async def members_of(data: bytes | None) -> dict[str, bytes] | None:
    """Return the regular files of an archive by name; None if it is not one."""
    try:
        found = await read_in_subprocess(document_readers.read_archive, data or b"")
    except InvalidDocument:
        return None
    return {name: text.encode("latin-1") for name, text in found.items()}


@scenario_family(
    TerminalFilesScenario,
    "shell_collect",
    "hard",
    "collect all files of one type from several folders",
    abilities=("use a shell", "manage files", "work in several steps"),
)
def collect(scenario: TerminalFilesScenario) -> Task:
    kind, other = scenario.rng.sample(["txt", "csv", "log"], 2)
    stems = scenario.rng.sample(STEMS, 8)
    for index, stem in enumerate(stems):
        text = scenario.random_text()
        scenario.files[f"{PLACES[index % 4]}/{stem}.{scenario.rng.choice([kind, kind, other])}"] = text
    scenario.files[f"{PLACES[0]}/first.{kind}"] = scenario.random_text()
    moved = {path.split("/")[1]: data for path, data in scenario.files.items() if path.endswith(kind)}
    unmoved = {path: data for path, data in scenario.files.items() if not path.endswith(kind)}

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        found = {place: await read_folder(desktop, f"{FOLDER}/{place}") for place in PLACES}
        left = {f"{place}/{name}": data for place, files in found.items() for name, data in files.items()}
        return [
            same_files("the files of the folder All", await read_folder(desktop, f"{FOLDER}/All"), moved),
            same_files("the remaining files of the other folders", left, unmoved),
            clause("the folders", await list_folder(desktop, FOLDER), sorted(["All", *PLACES])),
        ]

    async def has_folder(desktop: StageableDesktop) -> bool:
        return "All" in await list_folder(desktop, FOLDER)

    async def share_moved(desktop: StageableDesktop) -> float:
        found = await read_folder(desktop, f"{FOLDER}/All")
        return sum(found.get(name) == data for name, data in moved.items()) / len(moved)

    def end_states() -> ExampleEndStates:
        def at_home(files: dict[str, bytes]) -> FileContents:
            return {f"{FOLDER}/{path}": data for path, data in files.items()}

        right = unmoved | {f"All/{name}": data for name, data in moved.items()}
        others = {f"All/{path.split('/')[1]}": data for path, data in unmoved.items()} or {f"All/more.{other}": b""}
        negatives = {
            "copied": scenario.files | right,
            "one is left": {path: data for path, data in right.items() if path != f"All/first.{kind}"}
            | {f"{PLACES[0]}/first.{kind}": moved[f"first.{kind}"]},
            "one is lost": {path: data for path, data in right.items() if path != f"All/first.{kind}"},
            "others too": right | others,
        }
        return ExampleEndStates({what: at_home(files) for what, files in negatives.items()}, at_home(right))

    text = f"In the terminal make a folder All and move every .{kind} file of the four folders into it"
    milestones = (milestone("the folder is there", 0.1, has_folder), milestone("the files are in it", 0.3, share_moved))
    command = f"mkdir All && mv */*.{kind} All/"
    return scenario.shell_task(text, command, clauses, f"All/first.{kind}", end_states, *milestones)
