"""Counting in a terminal window. Invariant: every file of the folder is judged as it is on the disk."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

from deskhand.actions.ops import Done, Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.suites.basics.clauses import clause, judged, nearly, same_files
from deskhand.tasks.suites.basics.layout import scatter
from deskhand.tasks.suites.basics.screen_search import (
    HEIGHT,
    THEMES,
    WIDTH,
    body,
    click_in,
    folder_contents,
    wait_until,
)
from deskhand.tasks.task import CheckResult, ExampleEndStates, Family, Milestone, Rect, Task

FOLDER = "Data"
NAMES = ("birds", "boats", "books", "cards", "coins", "games", "plants", "songs")
WORDS = ("red", "green", "brown", "black", "white", "yellow")
RESULTS = ("count", "number", "result", "total", "answer")
EDITOR_SIZE = (230, 110)


class TerminalCountScenario:
    """Two files, a terminal and an editor that shows one of them; a pure function of the seed."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"terminal_count:{seed}")
        names = rng.sample(NAMES, 2)
        self.names = [f"{name}.txt" for name in names]
        counts = rng.sample(range(3, 30), 2)
        self.files = {
            name: "".join(f"{rng.choice(WORDS)} {rng.randint(1, 99)}\n" for _ in range(count)).encode()
            for name, count in zip(self.names, counts, strict=True)
        }
        self.target = rng.choice(self.names)
        text = self.files[self.target].decode()
        self.word = rng.choice(text.split("\n")[:-1]).split()[0] if rng.random() < 0.5 else None
        lines = text.splitlines()
        self.count = sum(self.word in line for line in lines) if self.word else len(lines)
        self.result = f"{rng.choice(RESULTS)}.txt"
        self.columns, self.rows = rng.randint(40, 48), rng.randint(7, 9)
        self.place_seed = rng.randrange(2**31)
        self.theme = rng.choice(THEMES)

    @property
    def command(self) -> str:
        return (
            f"grep -c {self.word} {self.target} > {self.result}"
            if self.word
            else f"wc -l < {self.target} > {self.result}"
        )

    @property
    def instruction(self) -> str:
        what = (
            f"how many lines of {self.target} hold the word {self.word}"
            if self.word
            else f"how many lines {self.target} has"
        )
        return f"In the terminal count {what} and write just the number to {self.result}"

    async def setup(self, desktop: StageableDesktop) -> None:
        for name, data in self.files.items():
            await desktop.push(f"{FOLDER}/{name}", data)
        await desktop.launch(
            ["xfce4-terminal", "--disable-server", f"--geometry={self.columns}x{self.rows}"], cwd=FOLDER
        )
        await desktop.wait_window("xfce4-terminal")
        other = next(name for name in self.names if name != self.target)
        await desktop.launch(["l3afpad", f"{FOLDER}/{other}"])
        await self.shuffle_windows(desktop, self.place_seed)
        await desktop.observe()

    async def shuffle_windows(self, desktop: StageableDesktop, seed: int) -> None:
        (terminal,) = await desktop.wait_window("xfce4-terminal")
        (editor,) = await desktop.wait_window("l3afpad")
        spots = scatter(random.Random(seed), [(terminal.width, terminal.height), EDITOR_SIZE], WIDTH, HEIGHT)
        await desktop.place_window(terminal, *spots[0])
        await desktop.place_window(editor, *spots[1], *EDITOR_SIZE)

    async def boxes(self, desktop: StageableDesktop) -> tuple[Rect, Rect]:
        """The terminal's lower part, below its menu, and the editor."""
        (terminal,) = await desktop.wait_window("xfce4-terminal")
        (editor,) = await desktop.wait_window("l3afpad")
        box = body(terminal)
        return Rect(box.left, box.top + terminal.height // 4, box.right, box.bottom), body(editor)


def count_lines(seed: int) -> Task:
    """Count lines, or lines with a word, by a command, and write the number to a file."""
    scenario = TerminalCountScenario(seed)

    async def written(desktop: StageableDesktop) -> bytes | None:
        return (await folder_contents(desktop, FOLDER)).get(scenario.result)

    async def check(desktop: StageableDesktop) -> CheckResult:
        found = await folder_contents(desktop, FOLDER)
        number = (found.pop(scenario.result, None) or b"").strip().decode("utf-8", errors="replace")
        return judged(
            clause(f"the number in {scenario.result}", number, str(scenario.count)),
            same_files("the other files", found, scenario.files),
        )

    def end_states() -> ExampleEndStates:
        place = f"{FOLDER}/{scenario.result}"
        files = {f"{FOLDER}/{name}": data for name, data in scenario.files.items()}
        right = {**files, place: f"{scenario.count}\n".encode()}
        target = f"{FOLDER}/{scenario.target}"
        return nearly(
            right,
            place,
            one_too_many={**right, place: f"{scenario.count + 1}\n".encode()},
            more_than_the_number={**right, place: f"{scenario.count} {scenario.target}\n".encode()},
            the_file_was_changed={**right, target: files[target] + b"\n"},
        )

    async def exists(desktop: StageableDesktop) -> CheckResult:
        return CheckResult(float(await written(desktop) is not None), f"{scenario.result} is there")

    async def holds_number(desktop: StageableDesktop) -> CheckResult:
        return CheckResult(
            float((await written(desktop) or b"").strip().isdigit()), f"{scenario.result} holds just a number"
        )

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        terminal, _ = await scenario.boxes(desktop)
        yield [click_in(terminal)]
        yield [Type(scenario.command + "\n")]

        async def finished() -> bool:
            return bool(await written(desktop))

        await wait_until(finished)
        yield [Done()]

    async def targets(desktop: StageableDesktop) -> tuple[Rect | None, list[Rect]]:
        terminal, editor = await scenario.boxes(desktop)
        return terminal, [editor]

    return Task(
        id=f"basics/terminal_count/{seed}",
        family="terminal_count",
        suite="basics",
        seed=seed,
        instruction=scenario.instruction,
        width=WIDTH,
        height=HEIGHT,
        max_steps=6,
        setup=scenario.setup,
        check=check,
        oracle=oracle,
        first_click_targets=targets,
        theme=scenario.theme,
        milestones=(
            Milestone("the result file is there", 0.1, exists),
            Milestone("it holds just a number", 0.1, holds_number),
        ),
        difficulty="medium",
        shuffle_windows=scenario.shuffle_windows,
        example_end_states=end_states,
        metadata={"target": scenario.target, "word": scenario.word, "count": scenario.count},
    )


FAMILIES = (
    Family(
        "terminal_count",
        ("xfce4-terminal", "l3afpad"),
        "medium",
        count_lines,
        "count lines by a command and write the number to a file",
    ),
)
