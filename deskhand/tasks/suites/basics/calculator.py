"""Families `calculator_number` and `calculator_sum`: a desktop calculator on a small screen.

The check copies the display with the program's own command (untrusted). That takes a click and a key stroke, so digits
in place count at the end and are not milestones, and the display is read once: while it is read a second time, a
program of the guest could act.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace

from deskhand.actions.ops import Click, Done, Key, Op, Point, screen_px
from deskhand.desktop.base import HasCopiedText, StageableDesktop, Window
from deskhand.tasks.outcome import Finding
from deskhand.tasks.setup_facts import note, noted
from deskhand.tasks.suites.basics.layout import BORDER_PX, use_compact_theme
from deskhand.tasks.suites.basics.scenario import THEMES, SingleWindowScenario, clause, combine_clauses, scenario_family
from deskhand.tasks.task import CheckResult, Rect, Task

CONFIGURATION = """[general]
display_result_font=DejaVu Sans 10
button_width=26
button_height=17
mode=0
rem_display=false
"""
DIGIT_ROW_TOP_PX, ROW_PITCH_PX = 114, 25
COLUMN_LEFT_PX, COLUMN_PITCH_PX = 8, 44
KEY_WIDTH_PX, KEY_HEIGHT_PX = 36, 17
WINDOW = "window"
"""Noted by set-up: the calculator's window id."""
OPERATORS = ("*", "-", "+")
"""From the row of 4, 5, 6 downwards, right of the digits."""


class CalculatorScenario(SingleWindowScenario):
    """A calculator with small keys."""

    applications = ("galculator",)
    width, height = 320, 256
    settle_grace_s = 0.5
    window_class = "galculator"

    async def setup(self, desktop: StageableDesktop) -> None:
        await use_compact_theme(desktop)
        await desktop.push(".config/galculator/galculator.conf", CONFIGURATION.encode())
        await desktop.launch(["galculator"])
        note(desktop, WINDOW, (await desktop.wait_window("galculator"))[0].id)
        await self.shuffle_windows(desktop, self.place_seed)

    async def boxes(self, desktop: StageableDesktop) -> dict[str, Rect]:
        """Return digits, operators and "=" in screen pixels."""
        (window,) = await desktop.wait_window("galculator")
        return key_boxes(window.x, window.y)

    async def press_keys(self, desktop: StageableDesktop, keys: Iterable[str]) -> AsyncIterator[list[Op]]:
        """Yield the oracle's steps."""
        boxes = await self.boxes(desktop)
        for key in keys:
            yield [Click(Point(*boxes[key].center, screen_px(self.width, self.height)))]
        yield [Done()]


