"""Families `terminal_run` and `terminal_close`: colored terminals on a tiny screen.

Two or three xterms are at random places. Titles and folders do not tell them apart at the end: every terminal can be
given another title, and reaches the folders of the others. What is closed, and where a command ran, is read from the
windows and programs that set-up started. No command line tells which terminal has which color.

In `terminal_run` each works in the folder of its color, and each shell lists its commands.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator

from deskhand.actions.ops import Click, Done, Op, Point, Type, screen_px
from deskhand.desktop.base import HasProgramList, StageableDesktop
from deskhand.tasks.guest_files import list_folder, read_text
from deskhand.tasks.setup_facts import all_noted, note, noted
from deskhand.tasks.suites.basics.layout import body, close_button, scatter
from deskhand.tasks.suites.basics.scenario import (
    Scenario,
    clause,
    combine_clauses,
    forged_files,
    milestone,
    scenario_family,
)
from deskhand.tasks.task import CheckResult, ExampleEndStates, FileContents, Rect, Task

COLORS = {
    "red": "#c02020",
    "green": "#208020",
    "blue": "#2040c0",
    "yellow": "#e0d040",
    "white": "#f4f4f4",
    "purple": "#8030a0",
}
DARK_TEXT = {"yellow", "white"}
COMMANDS = ".commands"
"""Folder of the files, one per color, in which each shell lists the commands that were typed in it."""
STYLE = ".style"
"""File of X resources that each xterm reads when it starts; it is gone when the task begins."""
TERMINALS = "terminals"
"""Noted by set-up: (window id, program id) by color."""
WORDS = ("apple", "bread", "cloud", "delta", "eagle", "flame", "grape", "house", "island", "jewel", "lemon", "melon")


class TerminalScenario(Scenario):
    """Two or three terminals."""

    applications = ("xterm",)
    width, height = 256, 192
    settle_grace_s = 0.5
    has_folders = True
    """Whether each shell works in a folder of its color."""

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
        terminals: dict[str, tuple[int, int]] = {}
        for color in self.colors:
            text_color = "#000000" if color in DARK_TEXT else "#ffffff"
            style = {"background": COLORS[color], "foreground": text_color, "title": color}
            await desktop.push(STYLE, "".join(f"xterm*{name}: {value}\n" for name, value in style.items()).encode())
            variables = {"PS1": "$ ", "XENVIRONMENT": STYLE}
            if self.has_folders:
                await desktop.push(f"{color}/.keep", b"")
                await desktop.push(f"{COMMANDS}/{color}", b"")
                listing = f'history 1 >>"$HOME/{COMMANDS}/{color}" 2>/dev/null'
                variables |= {"PROMPT_COMMAND": listing, "XENVIRONMENT": f"../{STYLE}"}
            argv = ["xterm", *font, *shape, "-e", "bash", "--norc", "--noprofile"]
            program = await desktop.launch(argv, env=variables, cwd=color if self.has_folders else None)
            # one at a time: the order of the windows decides their places
            window = (await desktop.wait_window(color))[0]
            terminals[color] = (window.id, program)
        await desktop.run(["rm", STYLE])
        note(desktop, TERMINALS, terminals)
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
        """Return the instructions of both families that this screen admits, without the held-out ones."""
        bodies, buttons = await self.boxes(desktop), await self.close_buttons(desktop)
        run = [
            (run_instruction(color, word), box)
            for color, box in bodies.items()
            for word in WORDS
            if not run_is_held_out(color, word)
        ]
        return run + [(close_instruction(color), box) for color, box in buttons.items() if not close_is_held_out(color)]


def click_in(box: Rect) -> Click:
    """Return a left click in the middle of `box`, in pixels of the tiny screen."""
    return Click(Point(*box.center, screen_px(TerminalScenario.width, TerminalScenario.height)))


def run_is_held_out(color: str, word: str) -> bool:
    """Whether the instruction is one of the 12 of 72 of the split `test_instructions`: each word once, each color
    twice."""
    return WORDS.index(word) % len(COLORS) == sorted(COLORS).index(color)


def close_is_held_out(color: str) -> bool:
    """Whether the instruction is the one of 6 of the split `test_instructions`."""
    return color == "green"


@scenario_family(
    TerminalScenario,
    "terminal_run",
    "easy",
    "run a command in the terminal with the given color",
    abilities=("choose among windows", "use a shell"),
    holds_out=lambda task: run_is_held_out(task.metadata["target"], task.metadata["word"]),
)
def run_command(scenario: TerminalScenario) -> Task:
    command = f"touch {scenario.word}"

    async def folders(desktop: StageableDesktop) -> list[str]:
        return [color for color in scenario.colors if scenario.word in await list_folder(desktop, color)]

    async def ran_there(desktop: StageableDesktop) -> bool:
        commands = await read_text(desktop, f"{COMMANDS}/{scenario.target}") or ""
        return any({"touch", scenario.word} <= set(re.findall(r"\w+", line)) for line in commands.splitlines())

    async def host_saw_it(desktop: StageableDesktop) -> bool | None:
        """Return whether the host sees that a command ran in the terminal, which must still be open; None if the host
        cannot see it."""
        _, program = all_noted(desktop).get(TERMINALS, {}).get(scenario.target, (0, 0))
        if not program or not isinstance(desktop, HasProgramList):
            return None
        return (await desktop.running_programs()).get(program, False)

    async def check(desktop: StageableDesktop) -> CheckResult:
        seen = await host_saw_it(desktop)
        where = f"the {scenario.target} terminal"
        return combine_clauses(
            clause(f"the folders that have {scenario.word}", await folders(desktop), [scenario.target]),
            clause(f"the shell of {where} lists the command", await ran_there(desktop), True),
            clause(f"a command ran in {where}", seen is not False, True),
            untrusted_source=seen is None,
        )

    def end_states() -> ExampleEndStates:
        other = next(color for color in scenario.colors if color != scenario.target)

        def ran_in(color: str, text: str = command) -> FileContents:
            return {f"{COMMANDS}/{color}": f"    1  {text}\n".encode()}

        made: FileContents = {f"{scenario.target}/{scenario.word}": b""}
        every: FileContents = {f"{color}/{scenario.word}": b"" for color in scenario.colors}
        negatives: dict[str, FileContents] = {
            "in every terminal": {**every, **ran_in(scenario.target)},
            "in another terminal": {f"{other}/{scenario.word}": b"", **ran_in(other)},
            "from another terminal": {**made, **ran_in(other, f"touch ../{scenario.target}/{scenario.word}")},
            "another word": {f"{scenario.target}/{scenario.word}s": b"", **ran_in(scenario.target, f"{command}s")},
            "in the home": {scenario.word: b"", **ran_in(scenario.target, f"touch ~/{scenario.word}")},
        }
        return ExampleEndStates(negatives, {**made, **ran_in(scenario.target)})

    async def command_ran(desktop: StageableDesktop) -> bool:
        return bool(await folders(desktop))

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [click_in((await scenario.boxes(desktop))[scenario.target])]
        yield [Type(command + "\n")]
        yield [Done()]

    return scenario.build_task(
        run_instruction(scenario.target, scenario.word),
        max_steps=4,
        check=check,
        oracle=oracle,
        milestones=(milestone("command ran in some terminal", 0.2, command_ran),),
        grounding_targets=scenario.grounding_targets,
        example_end_states=end_states,
        forged_files=forged_files(end_states),
        metadata={
            "colors": scenario.colors,
            "target": scenario.target,
            "word": scenario.word,
            "types": command + "\n",
        },
    )


def run_instruction(color: str, word: str) -> str:
    return f"In the {color} terminal run touch {word}"


class CloseScenario(TerminalScenario):
    """Terminals of which one is to be closed."""

    has_folders = False

    async def first_click_targets(self, desktop: StageableDesktop) -> tuple[Rect | None, list[Rect]]:
        buttons = await self.close_buttons(desktop)
        return buttons.pop(self.target), list(buttons.values())


@scenario_family(
    CloseScenario,
    "terminal_close",
    "easy",
    "close the terminal with the given color",
    abilities=("choose among windows",),
    holds_out=lambda task: close_is_held_out(task.metadata["target"]),
)
def close_terminal(scenario: CloseScenario) -> Task:
    async def check(desktop: StageableDesktop) -> CheckResult:
        windows = {window.id for window in await desktop.windows()}
        programs = set(await desktop.running_programs()) if isinstance(desktop, HasProgramList) else None
        read: dict[str, str] = {}
        for color, (window, program) in noted(desktop, TERMINALS).items():
            parts = {window in windows, window in windows if programs is None else program in programs}
            read[color] = "half open" if len(parts) > 1 else "open" if parts.pop() else "closed"
        wanted = {color: "closed" if color == scenario.target else "open" for color in scenario.colors}
        return combine_clauses(
            clause("the colored terminals", dict(sorted(read.items())), dict(sorted(wanted.items()))),
            untrusted_source=programs is None,
        )

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [click_in((await scenario.close_buttons(desktop))[scenario.target])]
        yield [Done()]

    return scenario.build_task(
        close_instruction(scenario.target),
        max_steps=3,
        check=check,
        oracle=oracle,
        grounding_targets=scenario.grounding_targets,
        metadata={"colors": scenario.colors, "target": scenario.target},
    )


def close_instruction(color: str) -> str:
    return f"Close the {color} terminal"
