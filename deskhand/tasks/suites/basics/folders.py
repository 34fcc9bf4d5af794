"""Folders in the file manager on the wide screen. Invariant: every folder and file below the one that is shown is judged."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

from deskhand.actions.ops import Done, Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.clauses import clause
from deskhand.tasks.suites.basics.hd_screen import hd_task, press
from deskhand.tasks.suites.basics.layout import UNREADABLE, folder_names
from deskhand.tasks.suites.basics.screen_search import THEMES
from deskhand.tasks.task import ExampleEndStates, Family, Task

SHELF = "Documents"
NAMES = ("Bills", "Letters", "Photos", "Recipes", "School", "Songs", "Stories", "Trips", "Work")


def make_folder(seed: int) -> Task:
    """Make a folder in a folder."""
    rng = random.Random(f"folder_make:{seed}")
    *there, new = rng.sample(NAMES, 5)
    inside = rng.choice(there)
    theme = rng.choice(THEMES)

    async def setup(desktop: StageableDesktop) -> None:
        for name in there:
            await desktop.push(f"{SHELF}/{name}/about.txt", f"{name}\n".encode())
        await desktop.launch(["pcmanfm", f"{SHELF}/{inside}"])
        await desktop.wait_window(inside)
        await hd_screen.wait_still(desktop, 0.5)

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        found = {name: await folder_names(desktop, f"{SHELF}/{name}") for name in await folder_names(desktop, SHELF)}
        wanted = {name: sorted(["about.txt", *([new] if name == inside else [])]) for name in sorted(there)}
        try:
            inner: list[str] | None = await desktop.listdir(f"{SHELF}/{inside}/{new}")
        except UNREADABLE:
            inner = None
        return [
            clause("what is in each folder", found, wanted),
            clause(f"what is in the folder {new}", inner, []),
        ]

    def end_states() -> ExampleEndStates:
        place, other = f"{SHELF}/{inside}/{new}", next(name for name in there if name != inside)
        return ExampleEndStates(
            {
                "a file of that name": {place: b""},
                "in another folder": {f"{SHELF}/{other}/{new}/.keep": b""},
                "beside the folder": {f"{SHELF}/{new}/.keep": b""},
                "it is not empty": {f"{place}/about.txt": b""},
            }
        )

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield press("ctrl+shift+n")
        await hd_screen.wait_still(desktop, 0.4)
        yield [*press("ctrl+a"), Type(new)]
        yield press("enter")
        await hd_screen.wait_still(desktop, 0.4)
        yield [Done()]

    return hd_task(
        "folder_make",
        seed,
        "easy",
        instruction=f"Make a new folder {new} in the folder {inside}, which the file manager shows",
        setup=setup,
        clauses=clauses,
        oracle=oracle,
        max_steps=8,
        theme=theme,
        end_states=end_states,
    )


FAMILIES = (Family("folder_make", ("pcmanfm",), "easy", make_folder, "make a folder in the file manager"),)
