"""Family `folder_make`: make a folder in the file manager. Every folder and file below the parent is judged."""

from __future__ import annotations

from collections.abc import AsyncIterator

from deskhand.actions.ops import Done, Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.guest_files import UNREADABLE, list_folder
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.hd_screen import HdScenario, press
from deskhand.tasks.suites.basics.scenario import THEMES, clause, scenario_family
from deskhand.tasks.task import ExampleEndStates, Task

SHELF = "Documents"
NAMES = ("Bills", "Letters", "Photos", "Recipes", "School", "Songs", "Stories", "Trips", "Work")


@scenario_family(
    HdScenario,
    "folder_make",
    "easy",
    "make a folder in the file manager",
    "pcmanfm",
    abilities=("manage files", "use menus and dialogs"),
)
def make_folder(scenario: HdScenario) -> Task:
    *existing, new = scenario.rng.sample(NAMES, 5)
    inside = scenario.rng.choice(existing)
    scenario.theme = scenario.rng.choice(THEMES)

    async def setup(desktop: StageableDesktop) -> None:
        for name in existing:
            await desktop.push(f"{SHELF}/{name}/about.txt", f"{name}\n".encode())
        await desktop.launch(["pcmanfm", f"{SHELF}/{inside}"])
        await desktop.wait_window(inside)
        await hd_screen.wait_still(desktop, 0.5)

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        names = await list_folder(desktop, SHELF)
        found = {name: await list_folder(desktop, f"{SHELF}/{name}") for name in sorted(existing)}
        wanted = {name: sorted(["about.txt", *([new] if name == inside else [])]) for name in sorted(existing)}
        try:
            inner: list[str] | None = await desktop.listdir(f"{SHELF}/{inside}/{new}")
        except UNREADABLE:
            inner = None
        return [
            clause(f"the folders in {SHELF}", names, sorted(existing)),
            clause("the content of each folder", found, wanted),
            clause(f"the content of the folder {new}", inner, []),
        ]

    def end_states() -> ExampleEndStates:
        path, other = f"{SHELF}/{inside}/{new}", next(name for name in existing if name != inside)
        return ExampleEndStates(
            {
                "a file of that name": {path: b""},
                "in another folder": {f"{SHELF}/{other}/{new}/.keep": b""},
                "next to the folder": {f"{SHELF}/{new}/.keep": b""},
                "it is not empty": {f"{path}/about.txt": b""},
            }
        )

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield press("ctrl+shift+n")
        await hd_screen.wait_still(desktop, 0.4)
        yield [*press("ctrl+a"), Type(new)]
        yield press("enter")
        await hd_screen.wait_still(desktop, 0.4)
        yield [Done()]

    return scenario.build_task(
        f"Make a new folder {new} in the folder {inside}, which the file manager shows",
        max_steps=8,
        setup=setup,
        clauses=clauses,
        oracle=oracle,
        example_end_states=end_states,
    )
