"""Families `slide_*`: presentations in LibreOffice Impress. All texts of all slides are judged, or a note."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from deskhand.actions.ops import Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.guest_files import read_file
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.cross_app import NOTE, note, open_beside
from deskhand.tasks.suites.basics.hd_screen import Steps, click_at, click_in, press
from deskhand.tasks.suites.basics.office_files import (
    OfficeScenario,
    Presentation,
    Slides,
    presentation,
    read_presentation,
    saved_by_application,
)
from deskhand.tasks.suites.basics.scenario import (
    THEMES,
    clause,
    milestone,
    near_misses,
    scenario_family,
)
from deskhand.tasks.task import ExampleEndStates, Task

FILES = ("talk", "lesson", "pitch", "review", "plan", "trip")
TITLES = (
    "The old bridge", "A green boat", "The tall tower", "A quiet street", "The red door", "Our garden", "The harbor",
    "A stone wall", "The market", "Two islands",
)  # fmt: skip
LINES = (
    "Built in stone", "Closed in winter", "Two large sails", "Ninety steps", "Open on Monday", "No cars at night",
    "Painted last year", "Apples and pears", "A view of the sea", "Repaired in spring", "Free for children",
    "Sold every morning", "Near the station", "Older than the town", "Visited by many", "Quiet in the evening",
)  # fmt: skip
TITLE_PX, LIST_PX = (540, 204), (300, 284)
"""On the screen: the middle of the title, and the first line of the list."""
THUMBNAIL_PX, THUMBNAIL_PITCH_PX = (93, 211), 105
"""The middle of the first slide in the panel of slides, and the distance to the next."""
SLIDE_MENU_PX, MOVE_PX, TO_START_PX, TO_END_PX = (250, 28), (271, 490), (596, 490), (596, 562)
"""The menu, and its items."""


class SlidesScenario(OfficeScenario):
    """One open presentation."""

    applications = ("libreoffice-impress", "libreoffice-gtk3")
    program = "impress"

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        rng = self.rng
        self.path = f"Documents/{rng.choice(FILES)}.pptx"
        self.theme = rng.choice(THEMES)
        titles, lines = rng.sample(TITLES, rng.randint(4, 5)), rng.sample(LINES, 15)
        self.slides = [(title, [lines.pop() for _ in range(rng.randint(2, 3))]) for title in titles]

    def content(self) -> bytes:
        return presentation(self.slides)

    async def document(self, desktop: StageableDesktop) -> Presentation | None:
        return await read_presentation(await read_file(desktop, self.path))

    def edit_task(self, instruction: str, steps: Steps, wanted: Slides, **fields: Any) -> Task:
        """Return a task. The saved file must have the slides `wanted`."""
        expected = [[[title], [*lines]] for title, lines in wanted]

        async def clauses(desktop: StageableDesktop) -> list[Finding]:
            found = await self.document(desktop)
            return [
                clause(f"the slides of {self.name}", found.slides if found else None, expected),
                saved_by_application(found),
            ]

        return self.office_task(instruction, clauses, steps, lambda: presentation(wanted), **fields)

    def pick(self, start: int = 0) -> int:
        return self.rng.randrange(start, len(self.slides))


def go_to(index: int) -> list[Op]:
    """Return the ops that show a slide, counted from 0."""
    return press("pagedown", times=index)


def click_on(place: tuple[int, int]) -> list[Op]:
    return [click_at(*place)]


def choose(index: int) -> list[Op]:
    """Return the ops that choose a slide in the panel of slides."""
    return [click_at(THUMBNAIL_PX[0], THUMBNAIL_PX[1] + index * THUMBNAIL_PITCH_PX)]


def edited(*parts: list[Op]) -> Steps:
    """Return steps with a pause after each, which Impress needs to draw a slide."""

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        for ops in parts:
            yield ops
            await hd_screen.wait_still(desktop, 0.4)

    return steps


@scenario_family(
    SlidesScenario, "slide_title", "easy", "change the title of a slide", abilities=("edit text", "find something")
)
def change_title(scenario: SlidesScenario) -> Task:
    index = scenario.pick(1)
    title = scenario.rng.choice([each for each in TITLES if each not in dict(scenario.slides)])
    wanted = [(title if number == index else old, lines) for number, (old, lines) in enumerate(scenario.slides)]
    return scenario.edit_task(
        f'In {scenario.name} change the title of slide {index + 1} to "{title}" and save it',
        edited(go_to(index), [click_at(*TITLE_PX, count=2)], press("ctrl+a"), [Type(title)], press("esc")),
        wanted,
    )


@scenario_family(
    SlidesScenario,
    "slide_point",
    "medium",
    "add a line to the list of a slide",
    abilities=("edit text", "find something"),
)
def add_point(scenario: SlidesScenario) -> Task:
    index = scenario.pick(1)
    line = scenario.rng.choice([each for each in LINES if all(each not in lines for _, lines in scenario.slides)])
    wanted = [
        (title, [*lines, line] if number == index else lines) for number, (title, lines) in enumerate(scenario.slides)
    ]
    return scenario.edit_task(
        f'In {scenario.name} add the point "{line}" to the end of the list on the slide "{wanted[index][0]}" and save '
        "it",
        edited(go_to(index), [click_at(*LIST_PX, count=2)], press("ctrl+end"), [Type(f"\n{line}")], press("esc")),
        wanted,
        oracle_follows={"pagedown several times": (wanted[index][0],)},
    )


@scenario_family(
    SlidesScenario, "slide_delete", "easy", "delete a slide", abilities=("find something", "use menus and dialogs")
)
def delete_slide(scenario: SlidesScenario) -> Task:
    index = scenario.pick(1)
    title = scenario.slides[index][0]
    return scenario.edit_task(
        f'In {scenario.name} delete the slide "{title}" and save it',
        edited(choose(index), press("delete")),
        [each for each in scenario.slides if each[0] != title],
    )


@scenario_family(
    SlidesScenario,
    "slide_move",
    "medium",
    "move a slide to the beginning or the end",
    abilities=("find something", "use menus and dialogs"),
)
def move_slide(scenario: SlidesScenario) -> Task:
    index, last = scenario.rng.randrange(1, len(scenario.slides) - 1), scenario.rng.random() < 0.5
    left = [each for number, each in enumerate(scenario.slides) if number != index]
    wanted = [*left, scenario.slides[index]] if last else [scenario.slides[index], *left]
    return scenario.edit_task(
        f'In {scenario.name} move the slide "{scenario.slides[index][0]}" to the {"end" if last else "beginning"} and '
        "save it",
        edited(
            choose(index),
            *map(click_on, (SLIDE_MENU_PX, MOVE_PX, TO_END_PX if last else TO_START_PX)),
        ),
        wanted,
    )


@scenario_family(
    SlidesScenario,
    "slide_copy",
    "medium",
    "duplicate a slide",
    abilities=("find something", "use menus and dialogs"),
)
def copy_slide(scenario: SlidesScenario) -> Task:
    index = scenario.pick()
    return scenario.edit_task(
        f"In {scenario.name} duplicate slide {index + 1}, so that the copy comes right after it, and save it",
        edited(choose(index), press("ctrl+c"), press("ctrl+v")),
        [*scenario.slides[: index + 1], *scenario.slides[index:]],
    )


@scenario_family(
    SlidesScenario,
    "slide_to_note",
    "hard",
    "write the titles of all slides into a note",
    "mousepad",
    abilities=("edit text", "work in several steps", "carry data between programs"),
)
def titles_to_note(scenario: SlidesScenario) -> Task:
    titles = [title for title, _ in scenario.slides]

    async def lines(desktop: StageableDesktop) -> list[str]:
        return [line.strip() for line in (await note(desktop) or "").splitlines() if line.strip()]

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        found = await scenario.document(desktop)
        expected = [[[title], [*points]] for title, points in scenario.slides]
        return [
            clause("the lines of the note", await lines(desktop), titles),
            clause(f"the slides of {scenario.name}", found.slides if found else None, expected),
        ]

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [click_in((await desktop.wait_window(scenario.name))[0], 0.1, 0.9)]
        for _ in titles[1:]:
            yield press("pagedown")
            await hd_screen.wait_still(desktop, 0.4)
        yield [click_in((await desktop.wait_window("mousepad"))[0])]
        yield [Type("\n".join(titles))]

    async def share(desktop: StageableDesktop) -> float:
        found = await lines(desktop)
        return sum(title in found for title in titles) / len(titles)

    def end_states() -> ExampleEndStates:
        def state(*said: str) -> dict[str, bytes]:
            return {scenario.path: scenario.content(), NOTE: "\n".join(said).encode()}

        return near_misses(state(*titles), NOTE, one_is_missing=state(*titles[1:]), another_order=state(*titles[::-1]))

    return scenario.build_task(
        f"Write the titles of all slides of {scenario.name} into note.txt, in order and each on a line of its own, and "
        "save the note",
        setup=lambda desktop: open_beside(scenario, desktop, scenario.name),
        clauses=clauses,
        oracle=hd_screen.until_written(NOTE, steps, press("ctrl+s")),
        example_end_states=end_states,
        max_steps=16,
        milestones=(milestone("titles are written", 0.4, share),),
    )
