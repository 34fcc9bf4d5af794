"""Families `editor_append` and `editor_replace`: two files open in text editors.

Both files are judged as they are on disk: unsaved changes do not count, and the other file must be unchanged.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable

from deskhand.actions.ops import Click, Done, Key, Op, Point, Type, screen_px
from deskhand.desktop.base import StageableDesktop, Window
from deskhand.tasks.guest_files import read_folder
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics.layout import body, scatter
from deskhand.tasks.suites.basics.scenario import (
    THEMES,
    Oracle,
    Scenario,
    milestone,
    near_misses,
    same_files,
    scenario_family,
    title_milestone,
)
from deskhand.tasks.suites.basics.screen_search import plain_area, wait_until
from deskhand.tasks.task import ExampleEndStates, Milestone, Rect, Task

FOLDER = "Lists"
STEMS = ("shop", "party", "attic", "garden", "school", "market", "kitchen", "office")
COLORS = ("red", "green", "brown", "black", "white", "yellow", "purple", "orange")
THINGS = ("boats", "doors", "apples", "hats", "lamps", "chairs", "shoes", "kites")
PROGRAMS = {"l3afpad": (240, 124), "mousepad": (312, 124)}
"""Minimum client area by program, in pixels."""
DIALOG_BUTTON_ROW_PX = 20
"""Distance of the dialog's button row from its lower edge."""


def random_line(rng: random.Random, color: str | None = None) -> str:
    """Return a line of a shopping list."""
    return f"{rng.randint(2, 20)} {color or rng.choice(COLORS)} {rng.choice(THINGS)}"


class EditorScenario(Scenario):
    """Two open files. `texts` have no line feed at the end."""

    applications = ("l3afpad", "mousepad")

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        rng = self.rng
        self.names = [f"{stem}.txt" for stem in rng.sample(STEMS, 2)]
        self.target = rng.choice(self.names)
        self.texts = {name: self.random_text() for name in self.names}
        self.program = rng.choice(self.applications)
        width, height = PROGRAMS[self.program]
        self.size = (width + rng.randrange(0, 41, 8), height + rng.randrange(0, 17, 8))
        self.place_seed = rng.randrange(2**31)
        self.theme = rng.choice(THEMES)

    def random_text(self) -> str:
        return "\n".join(random_line(self.rng) for _ in range(self.rng.randint(1, 3)))

    async def setup(self, desktop: StageableDesktop) -> None:
        for name, text in self.texts.items():
            await desktop.push(f"{FOLDER}/{name}", text.encode())
        for name in self.names:
            await desktop.launch([self.program, f"{FOLDER}/{name}"])
            await desktop.wait_window(name)
        await self.shuffle_windows(desktop, self.place_seed)
        await desktop.observe()

    async def shuffle_windows(self, desktop: StageableDesktop, seed: int) -> None:
        positions = scatter(random.Random(seed), [self.size] * len(self.names), self.width, self.height)
        for name, (x, y) in zip(self.names, positions, strict=True):
            await desktop.place_window(await self.window(desktop, name), x, y, *self.size)

    async def window(self, desktop: StageableDesktop, name: str) -> Window:
        return (await desktop.wait_window(name))[0]

    async def boxes(self, desktop: StageableDesktop) -> dict[str, Rect]:
        """Return the text areas by file name, in the start state."""
        rgb = (await desktop.observe()).rgb()
        return {name: plain_area(rgb, body(await self.window(desktop, name))) for name in self.names}

    async def saved(self, desktop: StageableDesktop) -> dict[str, str]:
        """Return the texts on disk by file name, without line feeds at the end."""
        files = await read_folder(desktop, FOLDER)
        return {name: (data or b"").decode(errors="replace").rstrip("\n") for name, data in files.items()}

    def edit_task(
        self, wording: Callable[[str], str], wanted: str, oracle: Oracle, max_steps: int, *milestones: Milestone
    ) -> Task:
        """Return a task. `wording(name)` is the instruction for a file, `wanted` the target's final text."""
        expected = self.texts | {self.target: wanted}

        async def clauses(desktop: StageableDesktop) -> list[Finding]:
            return [same_files(f"the texts in {FOLDER}", await self.saved(desktop), expected)]

        def end_states() -> ExampleEndStates:
            right = {f"{FOLDER}/{name}": f"{text}\n".encode() for name, text in expected.items()}
            target = f"{FOLDER}/{self.target}"
            both = {f"{FOLDER}/{name}": f"{text}\n{wanted}\n".encode() for name, text in self.texts.items()}
            both[target] = right[target]
            twice = {**right, target: right[target] + right[target].splitlines(keepends=True)[-1]}
            return near_misses(right, target, the_other_text_too=both, the_last_line_twice=twice)

        async def grounding_targets(desktop: StageableDesktop) -> list[tuple[str, Rect]]:
            return [(wording(name), area) for name, area in (await self.boxes(desktop)).items()]

        return self.build_task(
            wording(self.target),
            max_steps=max_steps,
            clauses=clauses,
            oracle=oracle,
            milestones=milestones,
            grounding_targets=grounding_targets,
            example_end_states=end_states,
            metadata={"program": self.program, "names": self.names, "target": self.target},
        )

    def edited(self, weight: float) -> Milestone:
        """Return the milestone that the target was edited: marked in the window's title, or saved."""

        async def is_edited(desktop: StageableDesktop) -> bool:
            marked = any(self.target in window.title and "*" in window.title for window in await desktop.windows())
            return marked or (await self.saved(desktop)).get(self.target) not in (None, self.texts[self.target])

        return milestone("the right file was edited", weight, is_edited, untrusted_source=True)

    async def until_saved(self, desktop: StageableDesktop) -> None:
        """Wait until an editor writes a file."""

        async def written() -> bool:
            return await self.saved(desktop) != self.texts

        await wait_until(written)

    async def click_end(self, desktop: StageableDesktop) -> Click:
        """Return a click below the target's text, which puts the cursor at its end."""
        area = (await self.boxes(desktop))[self.target]
        return Click(Point(area.center[0], area.bottom - 12, screen_px(self.width, self.height)))


