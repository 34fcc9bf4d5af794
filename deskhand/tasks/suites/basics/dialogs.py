"""A question dialog with three buttons. Invariant: only the answer that the dialog program wrote is judged.

Zenity shows the dialog at a random place with three words in random order; the chosen word ends in a file.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

from deskhand.actions.ops import Click, Done, Op, Point, screen_px
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.suites.basics.clauses import clause, judged
from deskhand.tasks.suites.basics.gtk_compact import DIALOG_BUTTON_PX, use_compact_look
from deskhand.tasks.suites.basics.layout import file_text, scatter
from deskhand.tasks.task import CheckResult, ExampleEndStates, Family, FileContents, Rect, Task

WIDTH, HEIGHT = 320, 192
LABELS = ("Yes", "No", "Save", "Open", "Later", "Help", "Retry", "Quit")
QUESTIONS = ("Ready?", "What now?", "Go on?", "And then?", "Your choice?")
BUTTON_HEIGHT_PX, BUTTON_GAP_PX, EDGE_PX = 17, 4, 8


class DialogScenario:
    """Which buttons there are and where; a pure function of the seed."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"dialog_choice:{seed}")
        self.labels = rng.sample(LABELS, 3)
        self.target = rng.choice(self.labels)
        self.question = rng.choice(QUESTIONS)
        self.place_seed = rng.randrange(2**31)

    async def setup(self, desktop: StageableDesktop) -> None:
        await use_compact_look(desktop)
        extra, cancel, ok = self.labels
        words = ["--question", "--no-wrap", "--icon-name=", "--title=Question", f"--text={self.question}"]
        buttons = [f"--extra-button={extra}", f"--cancel-label={cancel}", f"--ok-label={ok}"]
        script = 'zenity "$@" > extra.txt; echo $? > status.txt'
        await desktop.launch(["sh", "-c", script, "sh", *words, *buttons])
        await desktop.wait_window("zenity")
        await self.shuffle_windows(desktop, self.place_seed)

    async def shuffle_windows(self, desktop: StageableDesktop, seed: int) -> None:
        (window,) = await desktop.wait_window("zenity")
        ((x, y),) = scatter(random.Random(seed), [(window.width, window.height)], WIDTH, HEIGHT)
        await desktop.place_window(window, x, y)

    async def buttons(self, desktop: StageableDesktop) -> dict[str, Rect]:
        """The three buttons by label: equally wide, at the right end of the bottom row, in the order of `labels`."""
        (window,) = await desktop.wait_window("zenity")
        bottom = window.y + window.height - EDGE_PX
        boxes: dict[str, Rect] = {}
        for place, label in enumerate(reversed(self.labels)):
            right = window.x + window.width - EDGE_PX - place * (DIALOG_BUTTON_PX + BUTTON_GAP_PX)
            boxes[label] = Rect(right - DIALOG_BUTTON_PX, bottom - BUTTON_HEIGHT_PX, right, bottom)
        return boxes


def choose(seed: int) -> Task:
    """Press the button with one word on it."""
    scenario = DialogScenario(seed)

    async def check(desktop: StageableDesktop) -> CheckResult:
        status = (await file_text(desktop, "status.txt") or "").strip()
        said = (await file_text(desktop, "extra.txt") or "").strip()
        extra, cancel, ok = scenario.labels
        answer = ok if status == "0" else (extra if said == extra else cancel) if status == "1" else None
        return judged(clause("the answer that was given", answer, scenario.target))

    def end_states() -> ExampleEndStates:
        extra, cancel, ok = scenario.labels
        files: dict[str, FileContents] = {
            extra: {"extra.txt": f"{extra}\n".encode(), "status.txt": b"1\n"},
            cancel: {"extra.txt": b"", "status.txt": b"1\n"},
            ok: {"extra.txt": b"", "status.txt": b"0\n"},
        }
        near: dict[str, FileContents] = {
            f"the answer {label}": files[label] for label in scenario.labels if label != scenario.target
        }
        near["no answer but the word"] = {"extra.txt": f"{scenario.target}\n".encode()}
        return ExampleEndStates(near, files[scenario.target])

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        box = (await scenario.buttons(desktop))[scenario.target]
        yield [Click(Point(*box.center, screen_px(WIDTH, HEIGHT)))]
        yield [Done()]

    async def targets(desktop: StageableDesktop) -> tuple[Rect | None, list[Rect]]:
        boxes = await scenario.buttons(desktop)
        return boxes[scenario.target], [box for label, box in boxes.items() if label != scenario.target]

    async def grounding_targets(desktop: StageableDesktop) -> list[tuple[str, Rect]]:
        return [(instruction(label), box) for label, box in (await scenario.buttons(desktop)).items()]

    return Task(
        id=f"basics/dialog_choice/{seed}",
        family="dialog_choice",
        suite="basics",
        seed=seed,
        instruction=instruction(scenario.target),
        width=WIDTH,
        height=HEIGHT,
        max_steps=3,
        setup=scenario.setup,
        check=check,
        oracle=oracle,
        first_click_targets=targets,
        grounding_targets=grounding_targets,
        shuffle_windows=scenario.shuffle_windows,
        example_end_states=end_states,
        metadata={"labels": scenario.labels, "target": scenario.target},
    )


def instruction(label: str) -> str:
    return f"Press {label} in the dialog"


FAMILIES = (Family("dialog_choice", ("zenity",), "easy", choose, "press the button with one word on it"),)
