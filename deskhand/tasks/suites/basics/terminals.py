"""Coloured terminals: run a command in the right one, or close the right one. Invariant: only files and windows are judged.

Two or three xterms with shells of their own stand at random places; each works in the folder of its colour, so a file that
appears tells in which terminal the command ran.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

from deskhand.actions.ops import Click, Done, Op, Point, Type, screen_px
from deskhand.tasks.suites.basics.clauses import clause, judged
from deskhand.tasks.suites.basics.layout import close_button, folder_names, scatter
from deskhand.tasks.task import (
    CheckResult,
    ExampleEndStates,
    Family,
    FileContents,
    Milestone,
    Rect,
    StagedDesktopLike,
    Task,
)

WIDTH, HEIGHT = 256, 192
COLOURS = {
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
        self.colours = rng.sample(sorted(COLOURS), rng.choice([2, 3, 3]))
        self.target = rng.choice(self.colours)
        self.word = rng.choice(WORDS)
        self.place_seed = rng.randrange(2**31)
        self.columns, self.rows = rng.choice([9, 10, 11, 12]), rng.choice([4, 5, 6])

    async def setup(self, desktop: StagedDesktopLike) -> None:
        for colour in self.colours:
            await desktop.push(f"{colour}/.keep", b"")
            foreground = "#000000" if colour in DARK_TEXT else "#ffffff"
            look = [
                "-bg",
                COLOURS[colour],
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
            size = ["-geometry", f"{self.columns}x{self.rows}", "-title", colour, "-xrm", "*cursorBlink: false"]
            await desktop.launch(
                ["xterm", *look, *size, "-e", "bash", "--norc", "--noprofile"], env={"PS1": "$ "}, cwd=colour
            )
            await desktop.wait_window(
                colour
            )  # one after the other: which comes first would be chance, and with it who stands where
        await self.shuffle_windows(desktop, self.place_seed)

    async def shuffle_windows(self, desktop: StagedDesktopLike, seed: int) -> None:
        windows = await desktop.wait_window("xterm", count=len(self.colours))
        spots = scatter(random.Random(seed), [(w.width, w.height) for w in windows], WIDTH, HEIGHT)
        for window, (x, y) in zip(windows, spots, strict=True):
            await desktop.place_window(window, x, y)

    async def bodies(self, desktop: StagedDesktopLike) -> dict[str, Rect]:
        """Client area of each terminal by colour."""
        return {
            w.title: Rect(w.x, w.y, w.x + w.width, w.y + w.height)
            for w in await desktop.windows()
            if w.title in self.colours
        }

    async def close_buttons(self, desktop: StagedDesktopLike) -> dict[str, Rect]:
        """The title bar's close button of each terminal by colour."""
        return {w.title: close_button(w) for w in await desktop.windows() if w.title in self.colours}

    async def groundings(self, desktop: StagedDesktopLike) -> list[tuple[str, Rect]]:
        """What both families could ask of this screen."""
        run = [
            (run_instruction(colour, word), box)
            for colour, box in (await self.bodies(desktop)).items()
            for word in WORDS
        ]
        return run + [(close_instruction(colour), box) for colour, box in (await self.close_buttons(desktop)).items()]


def click_in(box: Rect) -> Click:
    """A left click in the middle of `box`, in pixels of the small screen."""
    return Click(Point(*box.center, screen_px(WIDTH, HEIGHT)))


def run_command(seed: int) -> Task:
    """Run `touch WORD` in the terminal of one colour: click it, type, done."""
    scene = TerminalScenario("terminal_run", seed)
    command = f"touch {scene.word}"

    async def made(desktop: StagedDesktopLike) -> dict[str, bool]:
        return {colour: scene.word in await folder_names(desktop, colour) for colour in scene.colours}

    async def check(desktop: StagedDesktopLike) -> CheckResult:
        found = [colour for colour, there in (await made(desktop)).items() if there]
        return judged(clause(f"the folders in which {scene.word} is", found, [scene.target]))

    def end_states() -> ExampleEndStates:
        other = next(colour for colour in scene.colours if colour != scene.target)
        near: dict[str, FileContents] = {
            "in every terminal": {f"{colour}/{scene.word}": b"" for colour in scene.colours},
            "in another terminal": {f"{other}/{scene.word}": b""},
            "another word": {f"{scene.target}/{scene.word}s": b""},
            "in the home": {scene.word: b""},
        }
        return ExampleEndStates(near, {f"{scene.target}/{scene.word}": b""})

    async def typed(desktop: StagedDesktopLike) -> CheckResult:
        return CheckResult(float(any((await made(desktop)).values())), "a file was made somewhere")

    async def oracle(desktop: StagedDesktopLike) -> AsyncIterator[list[Op]]:
        yield [click_in((await scene.bodies(desktop))[scene.target])]
        yield [Type(command + "\n")]
        yield [Done()]

    async def targets(desktop: StagedDesktopLike) -> tuple[Rect | None, list[Rect]]:
        boxes = await scene.bodies(desktop)
        return boxes[scene.target], [box for colour, box in boxes.items() if colour != scene.target]

    return Task(
        id=f"basics/terminal_run/{seed}",
        family="terminal_run",
        suite="basics",
        seed=seed,
        instruction=run_instruction(scene.target, scene.word),
        width=WIDTH,
        height=HEIGHT,
        max_steps=4,
        setup=scene.setup,
        check=check,
        oracle=oracle,
        first_click_targets=targets,
        milestones=(Milestone("command ran in some terminal", 0.2, typed),),
        grounding_targets=scene.groundings,
        shuffle_windows=scene.shuffle_windows,
        example_end_states=end_states,
        metadata={"colours": scene.colours, "target": scene.target, "types": command + "\n"},
    )


def run_instruction(colour: str, word: str) -> str:
    return f"In the {colour} terminal run touch {word}"


def close_terminal(seed: int) -> Task:
    """Close the terminal of one colour by its title bar, and leave the others open."""
    scene = TerminalScenario("terminal_close", seed)

    async def check(desktop: StagedDesktopLike) -> CheckResult:
        open_now = {window.title for window in await desktop.windows()}.intersection(scene.colours)
        return judged(
            clause("the coloured terminals that are open", sorted(open_now), sorted({*scene.colours} - {scene.target}))
        )

    async def oracle(desktop: StagedDesktopLike) -> AsyncIterator[list[Op]]:
        yield [click_in((await scene.close_buttons(desktop))[scene.target])]
        yield [Done()]

    async def targets(desktop: StagedDesktopLike) -> tuple[Rect | None, list[Rect]]:
        boxes = await scene.close_buttons(desktop)
        return boxes[scene.target], [box for colour, box in boxes.items() if colour != scene.target]

    return Task(
        id=f"basics/terminal_close/{seed}",
        family="terminal_close",
        suite="basics",
        seed=seed,
        instruction=close_instruction(scene.target),
        width=WIDTH,
        height=HEIGHT,
        max_steps=3,
        setup=scene.setup,
        check=check,
        oracle=oracle,
        first_click_targets=targets,
        grounding_targets=scene.groundings,
        shuffle_windows=scene.shuffle_windows,
        metadata={"colours": scene.colours, "target": scene.target},
    )


def close_instruction(colour: str) -> str:
    return f"Close the {colour} terminal"


FAMILIES = (
    Family("terminal_run", ("xterm",), "easy", run_command, "run a command in the terminal of a colour"),
    Family("terminal_close", ("xterm",), "easy", close_terminal, "close the terminal of a colour"),
)
