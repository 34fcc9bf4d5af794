"""Family `code_copy`: read a code in one window and type it in another.

When the task begins, the codes are in no file and no command line.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

from deskhand.actions.ops import Done, Key, Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import InfrastructureError
from deskhand.tasks.guest_files import read_text
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics.layout import body, scatter
from deskhand.tasks.suites.basics.scenario import THEMES, Scenario, clause, milestone, near_misses, scenario_family
from deskhand.tasks.suites.basics.screen_search import click_in, wait_until
from deskhand.tasks.suites.basics.terminals import COLORS, DARK_TEXT
from deskhand.tasks.task import ExampleEndStates, Rect, Task

FILES = ("code", "door", "gate", "locker", "ticket")
SYMBOLS = "ACEFHJKLMNPRTUVWXY34679"
"""Letters and digits that are hard to confuse."""
EDITOR_SIZE = (240, 124)
CODE_FILE, READ_TIMEOUT_S = ".code", 30.0
SHOW = f'read -r code <{CODE_FILE}; rm {CODE_FILE}; printf "\\033[?25l\\n  %s" "$code"; exec sleep 86400'
"""Prints a code without a cursor behind it, and removes the file that holds it."""


class CodeCopyScenario(Scenario):
    """Two or three colored windows with a code each, and an empty file in an editor."""

    applications = ("l3afpad", "xterm")
    target = "editor"

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        rng = self.rng
        self.colors = rng.sample(sorted(COLORS), rng.choice([2, 3]))
        self.color = rng.choice(self.colors)
        self.codes = {color: "".join(rng.choices(SYMBOLS, k=rng.choice([4, 5]))) for color in self.colors}
        self.file = f"{rng.choice(FILES)}.txt"
        self.place_seed = rng.randrange(2**31)
        self.theme = rng.choice(THEMES)

    async def setup(self, desktop: StageableDesktop) -> None:
        await desktop.push(self.file, b"")
        await desktop.launch(["l3afpad", self.file])
        await desktop.wait_window("l3afpad")
        for color, code in self.codes.items():
            style = ["-bg", COLORS[color], "-fg", "#000000" if color in DARK_TEXT else "#ffffff"]
            style += ["-fa", "DejaVu Sans Mono", "-fs", "12", "-b", "0", "+sb", "-geometry", "10x3", "-title", color]
            await desktop.push(CODE_FILE, f"{code}\n".encode())
            await desktop.launch(["xterm", *style, "-e", "sh", "-c", SHOW])
            await desktop.wait_window(color)  # one at a time: the order of the windows decides their places
            await _wait_until_read(desktop)
        await self.shuffle_windows(desktop, self.place_seed)
        await desktop.observe()

    async def shuffle_windows(self, desktop: StageableDesktop, seed: int) -> None:
        (editor,) = await desktop.wait_window("l3afpad")
        windows = await desktop.wait_window("xterm", count=len(self.colors))
        sizes = [EDITOR_SIZE, *((window.width, window.height) for window in windows)]
        positions = scatter(random.Random(seed), sizes, self.width, self.height)
        await desktop.place_window(editor, *positions[0], *EDITOR_SIZE)
        for window, (x, y) in zip(windows, positions[1:], strict=True):
            await desktop.place_window(window, x, y)

    async def boxes(self, desktop: StageableDesktop) -> dict[str, Rect]:
        """Return the text area, and the windows by color."""
        (editor,) = await desktop.wait_window("l3afpad")
        box = body(editor)
        text = Rect(box.left, box.top + editor.height // 4, box.right, box.bottom)
        others = {window.title: body(window) for window in await desktop.windows() if window.title in self.colors}
        return {"editor": text} | others

    async def saved(self, desktop: StageableDesktop) -> str:
        return (await read_text(desktop, self.file) or "").strip()


async def _wait_until_read(desktop: StageableDesktop) -> None:
    """Wait until a shell has read its code and removed the file. Raises `InfrastructureError` if it does not."""

    async def is_read() -> bool:
        return await read_text(desktop, CODE_FILE) is None

    await wait_until(is_read, READ_TIMEOUT_S)
    if not await is_read():
        raise InfrastructureError(f"a terminal did not read {CODE_FILE} within {READ_TIMEOUT_S:g} s")


@scenario_family(
    CodeCopyScenario,
    "code_copy",
    "medium",
    "read a code in one window and type it in another",
    abilities=("choose among windows", "edit text", "carry data between programs"),
)
def copy_code(scenario: CodeCopyScenario) -> Task:
    code = scenario.codes[scenario.color]

    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        return [clause(f"the text of {scenario.file}", await scenario.saved(desktop), code)]

    def end_states() -> ExampleEndStates:
        other = next(code for color, code in scenario.codes.items() if color != scenario.color)
        return near_misses(
            {scenario.file: f"{code}\n".encode()},
            scenario.file,
            the_code_of_another_window={scenario.file: other.encode()},
            all_the_codes={scenario.file: "\n".join(scenario.codes.values()).encode()},
        )

    async def is_saved(desktop: StageableDesktop) -> bool:
        return await scenario.saved(desktop) != ""

    async def is_some_code(desktop: StageableDesktop) -> bool:
        return await scenario.saved(desktop) in scenario.codes.values()

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        (editor,) = await desktop.wait_window("l3afpad")
        yield [click_in(body(editor))]
        yield [Type(code)]
        yield [Key(("ctrl", "s"))]
        await wait_until(lambda: is_saved(desktop))
        yield [Done()]

    return scenario.build_task(
        f"Type the code of the {scenario.color} window into {scenario.file} and save it",
        max_steps=6,
        clauses=clauses,
        oracle=oracle,
        milestones=(
            milestone("something was saved", 0.1, is_saved),
            milestone("one of the codes was saved", 0.2, is_some_code),
        ),
        example_end_states=end_states,
        metadata={"colors": scenario.colors, "target": scenario.color},
    )
