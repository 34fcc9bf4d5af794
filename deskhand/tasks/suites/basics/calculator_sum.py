"""Sums on a desktop calculator. Invariant: the calculator's own display value is judged, as it copies it (guest-trusted)."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

from deskhand.actions.ops import Click, Done, Op, Point, screen_px
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.suites.basics.calculator import (
    COLUMN_PITCH_PX,
    HEIGHT,
    KEY_HEIGHT_PX,
    KEY_WIDTH_PX,
    ROW_PITCH_PX,
    WIDTH,
    display_value,
    key_box,
    place_calculator,
    setup_calculator,
)
from deskhand.tasks.suites.basics.clauses import clause, judged
from deskhand.tasks.suites.basics.screen_search import THEMES
from deskhand.tasks.task import CheckResult, Family, Rect, Task

OPERATORS = ("*", "-", "+")
"""From the row of 4, 5, 6 downwards, right of the digits."""


def all_key_boxes(window_x: int, window_y: int) -> dict[str, Rect]:
    """Digits, operators and "=" in screen pixels, for a calculator whose client area starts at (window_x, window_y)."""
    boxes = {str(digit): key_box(window_x, window_y, digit) for digit in range(10)}
    six = boxes["6"]
    for row, sign in enumerate(OPERATORS):
        left, top = six.left + COLUMN_PITCH_PX, six.top + row * ROW_PITCH_PX
        boxes[sign] = Rect(left, top, left + KEY_WIDTH_PX, top + KEY_HEIGHT_PX)
    left = six.left + 2 * COLUMN_PITCH_PX
    boxes["="] = Rect(left, boxes["-"].top, left + KEY_WIDTH_PX, boxes["+"].bottom)
    return boxes


def sum_of(rng: random.Random) -> tuple[str, int]:
    """Keys to press and the result, which is 10 to 999 and neither of the operands."""
    while True:
        sign = rng.choice(OPERATORS)
        first, second = rng.randint(2, 99), rng.randint(2, 99 if sign != "*" else 9)
        result = {"+": first + second, "-": first - second, "*": first * second}[sign]
        if 10 <= result <= 999 and result not in (first, second):
            return f"{first}{sign}{second}=", result


def enter_sum(seed: int) -> Task:
    """Work out a sum by the calculator's keys and leave the result in its display."""
    rng = random.Random(f"calculator_sum:{seed}")
    keys, result = sum_of(rng)
    place_seed, theme = rng.randrange(2**31), rng.choice(THEMES)

    async def setup(desktop: StageableDesktop) -> None:
        await setup_calculator(desktop, place_seed)

    async def boxes(desktop: StageableDesktop) -> dict[str, Rect]:
        (window,) = await desktop.wait_window("galculator")
        return all_key_boxes(window.x, window.y)

    async def check(desktop: StageableDesktop) -> CheckResult:
        shown = await display_value(desktop)
        return judged(clause("the display", shown, str(result)), guest_trusted=True)

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        places = await boxes(desktop)
        for key in keys:
            yield [Click(Point(*places[key].center, screen_px(WIDTH, HEIGHT)))]
        yield [Done()]

    async def targets(desktop: StageableDesktop) -> tuple[Rect | None, list[Rect]]:
        places = await boxes(desktop)
        return places[keys[0]], [box for key, box in places.items() if key != keys[0]]

    return Task(
        id=f"basics/calculator_sum/{seed}",
        family="calculator_sum",
        suite="basics",
        seed=seed,
        instruction=f"Work out {keys.rstrip('=')} on the calculator",
        width=WIDTH,
        height=HEIGHT,
        max_steps=len(keys) + 3,
        setup=setup,
        check=check,
        oracle=oracle,
        first_click_targets=targets,
        theme=theme,
        difficulty="medium",
        shuffle_windows=place_calculator,
        metadata={"keys": keys, "result": result},
    )


FAMILIES = (Family("calculator_sum", ("galculator",), "medium", enter_sum, "work out a sum by the calculator's keys"),)
