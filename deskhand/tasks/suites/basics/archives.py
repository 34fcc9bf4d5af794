"""Families `archive_*`: a gzipped tar archive in the archive manager Xarchiver. Only files are judged, or an answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from deskhand.actions.ops import Done, Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.guest_files import read_file
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.hd_screen import HdScenario, Steps, click_at, press
from deskhand.tasks.suites.basics.layout import scatter
from deskhand.tasks.suites.basics.scenario import THEMES, Oracle, same_files, scenario_family
from deskhand.tasks.suites.basics.screen_search import wait_until
from deskhand.tasks.suites.basics.terminal_files import STEMS, WORDS, archive_of, members_of
from deskhand.tasks.suites.basics.told_ends import read_tree, told_task
from deskhand.tasks.task import ExampleEndStates, FileContents, Task

PLACE = "Documents"
"""The folder of the archive, which file dialogs list by name."""
FOLDERS = ("Desk", "Letters", "School", "Trips", "Work")
FIRST_ROW_PX, ROW_PX = (290, 145), 23
PLACE_PX, FIRST_FILE_PX, FILE_PX = (72, 172), (230, 128), 21
CONTAINING_PX = (29, 67)
"""Places in Xarchiver's window, in its dialog for adding files, and in the one for extracting."""
EXTRACT = "In the archive manager extract the file {} of pack.tar.gz, and only this one, into the folder {}"
Files = Mapping[str, bytes]


class ArchiveScenario(HdScenario):
    """An archive of five files in Xarchiver, one more file in its folder, and a folder with a file."""

    applications = ("xarchiver",)

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        rng = self.rng
        self.theme = rng.choice(THEMES)
        *names, self.beside, self.missing = (f"{stem}.txt" for stem in rng.sample(STEMS, 7))
        counts = rng.sample(range(2, 80, 6), 5)
        self.members = {name: self.lines(count) for name, count in zip(names, counts, strict=True)}
        self.name = rng.choice(names)
        self.folder = rng.choice(FOLDERS)
        self.archive = f"{PLACE}/pack.tar.gz"
        self.files = {
            self.archive: archive_of(self.members),
            f"{PLACE}/{self.beside}": self.lines(4),
            f"{self.folder}/about.txt": f"{self.folder}\n".encode(),
        }
        self.size = rng.randint(620, 900), rng.randint(400, 500)
        ((self.x, self.y),) = scatter(rng, [self.size], self.width, self.height)

    def lines(self, count: int) -> bytes:
        return "".join(f"{self.rng.choice(WORDS)} {self.rng.randint(10, 99)}\n" for _ in range(count)).encode()

    async def setup(self, desktop: StageableDesktop) -> None:
        for path, data in self.files.items():
            await desktop.push(path, data)
        await desktop.launch(["xarchiver", self.archive])
        (window,) = await desktop.wait_window("pack.tar.gz", timeout_s=hd_screen.WINDOW_TIMEOUT_S)
        await desktop.place_window(window, self.x, self.y, *self.size)
        await hd_screen.wait_still(desktop, 0.6)

    def pack(self, members: dict[str, bytes]) -> None:
        """Let the archive have other files."""
        self.members = members
        self.files[self.archive] = archive_of(members)

    async def packed(self, desktop: StageableDesktop) -> dict[str, bytes]:
        """Return the files that the archive has now; empty if it is invalid."""
        return await members_of(await read_file(desktop, self.archive)) or {}

    def select(self, name: str, shown: Files | None = None) -> list[Op]:
        """Return the click on a file of the archive, which shows the files `shown` (default: all)."""
        row = list(shown or self.members).index(name)
        return [click_at(self.x + FIRST_ROW_PX[0], self.y + FIRST_ROW_PX[1] + ROW_PX * row)]

    def file_task(
        self,
        instruction: str,
        steps: Steps,
        members: Files,
        added: Files | None = None,
        *,
        either: Files | None = None,
        wrong: Mapping[str, tuple[Files, Files]],
        **fields: Any,
    ) -> Task:
        """Return a task. The archive's files must be `members` then, and the others the same with `added` or `either`.

        `wrong` are pairs of members and added files that are nearly right.
        """
        same = {path: data for path, data in self.files.items() if path != self.archive}
        wanted, other = same | dict(added or {}), same | dict(either or added or {})

        async def read(desktop: StageableDesktop) -> tuple[Files, dict[str, bytes | None]]:
            found = await read_tree(desktop, wanted | other | self.files)
            found.pop(self.archive, None)
            return await self.packed(desktop), found

        async def clauses(desktop: StageableDesktop) -> list[Finding]:
            packed, found = await read(desktop)
            return [
                same_files("the content of pack.tar.gz", packed, members),
                same_files("the other files", found, other if found == other else wanted),
            ]

        async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
            async for ops in hd_screen.play(desktop, steps):
                yield ops
                await hd_screen.wait_still(desktop, 0.4)

            async def is_done() -> bool:
                return all(finding.value == 1.0 for finding in await clauses(desktop))

            await wait_until(is_done, 10.0, interval_s=0.1)
            yield [Done()]

        def end_states() -> ExampleEndStates:
            def state(packed: Files, more: Files) -> FileContents:
                return {**same, **more, self.archive: archive_of(dict(packed))}

            negatives = {what: state(*pair) for what, pair in wrong.items()}
            gone = {path: data for path, data in state(members, added or {}).items() if path != self.archive}
            return ExampleEndStates({**negatives, "the archive is gone": gone}, state(members, added or {}))

        return self.build_task(
            instruction,
            clauses=clauses,
            oracle=oracle,
            example_end_states=end_states,
            oracle_knows=("/home/user",),
            **({"max_steps": 12} | fields),
        )


