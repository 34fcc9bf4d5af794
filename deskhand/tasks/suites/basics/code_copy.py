"""A code to read in one window and to type in another. Invariant: only the saved file is judged; the codes are in no file."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

from deskhand.actions.ops import Done, Key, Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.suites.basics.clauses import clause, judged, nearly
from deskhand.tasks.suites.basics.layout import file_text, scatter
from deskhand.tasks.suites.basics.screen_search import HEIGHT, THEMES, WIDTH, body, click_in, wait_until
from deskhand.tasks.suites.basics.terminals import COLORS, DARK_TEXT
from deskhand.tasks.task import CheckResult, ExampleEndStates, Family, Milestone, Rect, Task

FILES = ("code", "door", "gate", "locker", "ticket")
SYMBOLS = "ACEFHJKLMNPRTUVWXY34679"
"""Letters and digits that are not easily taken for one another."""
EDITOR_SIZE = (240, 124)
SHOW = 'printf "\\033[?25l\\n  %s" "$1"; exec sleep 86400'
"""Shows a code without a cursor behind it."""


class CodeCopyScenario:
    """Two or three coloured windows with a code each, and an empty file in an editor; a pure function of the seed."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"code_copy:{seed}")
        self.colors = rng.sample(sorted(COLORS), rng.choice([2, 3]))
        self.target = rng.choice(self.colors)
        self.codes = {color: "".join(rng.choices(SYMBOLS, k=rng.choice([4, 5]))) for color in self.colors}
        self.file = f"{rng.choice(FILES)}.txt"
        self.place_seed = rng.randrange(2**31)
        self.theme = rng.choice(THEMES)

    async def setup(self, desktop: StageableDesktop) -> None:
        await desktop.push(self.file, b"")
        await desktop.launch(["l3afpad", self.file])
        await desktop.wait_window("l3afpad")
        for color, code in self.codes.items():
            look = ["-bg", COLORS[color], "-fg", "#000000" if color in DARK_TEXT else "#ffffff"]
            look += ["-fa", "DejaVu Sans Mono", "-fs", "12", "-b", "0", "+sb", "-geometry", "10x3", "-title", color]
            await desktop.launch(["xterm", *look, "-e", "sh", "-c", SHOW, "sh", code])
            await desktop.wait_window(color)  # one after the other, or chance would place them
        await self.shuffle_windows(desktop, self.place_seed)
        await desktop.observe()

    async def shuffle_windows(self, desktop: StageableDesktop, seed: int) -> None:
        (editor,) = await desktop.wait_window("l3afpad")
        shows = await desktop.wait_window("xterm", count=len(self.colors))
        spots = scatter(
            random.Random(seed), [EDITOR_SIZE, *((show.width, show.height) for show in shows)], WIDTH, HEIGHT
        )
        await desktop.place_window(editor, *spots[0], *EDITOR_SIZE)
        for show, (x, y) in zip(shows, spots[1:], strict=True):
            await desktop.place_window(show, x, y)

    async def saved(self, desktop: StageableDesktop) -> str:
        return (await file_text(desktop, self.file) or "").strip()


def copy_code(seed: int) -> Task:
    """Click the editor, type the code that a window shows, save."""
    scenario = CodeCopyScenario(seed)

    async def check(desktop: StageableDesktop) -> CheckResult:
        return judged(
            clause(f"the text of {scenario.file}", await scenario.saved(desktop), scenario.codes[scenario.target])
        )

    def end_states() -> ExampleEndStates:
        right = {scenario.file: f"{scenario.codes[scenario.target]}\n".encode()}
        other = next(code for color, code in scenario.codes.items() if color != scenario.target)
        every = "\n".join(scenario.codes.values())
        return nearly(
            right,
            scenario.file,
            the_code_of_another_window={scenario.file: other.encode()},
            all_the_codes={scenario.file: every.encode()},
        )

    async def written(desktop: StageableDesktop) -> CheckResult:
        return CheckResult(float(await scenario.saved(desktop) != ""), f"{scenario.file} is not empty")

    async def some_code(desktop: StageableDesktop) -> CheckResult:
        return CheckResult(
            float(await scenario.saved(desktop) in scenario.codes.values()), f"{scenario.file} holds one of the codes"
        )

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        (editor,) = await desktop.wait_window("l3afpad")
        yield [click_in(body(editor))]
        yield [Type(scenario.codes[scenario.target])]
        yield [Key(("ctrl", "s"))]

        async def written() -> bool:
            return await scenario.saved(desktop) != ""

        await wait_until(written)
        yield [Done()]

    async def targets(desktop: StageableDesktop) -> tuple[Rect | None, list[Rect]]:
        (editor,) = await desktop.wait_window("l3afpad")
        box = body(editor)
        text = Rect(box.left, box.top + editor.height // 4, box.right, box.bottom)
        return text, [body(window) for window in await desktop.windows() if window.title in scenario.colors]

    return Task(
        id=f"basics/code_copy/{seed}",
        family="code_copy",
        suite="basics",
        seed=seed,
        instruction=f"Type the code of the {scenario.target} window into {scenario.file} and save it",
        width=WIDTH,
        height=HEIGHT,
        max_steps=6,
        setup=scenario.setup,
        check=check,
        oracle=oracle,
        first_click_targets=targets,
        theme=scenario.theme,
        milestones=(
            Milestone("something was saved", 0.1, written),
            Milestone("one of the codes was saved", 0.2, some_code),
        ),
        difficulty="medium",
        shuffle_windows=scenario.shuffle_windows,
        example_end_states=end_states,
        metadata={"colours": scenario.colors, "target": scenario.target},
    )


FAMILIES = (
    Family("code_copy", ("l3afpad", "xterm"), "medium", copy_code, "read a code in one window and type it in another"),
)
