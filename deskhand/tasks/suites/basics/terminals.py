"""Families `terminal_run` and `terminal_close`: colored terminals on a tiny screen.

Two or three xterms are at random places. Each works in the folder of its color, so a new file shows in which terminal a
command ran.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

from deskhand.actions.ops import Click, Done, Op, Point, Type, screen_px
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.guest_files import list_folder
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics.layout import body, close_button, scatter
from deskhand.tasks.suites.basics.scenario import Scenario, clause, milestone, scenario_family
from deskhand.tasks.task import ExampleEndStates, FileContents, Rect, Task

COLORS = {
    "red": "#c02020",
    "green": "#208020",
    "blue": "#2040c0",
    "yellow": "#e0d040",
    "white": "#f4f4f4",
    "purple": "#8030a0",
}
DARK_TEXT = {"yellow", "white"}
WORDS = ("apple", "bread", "cloud", "delta", "eagle", "flame", "grape", "house", "island", "jewel", "lemon", "melon")


class TerminalScenario(Scenario):
    """Two or three terminals."""

    applications = ("xterm",)
    width, height = 256, 192

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        rng = self.rng
        self.colors = rng.sample(sorted(COLORS), rng.choice([2, 3, 3]))
        self.target = rng.choice(self.colors)
        self.word = rng.choice(WORDS)
        self.place_seed = rng.randrange(2**31)
        self.columns, self.rows = rng.choice([9, 10, 11, 12]), rng.choice([4, 5, 6])

    async def setup(self, desktop: StageableDesktop) -> None:
        font = ["-fa", "DejaVu Sans Mono", "-fs", "6", "-b", "2", "-bw", "0", "+sb"]
        shape = ["-geometry", f"{self.columns}x{self.rows}", "-xrm", "*cursorBlink: false"]
        for color in self.colors:
            await desktop.push(f"{color}/.keep", b"")
            text_color = "#000000" if color in DARK_TEXT else "#ffffff"
            style = ["-bg", COLORS[color], "-fg", text_color, *font, *shape, "-title", color]
            shell = ["-e", "bash", "--norc", "--noprofile"]
            await desktop.launch(["xterm", *style, *shell], env={"PS1": "$ "}, cwd=color)
            await desktop.wait_window(color)  # one at a time: the order of the windows decides their places
        await self.shuffle_windows(desktop, self.place_seed)

    async def shuffle_windows(self, desktop: StageableDesktop, seed: int) -> None:
        windows = await desktop.wait_window("xterm", count=len(self.colors))
        sizes = [(window.width, window.height) for window in windows]
        positions = scatter(random.Random(seed), sizes, self.width, self.height)
        for window, (x, y) in zip(windows, positions, strict=True):
            await desktop.place_window(window, x, y)

    async def boxes(self, desktop: StageableDesktop) -> dict[str, Rect]:
        """Return the client area of each terminal by color."""
        return {window.title: body(window) for window in await desktop.windows() if window.title in self.colors}

    async def close_buttons(self, desktop: StageableDesktop) -> dict[str, Rect]:
        """Return the close button of each terminal by color."""
        return {window.title: close_button(window) for window in await desktop.windows() if window.title in self.colors}

    async def grounding_targets(self, desktop: StageableDesktop) -> list[tuple[str, Rect]]:
        """Return the instructions of both families that this screen admits."""
        bodies, buttons = await self.boxes(desktop), await self.close_buttons(desktop)
        run = [(run_instruction(color, word), box) for color, box in bodies.items() for word in WORDS]
        return run + [(close_instruction(color), box) for color, box in buttons.items()]


def click_in(box: Rect) -> Click:
    """Return a left click in the middle of `box`, in pixels of the tiny screen."""
    return Click(Point(*box.center, screen_px(TerminalScenario.width, TerminalScenario.height)))


@scenario_family(TerminalScenario, "terminal_run", "easy", "run a command in the terminal of a color")
def run_command(scenario: TerminalScenario) -> Task:
    command = f"touch {scenario.word}"

    async def folders(desktop: StageableDesktop) -> list[str]:
        return [color for color in scenario.colors if scenario.word in await list_folder(desktop, color)]

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        return [clause(f"the folders that have {scenario.word}", await folders(desktop), [scenario.target])]

    def end_states() -> ExampleEndStates:
        other = next(color for color in scenario.colors if color != scenario.target)
        negatives: dict[str, FileContents] = {
            "in every terminal": {f"{color}/{scenario.word}": b"" for color in scenario.colors},
            "in another terminal": {f"{other}/{scenario.word}": b""},
            "another word": {f"{scenario.target}/{scenario.word}s": b""},
            "in the home": {scenario.word: b""},
        }
        return ExampleEndStates(negatives, {f"{scenario.target}/{scenario.word}": b""})

    async def command_ran(desktop: StageableDesktop) -> bool:
        return bool(await folders(desktop))

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [click_in((await scenario.boxes(desktop))[scenario.target])]
        yield [Type(command + "\n")]
        yield [Done()]

    return scenario.build_task(
        run_instruction(scenario.target, scenario.word),
        max_steps=4,
        clauses=clauses,
        oracle=oracle,
        milestones=(milestone("command ran in some terminal", 0.2, command_ran),),
        grounding_targets=scenario.grounding_targets,
        example_end_states=end_states,
        metadata={"colors": scenario.colors, "target": scenario.target, "types": command + "\n"},
    )


def run_instruction(color: str, word: str) -> str:
    return f"In the {color} terminal run touch {word}"


class CloseScenario(TerminalScenario):
    """Terminals of which one is to be closed."""

    async def first_click_targets(self, desktop: StageableDesktop) -> tuple[Rect | None, list[Rect]]:
        buttons = await self.close_buttons(desktop)
        return buttons.pop(self.target), list(buttons.values())


@scenario_family(CloseScenario, "terminal_close", "easy", "close the terminal of a color")
def close_terminal(scenario: CloseScenario) -> Task:
    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        open_now = {window.title for window in await desktop.windows()}.intersection(scenario.colors)
        others = sorted({*scenario.colors} - {scenario.target})
        return [clause("the colored terminals that are open", sorted(open_now), others)]

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [click_in((await scenario.close_buttons(desktop))[scenario.target])]
        yield [Done()]

    return scenario.build_task(
        close_instruction(scenario.target),
        max_steps=3,
        clauses=clauses,
        oracle=oracle,
        grounding_targets=scenario.grounding_targets,
        metadata={"colors": scenario.colors, "target": scenario.target},
    )


def close_instruction(color: str) -> str:
    return f"Close the {color} terminal"