def extract_to(folder: str, *, contained: bool = True) -> Oracle:
    """Return the steps in the dialog for extracting; without `contained`, no folder is made for the files."""

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield press("ctrl+e")
        dialog = await hd_screen.wait_shown(desktop, "Extract")
        yield [*press("ctrl+a"), Type(f"/home/user/{folder}")]
        if not contained:
            yield [click_at(dialog.x + CONTAINING_PX[0], dialog.y + CONTAINING_PX[1])]
        yield press("enter")

    return steps


async def add_steps(scenario: ArchiveScenario, desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
    """Yield the steps that add the file next to the archive in the dialog for adding."""
    row = sorted([scenario.beside, "pack.tar.gz"]).index(scenario.beside)
    yield press("ctrl+d")
    dialog = await hd_screen.wait_shown(desktop, "Add files")
    yield [click_at(dialog.x + PLACE_PX[0], dialog.y + PLACE_PX[1])]
    await hd_screen.wait_still(desktop, 0.4)
    yield [click_at(dialog.x + FIRST_FILE_PX[0], dialog.y + FIRST_FILE_PX[1] + FILE_PX * row)]
    yield [click_at(dialog.x + dialog.width - 40, dialog.y + dialog.height - 18)]


@scenario_family(
    ArchiveScenario,
    "archive_extract",
    "medium",
    "extract one file from an archive",
    abilities=("manage files", "use menus and dialogs"),
)
def extract_file(scenario: ArchiveScenario) -> Task:
    name, folder, members = scenario.name, scenario.folder, scenario.members
    other = next(each for each in members if each != name)

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield scenario.select(name)
        async for ops in hd_screen.play(desktop, extract_to(folder)):
            yield ops

    def put(*names: str, data: bytes | None = None) -> Files:
        return {f"{folder}/{each}": members[each] if data is None else data for each in names}

    return scenario.file_task(
        EXTRACT.format(name, folder),
        steps,
        members,
        put(name),
        wrong={
            "another file": (members, put(other)),
            "all files": (members, put(*members)),
            "it is empty": (members, put(name, data=b"")),
            "it is moved": ({each: members[each] for each in members if each != name}, put(name)),
        },
    )


@scenario_family(
    ArchiveScenario,
    "archive_extract_missing",
    "medium",
    "extract a file that is not in the archive",
    abilities=("manage files", "recognize an infeasible task"),
)
def extract_missing(scenario: ArchiveScenario) -> Task:
    return told_task(scenario, EXTRACT.format(scenario.missing, scenario.folder), scenario.files, [], None)


@scenario_family(
    ArchiveScenario,
    "archive_extract_all",
    "medium",
    "extract all files from an archive",
    abilities=("manage files", "use menus and dialogs"),
)
def extract_all(scenario: ArchiveScenario) -> Task:
    folder, members = scenario.folder, scenario.members

    def put(where: str = folder, *without: str) -> Files:
        return {f"{where}/{name}": data for name, data in members.items() if name not in without}

    return scenario.file_task(
        f"In the archive manager extract all files of pack.tar.gz into the folder {folder}",
        extract_to(folder, contained=False),
        members,
        put(),
        either=put(f"{folder}/pack"),
        wrong={
            "one is missing": (members, put(folder, scenario.name)),
            "next to the archive": (members, put(PLACE)),
            "one is empty": (members, {**put(), f"{folder}/{scenario.name}": b""}),
        },
    )


@scenario_family(
    ArchiveScenario,
    "archive_delete",
    "medium",
    "delete a file from an archive",
    abilities=("manage files", "use menus and dialogs"),
)
def delete_file(scenario: ArchiveScenario) -> Task:
    members, name = scenario.members, scenario.name
    left = {each: data for each, data in members.items() if each != name}
    other = next(iter(left))

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield scenario.select(name)
        yield press("delete")
        await hd_screen.wait_still(desktop, 0.4)
        yield press("alt+o")

    return scenario.file_task(
        f"In the archive manager delete the file {name} from pack.tar.gz",
        steps,
        left,
        wrong={
            "another file": ({each: data for each, data in members.items() if each != other}, {}),
            "two files": ({each: data for each, data in left.items() if each != other}, {}),
            "it is extracted": (left, {f"{PLACE}/{name}": members[name]}),
        },
    )


@scenario_family(
    ArchiveScenario,
    "archive_add",
    "medium",
    "add a file to an archive",
    abilities=("manage files", "use menus and dialogs", "work in several steps"),
)
def add_file(scenario: ArchiveScenario) -> Task:
    members, name = scenario.members, scenario.beside
    data = scenario.files[f"{PLACE}/{name}"]

    return scenario.file_task(
        f"In the archive manager add the file {name} of the folder {PLACE} to pack.tar.gz",
        lambda desktop: add_steps(scenario, desktop),
        {**members, name: data},
        wrong={
            "it is empty": ({**members, name: b""}, {}),
            "it has another name": ({**members, f"2{name}": data}, {}),
            "it is alone": ({name: data}, {}),
        },
    )


@scenario_family(
    ArchiveScenario,
    "archive_size",
    "easy",
    "say how large a file of an archive is, or which is the largest",
    abilities=("read and compare", "answer a question"),
)
def tell_size(scenario: ArchiveScenario) -> Task:
    sizes = {name: len(data) for name, data in scenario.members.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    others = [name for name in sizes if name != scenario.name]
    numbers = [str(sizes[name]) for name in others]
    text, answer, wrong = scenario.rng.choice([
        ("find out which file of pack.tar.gz is the largest, and answer with just its name", largest, others),
        (f"find out how many bytes {scenario.name} has, and answer with just the number",
         str(sizes[scenario.name]), numbers),
    ])  # fmt: skip
    wrong = [each for each in [*wrong, scenario.beside] if each != answer]
    return told_task(scenario, f"In the archive manager {text}", scenario.files, [], answer, wrong_answers=wrong)