@scenario_family(
    EditorScenario,
    "editor_append",
    "medium",
    "add a line to the end of the right file and save it",
    abilities=("choose among windows", "edit text"),
)
def append_line(scenario: EditorScenario) -> Task:
    line = random_line(scenario.rng)
    before = scenario.texts[scenario.target]

    async def is_line_saved(desktop: StageableDesktop) -> bool:
        return (await scenario.saved(desktop)).get(scenario.target, "").count(line) > before.count(line)

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [await scenario.click_end(desktop)]
        yield [Type("\n" + line)]
        yield [Key(("ctrl", "s"))]
        await scenario.until_saved(desktop)
        yield [Done()]

    return scenario.edit_task(
        lambda name: f'Add the line "{line}" at the end of {name} and save it',
        before + "\n" + line,
        oracle,
        6,
        scenario.edited(0.15),
        milestone("the line is saved", 0.25, is_line_saved),
    )


class ReplaceScenario(EditorScenario):
    """Two texts of which every line has the first of `words`."""

    applications = ("l3afpad",)

    def __init__(self, family: str, seed: int) -> None:
        self.words = random.Random(f"{family} words:{seed}").sample(COLORS, 2)
        super().__init__(family, seed)

    def random_text(self) -> str:
        return "\n".join(random_line(self.rng, self.words[0]) for _ in range(self.rng.randint(2, 3)))


@scenario_family(
    ReplaceScenario,
    "editor_replace",
    "medium",
    "replace a word everywhere in the right file and save it",
    abilities=("choose among windows", "edit text", "use menus and dialogs"),
)
def replace_word(scenario: ReplaceScenario) -> Task:
    first, second = scenario.words

    async def click_button(desktop: StageableDesktop, title: str, across: float) -> Click:
        """Return a click in the dialog's button row, at a share of its width, once the dialog has that title."""

        async def is_shown() -> bool:
            return (await desktop.wait_window(scenario.program))[-1].title == title

        await wait_until(is_shown)
        window = (await desktop.wait_window(scenario.program))[-1]
        x, y = window.x + int(window.width * across), window.y + window.height - DIALOG_BUTTON_ROW_PX
        return Click(Point(x, y, screen_px(scenario.width, scenario.height)))

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [await scenario.click_end(desktop)]
        yield [Key(("ctrl", "h"))]
        await desktop.wait_window("Replace")
        yield [Type(f"{first}\t{second}\t\t ")]
        yield [await click_button(desktop, "Replace", 0.75)]
        yield [await click_button(desktop, "", 0.5)]
        yield [Key(("ctrl", "s"))]
        await scenario.until_saved(desktop)
        yield [Done()]

    return scenario.edit_task(
        lambda name: f"In {name} replace every {first} with {second} and save it",
        scenario.texts[scenario.target].replace(first, second),
        oracle,
        10,
        title_milestone("the replace dialog is open", 0.1, "Replace"),
        scenario.edited(0.2),
    )
