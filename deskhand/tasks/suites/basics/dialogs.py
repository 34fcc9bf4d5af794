"""Family `dialog_choice`: a zenity question with three buttons in random order; the answer ends up in a file."""

from __future__ import annotations

from collections.abc import AsyncIterator

from deskhand.actions.ops import Click, Done, Op, Point, screen_px
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.guest_files import read_text
from deskhand.tasks.setup_facts import exit_code, note
from deskhand.tasks.suites.basics.layout import DIALOG_BUTTON_PX, use_compact_theme
from deskhand.tasks.suites.basics.scenario import (
    SingleWindowScenario,
    clause,
    combine_clauses,
    forged_files,
    scenario_family,
)
from deskhand.tasks.task import CheckResult, ExampleEndStates, FileContents, Rect, Task

LABELS = ("Yes", "No", "Save", "Open", "Later", "Help", "Retry", "Quit")
QUESTIONS = ("Ready?", "What now?", "Go on?", "And then?", "Your choice?")
BUTTON_HEIGHT_PX, BUTTON_GAP_PX, EDGE_PX = 17, 4, 8
PROGRAM = "dialog"
"""Noted by set-up: the dialog's program id."""
SCRIPT = 'zenity "$@" > "$0"; code=$?; echo $code > status.txt; exit $code'
"""Writes what a dialog prints to the file `$0`, and its exit code to another file; the host sees the exit code, too."""

OK_CODE, CANCEL_CODE, OTHER_CODE = 0, 10, 11
"""Exit codes of the answers; the extra button's is that of a closed dialog, and it prints its label. A program whose
connection to the X server breaks exits with 1.
"""
CODES = {"ZENITY_OK": f"{OK_CODE}", "ZENITY_CANCEL": f"{CANCEL_CODE}", "ZENITY_ESC": f"{OTHER_CODE}"}


class DialogScenario(SingleWindowScenario):
    """A question with three buttons."""

    applications = ("zenity",)
    width, height = 320, 192
    settle_grace_s = 0.5
    window_class = "zenity"

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        self.labels = self.rng.sample(LABELS, 3)
        self.target = self.rng.choice(self.labels)
        self.question = self.rng.choice(QUESTIONS)
        self.place_seed = self.rng.randrange(2**31)

    async def setup(self, desktop: StageableDesktop) -> None:
        await use_compact_theme(desktop)
        extra, cancel, ok = self.labels
        options = ["--question", "--no-wrap", "--icon-name=", "--title=Question", f"--text={self.question}"]
        buttons = [f"--extra-button={extra}", f"--cancel-label={cancel}", f"--ok-label={ok}"]
        note(desktop, PROGRAM, await desktop.launch(["sh", "-c", SCRIPT, "extra.txt", *options, *buttons], env=CODES))
        await desktop.wait_window("zenity")
        await self.shuffle_windows(desktop, self.place_seed)

    async def boxes(self, desktop: StageableDesktop) -> dict[str, Rect]:
        """Return the buttons by label: of equal width, right-aligned in the bottom row, in the order of `labels`."""
        (window,) = await desktop.wait_window("zenity")
        bottom = window.y + window.height - EDGE_PX
        boxes: dict[str, Rect] = {}
        for index, label in enumerate(reversed(self.labels)):
            right = window.x + window.width - EDGE_PX - index * (DIALOG_BUTTON_PX + BUTTON_GAP_PX)
            boxes[label] = Rect(right - DIALOG_BUTTON_PX, bottom - BUTTON_HEIGHT_PX, right, bottom)
        return boxes


@scenario_family(
    DialogScenario,
    "dialog_choice",
    "easy",
    "press the named button of a dialog",
    abilities=("use menus and dialogs",),
)
def choose(scenario: DialogScenario) -> Task:
    extra, cancel, ok = scenario.labels
    codes = {extra: OTHER_CODE, cancel: CANCEL_CODE, ok: OK_CODE}

    async def check(desktop: StageableDesktop) -> CheckResult:
        status = (await read_text(desktop, "status.txt") or "").strip()
        printed = (await read_text(desktop, "extra.txt") or "").strip()
        answers = {f"{OK_CODE}": ok, f"{CANCEL_CODE}": cancel, f"{OTHER_CODE}": extra if printed == extra else None}
        is_seen, code = await exit_code(desktop, PROGRAM)
        return combine_clauses(
            clause("the answer", answers.get(status), scenario.target),
            *([clause("the dialog's exit code", code, codes[scenario.target])] if is_seen else []),
            untrusted_source=not is_seen,
        )

    def end_states() -> ExampleEndStates:
        files: dict[str, FileContents] = {
            label: {"extra.txt": f"{extra}\n".encode() if label == extra else b"", "status.txt": f"{code}\n".encode()}
            for label, code in codes.items()
        }
        negatives = {f"the answer {label}": files[label] for label in scenario.labels if label != scenario.target}
        negatives["it was closed"] = {"extra.txt": b"", "status.txt": f"{OTHER_CODE}\n".encode()}
        negatives["no answer but the word"] = {"extra.txt": f"{scenario.target}\n".encode()}
        return ExampleEndStates(negatives, files[scenario.target])

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        box = (await scenario.boxes(desktop))[scenario.target]
        yield [Click(Point(*box.center, screen_px(scenario.width, scenario.height)))]
        yield [Done()]

    async def grounding_targets(desktop: StageableDesktop) -> list[tuple[str, Rect]]:
        return [(instruction(label), box) for label, box in (await scenario.boxes(desktop)).items()]

    return scenario.build_task(
        instruction(scenario.target),
        max_steps=3,
        check=check,
        oracle=oracle,
        grounding_targets=grounding_targets,
        example_end_states=end_states,
        forged_files=forged_files(end_states),
        metadata={"labels": scenario.labels, "target": scenario.target},
    )


def instruction(label: str) -> str:
    return f"Press {label} in the dialog"
