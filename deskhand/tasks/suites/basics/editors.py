"""Two files open in text editors: append a line to one, or replace a word in one. Invariant: both files are judged as they are on
the disk, so what was not saved does not count and the other file must be as it was.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable

from deskhand.actions.ops import Click, Done, Key, Op, Point, Type, screen_px
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.suites.basics.clauses import judged, nearly, same_files
from deskhand.tasks.suites.basics.layout import WindowLike, scatter
from deskhand.tasks.suites.basics.screen_search import (
    HEIGHT,
    THEMES,
    WIDTH,
    body,
    folder_contents,
    plain_area,
    wait_until,
)
from deskhand.tasks.task import CheckResult, ExampleEndStates, Family, Milestone, Rect, Task

FOLDER = "Lists"
STEMS = ("shop", "party", "attic", "garden", "school", "market", "kitchen", "office")
COLORS = ("red", "green", "brown", "black", "white", "yellow", "purple", "orange")
THINGS = ("boats", "doors", "apples", "hats", "lamps", "chairs", "shoes", "kites")
PROGRAMS = {"l3afpad": (240, 124), "mousepad": (312, 124)}
"""Smallest client area by program, in pixels."""
DIALOG_BUTTON_ROW_PX = 20
"""Height of the middle of a dialog's button row above the dialog's lower edge."""


def entry(rng: random.Random, color: str | None = None) -> str:
    """A line of a shopping list."""
    return f"{rng.randint(2, 20)} {color or rng.choice(COLORS)} {rng.choice(THINGS)}"


class EditorScenario:
    """Two open files; a pure function of family and seed. `texts` are without a line feed at the end."""

    def __init__(
        self, family: str, seed: int, programs: tuple[str, ...], texts: Callable[[random.Random], str]
    ) -> None:
        self.rng = rng = random.Random(f"{family}:{seed}")
        self.family, self.seed = family, seed
        self.names = [f"{stem}.txt" for stem in rng.sample(STEMS, 2)]
        self.target = rng.choice(self.names)
        self.texts = {name: texts(rng) for name in self.names}
        self.program = rng.choice(programs)
        width, height = PROGRAMS[self.program]
        self.size = (width + rng.randrange(0, 41, 8), height + rng.randrange(0, 17, 8))
        self.place_seed = rng.randrange(2**31)
        self.theme = rng.choice(THEMES)

    async def setup(self, desktop: StageableDesktop) -> None:
        for name, text in self.texts.items():
            await desktop.push(f"{FOLDER}/{name}", text.encode())
        for name in self.names:
            await desktop.launch([self.program, f"{FOLDER}/{name}"])
            await desktop.wait_window(name)
        await self.shuffle_windows(desktop, self.place_seed)
        await desktop.observe()

    async def shuffle_windows(self, desktop: StageableDesktop, seed: int) -> None:
        spots = scatter(random.Random(seed), [self.size] * len(self.names), WIDTH, HEIGHT)
        for name, (x, y) in zip(self.names, spots, strict=True):
            await desktop.place_window(await self.window(desktop, name), x, y, *self.size)

    async def window(self, desktop: StageableDesktop, name: str) -> WindowLike:
        return (await desktop.wait_window(name))[0]

    async def areas(self, desktop: StageableDesktop) -> dict[str, Rect]:
        """Where the text is, by file name, in the start state."""
        rgb = (await desktop.observe()).rgb()
        return {name: plain_area(rgb, body(await self.window(desktop, name))) for name in self.names}

    async def saved(self, desktop: StageableDesktop) -> dict[str, str]:
        """Texts on the disk by file name, whatever files there are, without line feeds at the end."""
        found = await folder_contents(desktop, FOLDER)
        return {name: (data or b"").decode(errors="replace").rstrip("\n") for name, data in found.items()}

    def task(
        self,
        wording: Callable[[str], str],
        wanted: str,
        oracle: Callable[[StageableDesktop], AsyncIterator[list[Op]]],
        max_steps: int,
        *milestones: Milestone,
    ) -> Task:
        """`wording(name)` is the instruction for a file of that name, `wanted` the target's text at the end."""
        expected = self.texts | {self.target: wanted}

        async def check(desktop: StageableDesktop) -> CheckResult:
            return judged(same_files(f"the texts in {FOLDER}", await self.saved(desktop), expected))

        def end_states() -> ExampleEndStates:
            right = {f"{FOLDER}/{name}": f"{text}\n".encode() for name, text in expected.items()}
            target = f"{FOLDER}/{self.target}"
            both = {f"{FOLDER}/{name}": f"{text}\n{wanted}\n".encode() for name, text in self.texts.items()}
            both[target] = right[target]
            twice = {**right, target: right[target] + right[target].splitlines(keepends=True)[-1]}
            return nearly(right, target, the_other_text_too=both, the_last_line_twice=twice)

        async def targets(desktop: StageableDesktop) -> tuple[Rect | None, list[Rect]]:
            areas = await self.areas(desktop)
            return areas[self.target], [area for name, area in areas.items() if name != self.target]

        async def grounding_targets(desktop: StageableDesktop) -> list[tuple[str, Rect]]:
            return [(wording(name), area) for name, area in (await self.areas(desktop)).items()]

        return Task(
            id=f"basics/{self.family}/{self.seed}",
            family=self.family,
            suite="basics",
            seed=self.seed,
            instruction=wording(self.target),
            width=WIDTH,
            height=HEIGHT,
            max_steps=max_steps,
            setup=self.setup,
            check=check,
            oracle=oracle,
            first_click_targets=targets,
            theme=self.theme,
            milestones=milestones,
            difficulty="medium",
            grounding_targets=grounding_targets,
            shuffle_windows=self.shuffle_windows,
            example_end_states=end_states,
            metadata={"program": self.program, "names": self.names, "target": self.target},
        )

    async def changed(self, desktop: StageableDesktop) -> CheckResult:
        """Editors mark an unsaved change in the title; a saved one is seen on the disk."""
        marked = any(self.target in window.title and "*" in window.title for window in await desktop.windows())
        saved = (await self.saved(desktop)).get(self.target)
        return CheckResult(
            float(marked or saved not in (None, self.texts[self.target])),
            f"{self.target} was edited",
            untrusted_source=True,
        )

    async def until_saved(self, desktop: StageableDesktop) -> None:
        """Wait for an editor to write a file."""

        async def written() -> bool:
            return await self.saved(desktop) != self.texts

        await wait_until(written)

    async def click_end(self, desktop: StageableDesktop) -> Click:
        """A click below the text of the target, which puts the cursor at its end."""
        area = (await self.areas(desktop))[self.target]
        return Click(Point(area.center[0], area.bottom - 12, screen_px(WIDTH, HEIGHT)))


