"""Families `file_delete`, `file_rename` and `file_move`: a file manager window.

Every file of the folder is judged by name and bytes, so a change in the wrong place, or one too many, scores 0.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Callable

import numpy as np

from deskhand.actions.ops import Done, Key, Op, Type, Wait
from deskhand.desktop.base import StageableDesktop, Window
from deskhand.errors import EvaluatorError
from deskhand.tasks.guest_files import MAX_BYTES, list_folder, read_file, read_folder
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics.layout import scatter
from deskhand.tasks.suites.basics.scenario import (
    THEMES,
    Oracle,
    Scenario,
    clause,
    milestone,
    same_files,
    scenario_family,
    title_milestone,
)
from deskhand.tasks.suites.basics.screen_search import (
    View,
    click_in,
    find_cells,
    plain_area,
    wait_until,
    wait_until_visible,
)
from deskhand.tasks.task import ExampleEndStates, FileContents, Milestone, Rect, Task

FOLDERS = ("Notes", "Letters", "Reports", "Recipes", "Lists", "Drafts")
STEMS = (
    "apple", "bread", "cloud", "delta", "eagle", "flame", "grape", "house", "jewel", "lemon", "melon", "north",
    "ocean", "piano",
)  # fmt: skip
ENDINGS = (".txt", ".log", ".md", ".csv")
SUBFOLDERS = ("Archive", "Done", "Old", "Trips", "Work")
VIEWS: tuple[View, ...] = ("icon", "compact")
MAX_NAMES = 1000
"""In a home, which has about a hundred at the start."""
TRASH = ".local/share/Trash"
FIND_OUTSIDE = r"""find /tmp /var/tmp /dev/shm /run -path '/dev/shm/deskhand-*' -prune -o -user "$(id -u)" -type f \
  -size -64k -exec grep -lF -D skip -- "$1" {} + 2>/dev/null; test $? -lt 124"""
"""The folders of desktops are left out, because others may play the same task."""
FIND_TIMEOUT_S = 10.0
SELECTION_DELAY_S = 0.4
"""Maximum delay until pcmanfm processes a change of the selection; before that, Return opens the previous one."""

PCMANFM = """[config]
bm_open_method=0
[ui]
win_width={width}
win_height={height}
side_pane_mode=hidden;places
view_mode={view}
show_hidden=0
sort=name;ascending;
toolbar=
show_statusbar=0
"""
LIBFM = """[config]
single_click=0
use_trash=1
confirm_del=1
confirm_trash={confirm}
[ui]
show_thumbnail=0
big_icon_size=32
small_icon_size=16
"""


class FileManagerScenario(Scenario):
    """One folder in one window."""

    applications = ("pcmanfm",)
    num_subfolders = 0

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        rng = self.rng
        self.folder = rng.choice(FOLDERS)
        stems = rng.sample(STEMS, rng.randint(4, 6))
        self.names = [stem + rng.choice(ENDINGS) for stem in stems]
        self.files = {name: f"{name} {rng.randrange(10**6)}\n".encode() for name in self.names}
        self.subfolders = rng.sample(SUBFOLDERS, self.num_subfolders)
        self.target = rng.choice(self.names)
        self.unused_stem = rng.choice([stem for stem in STEMS if stem not in stems])
        self.view: View = rng.choice(VIEWS)
        self.confirm = rng.random() < 0.5
        self.window_size = rng.randrange(320, 361, 8), rng.randrange(250, 291, 8)
        self.place_seed = rng.randrange(2**31)
        self.theme = rng.choice(THEMES)

    async def setup(self, desktop: StageableDesktop) -> None:
        for name, data in self.files.items():
            await desktop.push(f"{self.folder}/{name}", data)
        for name in self.subfolders:
            await desktop.push(f"{self.folder}/{name}/.keep", b"")
        width, height = self.window_size
        settings = PCMANFM.format(width=width, height=height, view=self.view)
        await desktop.push(".config/pcmanfm/default/pcmanfm.conf", settings.encode())
        await desktop.push(".config/libfm/libfm.conf", LIBFM.format(confirm=int(self.confirm)).encode())
        await desktop.launch(["pcmanfm", self.folder])
        await self.shuffle_windows(desktop, self.place_seed)
        await self.boxes(desktop)

    async def shuffle_windows(self, desktop: StageableDesktop, seed: int) -> None:
        window = await self.window(desktop)
        ((x, y),) = scatter(random.Random(seed), [self.window_size], self.width, self.height)
        await desktop.place_window(window, x, y, *self.window_size)

    async def window(self, desktop: StageableDesktop) -> Window:
        """Return the first window of the file manager, whatever folder it shows."""
        return (await desktop.wait_window("pcmanfm"))[0]

    async def boxes(self, desktop: StageableDesktop) -> dict[str, Rect]:
        """Return icon and label of every file by name, in the start state. Raises `InfrastructureError`."""
        ordered = [*sorted(self.subfolders), *sorted(self.names)]

        def find(rgb: np.ndarray, box: Rect) -> list[Rect] | None:
            return find_cells(rgb, plain_area(rgb, box), len(ordered), self.view)

        cells = await wait_until_visible(desktop, "pcmanfm", find, f"{len(ordered)} files")
        if self.view == "compact":
            cells.sort(key=lambda cell: (cell.left, cell.top))
        return dict(zip(ordered, cells, strict=True))

    async def contents(self, desktop: StageableDesktop) -> dict[str, bytes | None]:
        """Return the files of the folder and its subfolders; subfolders themselves only if missing or new."""
        found: dict[str, bytes | None] = {}
        for name, data in (await read_folder(desktop, self.folder)).items():
            if data is None and name in self.subfolders:
                inside = await read_folder(desktop, f"{self.folder}/{name}")
                found |= {f"{name}/{inner}": value for inner, value in inside.items() if inner != ".keep"}
            else:
                found[name] = data if data is not None else b"\0not a file"
        return found

    async def other_places(self, desktop: StageableDesktop) -> list[str]:
        """Return the files outside the folder and the trash that hold the target's content.

        A home that an agent has filled with more than `MAX_NAMES` names or `MAX_BYTES` counts as one of them.
        """
        found: list[str] = []
        pending, num_names, size = ["."], 0, 0
        while pending:
            place = pending.pop()
            names = await list_folder(desktop, place)
            num_names += len(names)
            for name in names[:MAX_NAMES]:
                path = name if place == "." else f"{place}/{name}"
                if path in (self.folder, TRASH):
                    continue
                with contextlib.suppress(EvaluatorError):  # a saved end state has no caches
                    data = await read_file(desktop, path)
                    if data is None:
                        pending.append(path)
                    elif self.files[self.target] in data:
                        found.append(path)
                    size += len(data or b"")
                if num_names > MAX_NAMES or size > MAX_BYTES:
                    return [*found, f"more than {MAX_NAMES} names or {MAX_BYTES} bytes"]
        return found or await self._temporary_places(desktop)

    async def _temporary_places(self, desktop: StageableDesktop) -> list[str]:
        """Return the files outside the home that hold the target's content, if it is neither in the folder nor in the
        trash: a saved end state, in which no command runs, has none."""
        kept = [*(await self.contents(desktop)).values(), *(await read_folder(desktop, f"{TRASH}/files")).values()]
        content = self.files[self.target]
        if any(content in (data or b"") for data in kept):
            return []
        with contextlib.suppress(EvaluatorError):
            command = ["sh", "-c", FIND_OUTSIDE, "sh", content.decode().strip()]
            result = await desktop.run(command, timeout_s=FIND_TIMEOUT_S)
            found = result.stdout.decode(errors="replace").splitlines()
            return found if result.returncode == 0 else [*found, "a guest filled the folders, or ended the search"]
        return []

    async def until_changed(self, desktop: StageableDesktop) -> None:
        """Wait until the file manager has done its work."""

        async def changed() -> bool:
            return await self.contents(desktop) != self.files

        await wait_until(changed)

    def file_task(
        self,
        wording: Callable[[str], str],
        expected: dict[str, bytes],
        oracle: Oracle,
        max_steps: int,
        *milestones: Milestone,
    ) -> Task:
        """Return a task. `wording(name)` is the instruction for a file of that name; `expected` are the files of the
        folder at the end, those of a subfolder as "SUBFOLDER/NAME".
        """

        async def clauses(desktop: StageableDesktop) -> list[Finding]:
            return [
                same_files(f"the files in {self.folder}", await self.contents(desktop), expected),
                clause(f"other places of {self.target}", await self.other_places(desktop), []),
            ]

        def end_states() -> ExampleEndStates:
            other = next(name for name in self.names if name != self.target)
            negatives = {
                "another file is gone too": {name: data for name, data in expected.items() if name != other},
                "another file has changed": {**expected, other: expected[other][:-2] + b"\n"},
                "the old file is there too": {**self.files, **expected},
                "it was only emptied": {**expected, self.target: b""},
            }
            places = {
                "it was moved to the home": self.target,
                "it was moved to Documents": f"Documents/{self.target}",
                "it was hidden": f".config/{self.target}",
                "it was moved deep down and renamed": "Documents/a/b/c.bak",
            }
            hidden = {f"{name}/.keep": b"" for name in self.subfolders}

            def at_home(files: dict[str, bytes]) -> FileContents:
                return {f"{self.folder}/{name}": data for name, data in (files | hidden).items()}

            states = {what: at_home(files) for what, files in negatives.items()}
            states |= {what: {**at_home(expected), path: self.files[self.target]} for what, path in places.items()}
            return ExampleEndStates(states, at_home(expected))

        async def grounding_targets(desktop: StageableDesktop) -> list[tuple[str, Rect]]:
            boxes = await self.boxes(desktop)
            return [(wording(name), boxes[name]) for name in self.names]

        return self.build_task(
            wording(self.target),
            max_steps=max_steps,
            clauses=clauses,
            oracle=oracle,
            milestones=milestones,
            grounding_targets=grounding_targets,
            example_end_states=end_states,
            metadata={"folder": self.folder, "names": self.names, "target": self.target, "view": self.view},
        )


@scenario_family(
    FileManagerScenario,
    "file_delete",
    "medium",
    "delete a named file in the file manager",
    abilities=("manage files", "use menus and dialogs"),
)
def delete_file(scenario: FileManagerScenario) -> Task:
    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [click_in((await scenario.boxes(desktop))[scenario.target])]
        yield [Key(("Delete",))]
        if scenario.confirm:
            await desktop.wait_window("Confirm")
            yield [Key(("Return",))]
        await scenario.until_changed(desktop)
        yield [Done()]

    expected = {name: data for name, data in scenario.files.items() if name != scenario.target}
    milestones = (title_milestone("the file manager asks", 0.1, "Confirm"),) if scenario.confirm else ()
    return scenario.file_task(lambda name: f"Delete the file {name}", expected, oracle, 6, *milestones)


@scenario_family(
    FileManagerScenario,
    "file_rename",
    "medium",
    "rename a file in the file manager",
    abilities=("manage files", "use menus and dialogs"),
)
def rename_file(scenario: FileManagerScenario) -> Task:
    new_name = scenario.unused_stem + scenario.rng.choice(ENDINGS)

    async def is_renamed(desktop: StageableDesktop) -> bool:
        found = await scenario.contents(desktop)
        return scenario.target not in found and scenario.files[scenario.target] in found.values()

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [click_in((await scenario.boxes(desktop))[scenario.target])]
        yield [Key(("F2",))]
        await desktop.wait_window("Rename")
        yield [Key(("ctrl", "a")), Type(new_name + "\n")]
        await scenario.until_changed(desktop)
        yield [Done()]

    expected = {(new_name if name == scenario.target else name): data for name, data in scenario.files.items()}
    milestones = (
        title_milestone("a dialog is open", 0.1, "Rename"),
        milestone("the right file has another name", 0.3, is_renamed),
    )
    return scenario.file_task(lambda name: f"Rename {name} to {new_name}", expected, oracle, 6, *milestones)


class MoveScenario(FileManagerScenario):
    """One folder with subfolders."""

    num_subfolders = 2


@scenario_family(
    MoveScenario,
    "file_move",
    "medium",
    "move a file to a folder in the file manager",
    abilities=("manage files",),
)
def move_file(scenario: MoveScenario) -> Task:
    goal = scenario.rng.choice(scenario.subfolders)
    moved = f"{goal}/{scenario.target}"

    async def is_moved(desktop: StageableDesktop) -> bool:
        return (await scenario.contents(desktop)).get(moved) == scenario.files[scenario.target]

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        boxes = await scenario.boxes(desktop)
        yield [click_in(boxes[scenario.target])]
        yield [Key(("ctrl", "x"))]
        yield [click_in(boxes[goal]), Wait(SELECTION_DELAY_S)]
        yield [Key(("Return",))]
        await desktop.wait_window(goal)
        yield [Key(("ctrl", "v"))]
        await scenario.until_changed(desktop)
        yield [Done()]

    expected = {(moved if name == scenario.target else name): data for name, data in scenario.files.items()}
    milestones = (
        title_milestone("the folder is shown", 0.1, goal),
        milestone("the file is in the folder", 0.3, is_moved),
    )
    return scenario.file_task(lambda name: f"Move {name} to the folder {goal}", expected, oracle, 9, *milestones)