def key_boxes(window_x: int, window_y: int) -> dict[str, Rect]:
    """Return digits, operators and "=" of a calculator whose client area starts at (window_x, window_y)."""
    boxes = {}
    for digit in range(10):
        column, row = ((digit - 1) % 3, 2 - (digit - 1) // 3) if digit else (0, 3)
        left = window_x + COLUMN_LEFT_PX + column * COLUMN_PITCH_PX
        top = window_y + DIGIT_ROW_TOP_PX + row * ROW_PITCH_PX
        boxes[str(digit)] = Rect(left, top, left + KEY_WIDTH_PX, top + KEY_HEIGHT_PX)
    six = boxes["6"]
    for row, sign in enumerate(OPERATORS):
        left, top = six.left + COLUMN_PITCH_PX, six.top + row * ROW_PITCH_PX
        boxes[sign] = Rect(left, top, left + KEY_WIDTH_PX, top + KEY_HEIGHT_PX)
    left = six.left + 2 * COLUMN_PITCH_PX
    boxes["="] = Rect(left, boxes["-"].top, left + KEY_WIDTH_PX, boxes["+"].bottom)
    return boxes


async def display_value(desktop: StageableDesktop) -> str:
    """Return the display as the program's copy command gives it, whatever has the focus.

    Empty without a calculator, or if another program has filled the clipboard.

    Clicks next to the windows close open menus, then dialogs are closed, and the calculator gets the focus. None of
    that changes the display. They are two: GTK ignores the first click within half a second after a menu was opened
    (`gtk_menu_shell_button_release`).
    """
    windows = await desktop.windows()
    calculators = [window for window in windows if CalculatorScenario.window_class in window.wm_class.lower()]
    if not calculators:
        return ""
    if (corner := _free_corner(windows)) is not None:
        for _ in range(2):
            await _perform(desktop, Click(corner))
    for dialog in calculators[1:]:
        await desktop.close_window(dialog)
    await desktop.activate_window(calculators[0])
    await desktop.observe()  # until then a dialog that closes may take keys
    if isinstance(desktop, HasCopiedText):
        return (await desktop.copied_text(noted(desktop, WINDOW)) or "").strip()
    await _perform(desktop, Key(("ctrl", "c")))
    return (await desktop.clipboard() or "").strip()


def _free_corner(windows: list[Window]) -> Point | None:
    """Return a corner of the screen in which there is no window."""
    width, height = CalculatorScenario.width, CalculatorScenario.height
    corners = [(x, y) for x in (0, width - 1) for y in (0, height - 1)]
    frames = [
        Rect(
            window.x - BORDER_PX,
            window.y - window.frame_top,
            window.x + window.width + BORDER_PX,
            window.y + window.height + BORDER_PX,
        )
        for window in windows
    ]
    free = [corner for corner in corners if not any(frame.contains(*corner) for frame in frames)]
    return Point(*free[0], screen_px(width, height)) if free else None


async def _perform(desktop: StageableDesktop, op: Op) -> None:
    await desktop.perform([op], action_id=f"judge-{uuid.uuid4()}")


def number_is_held_out(first: int, second: int) -> bool:
    """Whether the instruction is one of the 9 of 72 of the split `test_instructions`: each digit once in each place."""
    return second == first % 9 + 1


@scenario_family(
    CalculatorScenario,
    "calculator_number",
    "easy",
    "enter a number with the calculator's keys",
    abilities=("use the keyboard",),
    holds_out=lambda task: number_is_held_out(*map(int, task.metadata["number"])),
)
def enter_number(scenario: CalculatorScenario) -> Task:
    first, second = scenario.rng.sample(range(1, 10), 2)
    scenario.place_seed = scenario.rng.randrange(2**31)
    number = f"{first}{second}"

    async def check(desktop: StageableDesktop) -> CheckResult:
        shown = await display_value(desktop)
        value = display_score(shown, number)
        finding = Finding("the display", value, repr(shown), repr(number))
        detail = f"the display has {shown!r}"
        return CheckResult(value, detail, untrusted_source=True, findings=(finding,), no_retry=True)

    async def targets(desktop: StageableDesktop) -> tuple[Rect | None, list[Rect]]:
        digits = {key: box for key, box in (await scenario.boxes(desktop)).items() if key.isdecimal()}
        return digits.pop(str(first)), list(digits.values())

    async def grounding_targets(desktop: StageableDesktop) -> list[tuple[str, Rect]]:
        keys = await scenario.boxes(desktop)
        pairs = itertools.permutations(range(1, 10), 2)
        return [(number_instruction(a, b), keys[str(a)]) for a, b in pairs if not number_is_held_out(a, b)]

    return scenario.build_task(
        number_instruction(first, second),
        max_steps=4,
        check=check,
        oracle=lambda desktop: scenario.press_keys(desktop, number),
        first_click_targets=targets,
        grounding_targets=grounding_targets,
        metadata={"number": number},
    )


def display_score(shown: str, number: str) -> float:
    """Return the share of correct digits; 0 unless the display has as many digits as `number`."""
    if len(shown) != len(number) or not shown.isdecimal():
        return 0.0
    return sum(found == wanted for found, wanted in zip(shown, number, strict=True)) / len(number)


def number_instruction(first: int, second: int) -> str:
    return f"Enter {first} {second} on the calculator"


def random_sum(rng: random.Random) -> tuple[str, int]:
    """Return the keys to press and the result, which is 10 to 999 and neither of the operands."""
    while True:
        sign = rng.choice(OPERATORS)
        first, second = rng.randint(2, 99), rng.randint(2, 99 if sign != "*" else 9)
        result = {"+": first + second, "-": first - second, "*": first * second}[sign]
        if 10 <= result <= 999 and result not in (first, second):
            return f"{first}{sign}{second}=", result


@scenario_family(
    CalculatorScenario,
    "calculator_sum",
    "medium",
    "calculate a sum with the calculator's keys",
    abilities=("use the keyboard",),
)
def enter_sum(scenario: CalculatorScenario) -> Task:
    keys, result = random_sum(scenario.rng)
    scenario.target = keys[0]
    scenario.place_seed, scenario.theme = scenario.rng.randrange(2**31), scenario.rng.choice(THEMES)

    async def check(desktop: StageableDesktop) -> CheckResult:
        shown = await display_value(desktop)
        found = combine_clauses(clause("the display", shown, str(result)), untrusted_source=True)
        return replace(found, no_retry=True)

    return scenario.build_task(
        f"Calculate {keys.rstrip('=')} on the calculator",
        max_steps=len(keys) + 3,
        check=check,
        oracle=lambda desktop: scenario.press_keys(desktop, keys),
        metadata={"keys": keys, "result": result},
    )
