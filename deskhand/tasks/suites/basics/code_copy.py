"""A code to read in one window and to type in another. Invariant: only the saved file is judged; the codes are in no file."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

from deskhand.actions.ops import Done, Key, Op, Type
from deskhand.tasks.suites.basics.clauses import clause, judged, nearly
from deskhand.tasks.suites.basics.layout import file_text, scatter
from deskhand.tasks.suites.basics.screen_search import HEIGHT, THEMES, WIDTH, body, click_in, wait_until
from deskhand.tasks.suites.basics.terminals import COLOURS, DARK_TEXT
from deskhand.tasks.task import CheckResult, ExampleEndStates, Family, Milestone, Rect, StagedDesktopLike, Task

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
        self.colours = rng.sample(sorted(COLOURS), rng.choice([2, 3]))
        self.target = rng.choice(self.colours)
        self.codes = {colour: "".join(rng.choices(SYMBOLS, k=rng.choice([4, 5]))) for colour in self.colours}
        self.file = f"{rng.choice(FILES)}.txt"
        self.place_seed = rng.randrange(2**31)
        self.theme = rng.choice(THEMES)

    async def setup(self, desktop: StagedDesktopLike) -> None:
        await desktop.push(self.file, b"")
        await desktop.launch(["l3afpad", self.file])
        await desktop.wait_window("l3afpad")
        for colour, code in self.codes.items():
            look = ["-bg", COLOURS[colour], "-fg", "#000000" if colour in DARK_TEXT else "#ffffff"]
            look += ["-fa", "DejaVu Sans Mono", "-fs", "12", "-b", "0", "+sb", "-geometry", "10x3", "-title", colour]
            await desktop.launch(["xterm", *look, "-e", "sh", "-c", SHOW, "sh", code])
            await desktop.wait_window(colour)  # one after the other, or chance would place them
        await self.shuffle_windows(desktop, self.place_seed)
        await desktop.observe()

    async def shuffle_windows(self, desktop: StagedDesktopLike, seed: int) -> None:
        (editor,) = await desktop.wait_window("l3afpad")
        shows = await desktop.wait_window("xterm", count=len(self.colours))
        spots = scatter(
            random.Random(seed), [EDITOR_SIZE, *((show.width, show.height) for show in shows)], WIDTH, HEIGHT
        )
        await desktop.place_window(editor, *spots[0], *EDITOR_SIZE)
        for show, (x, y) in zip(shows, spots[1:], strict=True):
            await desktop.place_window(show, x, y)

    async def saved(self, desktop: StagedDesktopLike) -> str:
        return (await file_text(desktop, self.file) or "").strip()


def copy_code(seed: int) -> Task:
    """Click the editor, type the code that a window shows, save."""
    scene = CodeCopyScenario(seed)

    async def check(desktop: StagedDesktopLike) -> CheckResult:
        return judged(clause(f"the text of {scene.file}", await scene.saved(desktop), scene.codes[scene.target]))

    def end_states() -> ExampleEndStates:
        right = {scene.file: f"{scene.codes[scene.target]}\n".encode()}
        other = next(code for colour, code in scene.codes.items() if colour != scene.target)
        every = "\n".join(scene.codes.values())
        return nearly(
            right,
            scene.file,
            the_code_of_another_window={scene.file: other.encode()},
            all_the_codes={scene.file: every.encode()},
        )

    async def written(desktop: StagedDesktopLike) -> CheckResult:
        return CheckResult(float(await scene.saved(desktop) != ""), f"{scene.file} is not empty")

    async def some_code(desktop: StagedDesktopLike) -> CheckResult:
        return CheckResult(
            float(await scene.saved(desktop) in scene.codes.values()), f"{scene.file} holds one of the codes"
        )

    async def oracle(desktop: StagedDesktopLike) -> AsyncIterator[list[Op]]:
        (editor,) = await desktop.wait_window("l3afpad")
        yield [click_in(body(editor))]
        yield [Type(scene.codes[scene.target])]
        yield [Key(("ctrl", "s"))]

        async def written() -> bool:
            return await scene.saved(desktop) != ""

        await wait_until(written)
        yield [Done()]

    async def targets(desktop: StagedDesktopLike) -> tuple[Rect | None, list[Rect]]:
        (editor,) = await desktop.wait_window("l3afpad")
        box = body(editor)
        text = Rect(box.left, box.top + editor.height // 4, box.right, box.bottom)
        return text, [body(window) for window in await desktop.windows() if window.title in scene.colours]

    return Task(
        id=f"basics/code_copy/{seed}",
        family="code_copy",
        suite="basics",
        seed=seed,
        instruction=f"Type the code of the {scene.target} window into {scene.file} and save it",
        width=WIDTH,
        height=HEIGHT,
        max_steps=6,
        setup=scene.setup,
        check=check,
        oracle=oracle,
        first_click_targets=targets,
        theme=scene.theme,
        milestones=(
            Milestone("something was saved", 0.1, written),
            Milestone("one of the codes was saved", 0.2, some_code),
        ),
        difficulty="medium",
        shuffle_windows=scene.shuffle_windows,
        example_end_states=end_states,
        metadata={"colours": scene.colours, "target": scene.target},
    )


FAMILIES = (
    Family("code_copy", ("l3afpad", "xterm"), "medium", copy_code, "read a code in one window and type it in another"),
)
