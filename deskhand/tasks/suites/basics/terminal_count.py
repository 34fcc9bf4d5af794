"""Family `terminal_count`: count lines with a command and write the number to a file.

Only the files are judged: the instruction names the terminal, but how the lines are counted is up to the agent.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

from deskhand.actions.ops import Done, Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.guest_files import read_file, read_folder
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics.layout import body, scatter
from deskhand.tasks.suites.basics.scenario import (
    THEMES,
    Scenario,
    clause,
    milestone,
    near_misses,
    same_files,
    scenario_family,
)
from deskhand.tasks.suites.basics.screen_search import click_in, wait_until
from deskhand.tasks.task import ExampleEndStates, Rect, Task

FOLDER = "Data"
NAMES = ("birds", "boats", "books", "cards", "coins", "games", "plants", "songs")
WORDS = ("red", "green", "brown", "black", "white", "yellow")
RESULTS = ("count", "number", "result", "total", "answer")
EDITOR_SIZE = (230, 110)


class TerminalCountScenario(Scenario):
    """Two files, a terminal, and an editor that shows one of the files."""

    applications = ("xfce4-terminal", "l3afpad")
    target = "terminal"

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        rng = self.rng
        self.names = [f"{name}.txt" for name in rng.sample(NAMES, 2)]
        counts = rng.sample(range(3, 30), 2)
        self.files = {
            name: "".join(f"{rng.choice(WORDS)} {rng.randint(1, 99)}\n" for _ in range(count)).encode()
            for name, count in zip(self.names, counts, strict=True)
        }
        self.file = rng.choice(self.names)
        text = self.files[self.file].decode()
        self.word = rng.choice(text.split("\n")[:-1]).split()[0] if rng.random() < 0.5 else None
        lines = text.splitlines()
        self.count = sum(self.word in line for line in lines) if self.word else len(lines)
        self.result = f"{rng.choice(RESULTS)}.txt"
        self.columns, self.rows = rng.randint(40, 48), rng.randint(7, 9)
        self.place_seed = rng.randrange(2**31)
        self.theme = rng.choice(THEMES)

    @property
    def command(self) -> str:
        count = f"grep -c {self.word} {self.file}" if self.word else f"wc -l < {self.file}"
        return f"{count} > {self.result}"

    @property
    def instruction(self) -> str:
        what = (
            f"how many lines of {self.file} contain the word {self.word}"
            if self.word
            else f"how many lines {self.file} has"
        )
        return f"In the terminal count {what} and write just the number to {self.result}"

    async def setup(self, desktop: StageableDesktop) -> None:
        for name, data in self.files.items():
            await desktop.push(f"{FOLDER}/{name}", data)
        await desktop.launch(
            ["xfce4-terminal", "--disable-server", f"--geometry={self.columns}x{self.rows}"], cwd=FOLDER
        )
        await desktop.wait_window("xfce4-terminal")
        other = next(name for name in self.names if name != self.file)
        await desktop.launch(["l3afpad", f"{FOLDER}/{other}"])
        await self.shuffle_windows(desktop, self.place_seed)
        await desktop.observe()

    async def shuffle_windows(self, desktop: StageableDesktop, seed: int) -> None:
        (terminal,) = await desktop.wait_window("xfce4-terminal")
        (editor,) = await desktop.wait_window("l3afpad")
        sizes = [(terminal.width, terminal.height), EDITOR_SIZE]
        positions = scatter(random.Random(seed), sizes, self.width, self.height)
        await desktop.place_window(terminal, *positions[0])
        await desktop.place_window(editor, *positions[1], *EDITOR_SIZE)

    async def boxes(self, desktop: StageableDesktop) -> dict[str, Rect]:
        """Return the terminal below its menu, and the editor."""
        (terminal,) = await desktop.wait_window("xfce4-terminal")
        (editor,) = await desktop.wait_window("l3afpad")
        box = body(terminal)
        text = Rect(box.left, box.top + terminal.height // 4, box.right, box.bottom)
        return {"terminal": text, "editor": body(editor)}

    async def written(self, desktop: StageableDesktop) -> bytes | None:
        return await read_file(desktop, f"{FOLDER}/{self.result}")


@scenario_family(
    TerminalCountScenario,
    "terminal_count",
    "medium",
    "count lines with a command and write the number to a file",
    abilities=("use a shell", "read and compare", "carry data between programs"),
)
def count_lines(scenario: TerminalCountScenario) -> Task:
    async def clauses(desktop: StageableDesktop) -> list[Finding]:
        files = await read_folder(desktop, FOLDER)
        number = (files.pop(scenario.result, None) or b"").strip().decode("utf-8", errors="replace")
        return [
            clause(f"the number in {scenario.result}", number, str(scenario.count)),
            same_files("the other files", files, scenario.files),
        ]

    def end_states() -> ExampleEndStates:
        result, target = f"{FOLDER}/{scenario.result}", f"{FOLDER}/{scenario.file}"
        files = {f"{FOLDER}/{name}": data for name, data in scenario.files.items()}
        right = {**files, result: f"{scenario.count}\n".encode()}
        return near_misses(
            right,
            result,
            one_too_many={**right, result: f"{scenario.count + 1}\n".encode()},
            more_than_the_number={**right, result: f"{scenario.count} {scenario.file}\n".encode()},
            the_file_was_changed={**right, target: files[target] + b"\n"},
        )

    async def exists(desktop: StageableDesktop) -> bool:
        return await scenario.written(desktop) is not None

    async def is_number(desktop: StageableDesktop) -> bool:
        return (await scenario.written(desktop) or b"").strip().isdigit()

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [click_in((await scenario.boxes(desktop))["terminal"])]
        yield [Type(scenario.command + "\n")]

        async def finished() -> bool:
            return bool(await scenario.written(desktop))

        await wait_until(finished)
        yield [Done()]

    return scenario.build_task(
        scenario.instruction,
        max_steps=6,
        clauses=clauses,
        oracle=oracle,
        milestones=(
            milestone("the result file is there", 0.1, exists),
            milestone("it holds just a number", 0.1, is_number),
        ),
        example_end_states=end_states,
        oracle_knows=("grep -c", "wc -l"),
        metadata={"target": scenario.file, "word": scenario.word, "count": scenario.count},
    )