def append_line(seed: int) -> Task:
    """Click at the end of a text, type a line, save."""
    scenario = EditorScenario(
        "editor_append",
        seed,
        ("l3afpad", "mousepad"),
        lambda rng: "\n".join(entry(rng) for _ in range(rng.randint(1, 3))),
    )
    line = entry(scenario.rng)

    async def line_saved(desktop: StageableDesktop) -> CheckResult:
        saved = (await scenario.saved(desktop)).get(scenario.target, "")
        return CheckResult(
            float(saved.count(line) > scenario.texts[scenario.target].count(line)), f"{scenario.target} holds the line"
        )

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [await scenario.click_end(desktop)]
        yield [Type("\n" + line)]
        yield [Key(("ctrl", "s"))]
        await scenario.until_saved(desktop)
        yield [Done()]

    wanted = scenario.texts[scenario.target] + "\n" + line
    milestones = (
        Milestone("the right file was edited", 0.15, scenario.changed),
        Milestone("the line is saved", 0.25, line_saved),
    )
    return scenario.task(
        lambda name: f'Add the line "{line}" at the end of {name} and save it', wanted, oracle, 6, *milestones
    )


def replace_word(seed: int) -> Task:
    """Open the replace dialog, fill it in, replace all, save."""
    first, second = random.Random(f"editor_replace words:{seed}").sample(COLORS, 2)
    scenario = EditorScenario(
        "editor_replace", seed, ("l3afpad",), lambda rng: "\n".join(entry(rng, first) for _ in range(rng.randint(2, 3)))
    )
    wanted = scenario.texts[scenario.target].replace(first, second)

    async def dialog_open(desktop: StageableDesktop) -> CheckResult:
        return CheckResult(
            float(any(window.title == "Replace" for window in await desktop.windows())), "the replace dialog"
        )

    async def press(desktop: StageableDesktop, title: str, across: float) -> Click:
        """A click in the button row of the dialog with that title, as soon as it is there, `across` of its width from the left."""

        async def shown() -> bool:
            return (await desktop.wait_window(scenario.program))[-1].title == title

        await wait_until(shown)
        window = (await desktop.wait_window(scenario.program))[-1]
        x, y = window.x + int(window.width * across), window.y + window.height - DIALOG_BUTTON_ROW_PX
        return Click(Point(x, y, screen_px(WIDTH, HEIGHT)))

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [await scenario.click_end(desktop)]
        yield [Key(("ctrl", "h"))]
        await desktop.wait_window("Replace")
        yield [Type(f"{first}\t{second}\t\t ")]
        yield [await press(desktop, "Replace", 0.75)]
        yield [await press(desktop, "", 0.5)]
        yield [Key(("ctrl", "s"))]
        await scenario.until_saved(desktop)
        yield [Done()]

    milestones = (
        Milestone("the replace dialog is open", 0.1, dialog_open),
        Milestone("the right file was edited", 0.2, scenario.changed),
    )
    return scenario.task(
        lambda name: f"In {name} replace every {first} by {second} and save it", wanted, oracle, 10, *milestones
    )


FAMILIES = (
    Family(
        "editor_append",
        ("l3afpad", "mousepad"),
        "medium",
        append_line,
        "add a line at the end of the right text and save it",
    ),
    Family(
        "editor_replace",
        ("l3afpad",),
        "medium",
        replace_word,
        "replace a word everywhere in the right text and save it",
    ),
)
