"""Coloured terminals: run a command in the right one, or close the right one. Invariant: only files and windows are judged.

Two or three xterms with shells of their own stand at random places; each works in the folder of its colour, so a file that
appears tells in which terminal the command ran.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

from deskhand.actions.ops import Click, Done, Op, Point, Type, screen_px
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.suites.basics.clauses import clause, judged
from deskhand.tasks.suites.basics.layout import close_button, folder_names, scatter
from deskhand.tasks.task import CheckResult, ExampleEndStates, Family, FileContents, Milestone, Rect, Task

WIDTH, HEIGHT = 256, 192
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


class TerminalScenario:
    """Which terminals there are and where; a pure function of the seed."""

    def __init__(self, family: str, seed: int) -> None:
        rng = random.Random(f"{family}:{seed}")
        self.colors = rng.sample(sorted(COLORS), rng.choice([2, 3, 3]))
        self.target = rng.choice(self.colors)
        self.word = rng.choice(WORDS)
        self.place_seed = rng.randrange(2**31)
        self.columns, self.rows = rng.choice([9, 10, 11, 12]), rng.choice([4, 5, 6])

    async def setup(self, desktop: StageableDesktop) -> None:
        for color in self.colors:
            await desktop.push(f"{color}/.keep", b"")
            foreground = "#000000" if color in DARK_TEXT else "#ffffff"
            look = [
                "-bg",
                COLORS[color],
                "-fg",
                foreground,
                "-fa",
                "DejaVu Sans Mono",
                "-fs",
                "6",
                "-b",
                "2",
                "-bw",
                "0",
                "+sb",
            ]
            size = ["-geometry", f"{self.columns}x{self.rows}", "-title", color, "-xrm", "*cursorBlink: false"]
            await desktop.launch(
                ["xterm", *look, *size, "-e", "bash", "--norc", "--noprofile"], env={"PS1": "$ "}, cwd=color
            )
            await desktop.wait_window(
                color
            )  # one after the other: which comes first would be chance, and with it who stands where
        await self.shuffle_windows(desktop, self.place_seed)

    async def shuffle_windows(self, desktop: StageableDesktop, seed: int) -> None:
        windows = await desktop.wait_window("xterm", count=len(self.colors))
        spots = scatter(random.Random(seed), [(w.width, w.height) for w in windows], WIDTH, HEIGHT)
        for window, (x, y) in zip(windows, spots, strict=True):
            await desktop.place_window(window, x, y)

    async def bodies(self, desktop: StageableDesktop) -> dict[str, Rect]:
        """Client area of each terminal by colour."""
        return {
            w.title: Rect(w.x, w.y, w.x + w.width, w.y + w.height)
            for w in await desktop.windows()
            if w.title in self.colors
        }

    async def close_buttons(self, desktop: StageableDesktop) -> dict[str, Rect]:
        """The title bar's close button of each terminal by colour."""
        return {w.title: close_button(w) for w in await desktop.windows() if w.title in self.colors}

    async def grounding_targets(self, desktop: StageableDesktop) -> list[tuple[str, Rect]]:
        """What both families could ask of this screen."""
        run = [
            (run_instruction(color, word), box) for color, box in (await self.bodies(desktop)).items() for word in WORDS
        ]
        return run + [(close_instruction(color), box) for color, box in (await self.close_buttons(desktop)).items()]


def click_in(box: Rect) -> Click:
    """A left click in the middle of `box`, in pixels of the small screen."""
    return Click(Point(*box.center, screen_px(WIDTH, HEIGHT)))


def run_command(seed: int) -> Task:
    """Run `touch WORD` in the terminal of one colour: click it, type, done."""
    scenario = TerminalScenario("terminal_run", seed)
    command = f"touch {scenario.word}"

    async def made(desktop: StageableDesktop) -> dict[str, bool]:
        return {color: scenario.word in await folder_names(desktop, color) for color in scenario.colors}

    async def check(desktop: StageableDesktop) -> CheckResult:
        found = [color for color, there in (await made(desktop)).items() if there]
        return judged(clause(f"the folders in which {scenario.word} is", found, [scenario.target]))

    def end_states() -> ExampleEndStates:
        other = next(color for color in scenario.colors if color != scenario.target)
        near: dict[str, FileContents] = {
            "in every terminal": {f"{color}/{scenario.word}": b"" for color in scenario.colors},
            "in another terminal": {f"{other}/{scenario.word}": b""},
            "another word": {f"{scenario.target}/{scenario.word}s": b""},
            "in the home": {scenario.word: b""},
        }
        return ExampleEndStates(near, {f"{scenario.target}/{scenario.word}": b""})

    async def typed(desktop: StageableDesktop) -> CheckResult:
        return CheckResult(float(any((await made(desktop)).values())), "a file was made somewhere")

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [click_in((await scenario.bodies(desktop))[scenario.target])]
        yield [Type(command + "\n")]
        yield [Done()]

    async def targets(desktop: StageableDesktop) -> tuple[Rect | None, list[Rect]]:
        boxes = await scenario.bodies(desktop)
        return boxes[scenario.target], [box for color, box in boxes.items() if color != scenario.target]

    return Task(
        id=f"basics/terminal_run/{seed}",
        family="terminal_run",
        suite="basics",
        seed=seed,
        instruction=run_instruction(scenario.target, scenario.word),
        width=WIDTH,
        height=HEIGHT,
        max_steps=4,
        setup=scenario.setup,
        check=check,
        oracle=oracle,
        first_click_targets=targets,
        milestones=(Milestone("command ran in some terminal", 0.2, typed),),
        grounding_targets=scenario.grounding_targets,
        shuffle_windows=scenario.shuffle_windows,
        example_end_states=end_states,
        metadata={"colours": scenario.colors, "target": scenario.target, "types": command + "\n"},
    )


def run_instruction(color: str, word: str) -> str:
    return f"In the {color} terminal run touch {word}"


def close_terminal(seed: int) -> Task:
    """Close the terminal of one colour by its title bar, and leave the others open."""
    scenario = TerminalScenario("terminal_close", seed)

    async def check(desktop: StageableDesktop) -> CheckResult:
        open_now = {window.title for window in await desktop.windows()}.intersection(scenario.colors)
        return judged(
            clause(
                "the coloured terminals that are open", sorted(open_now), sorted({*scenario.colors} - {scenario.target})
            )
        )

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [click_in((await scenario.close_buttons(desktop))[scenario.target])]
        yield [Done()]

    async def targets(desktop: StageableDesktop) -> tuple[Rect | None, list[Rect]]:
        boxes = await scenario.close_buttons(desktop)
        return boxes[scenario.target], [box for color, box in boxes.items() if color != scenario.target]

    return Task(
        id=f"basics/terminal_close/{seed}",
        family="terminal_close",
        suite="basics",
        seed=seed,
        instruction=close_instruction(scenario.target),
        width=WIDTH,
        height=HEIGHT,
        max_steps=3,
        setup=scenario.setup,
        check=check,
        oracle=oracle,
        first_click_targets=targets,
        grounding_targets=scenario.grounding_targets,
        shuffle_windows=scenario.shuffle_windows,
        metadata={"colours": scenario.colors, "target": scenario.target},
    )


def close_instruction(color: str) -> str:
    return f"Close the {color} terminal"


FAMILIES = (
    Family("terminal_run", ("xterm",), "easy", run_command, "run a command in the terminal of a colour"),
    Family("terminal_close", ("xterm",), "easy", close_terminal, "close the terminal of a colour"),
)
