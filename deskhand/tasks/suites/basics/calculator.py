"""Numbers on a desktop calculator. Invariant: the calculator's own display value is judged, as it copies it (guest-trusted).

Reading it takes a key stroke, so the digits in place are worth something at the end and are no milestones on the way.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator

from deskhand.actions.ops import Click, Done, Key, Op, Point, screen_px
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.outcome import Finding
from deskhand.tasks.suites.basics.gtk_compact import use_compact_look
from deskhand.tasks.suites.basics.layout import scatter
from deskhand.tasks.task import CheckResult, Family, Rect, Task

WIDTH, HEIGHT = 320, 256
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


def key_box(window_x: int, window_y: int, digit: int) -> Rect:
    """The key of a digit, in screen pixels, for a calculator whose client area starts at (window_x, window_y)."""
    column, row = ((digit - 1) % 3, 2 - (digit - 1) // 3) if digit else (0, 3)
    left = window_x + COLUMN_LEFT_PX + column * COLUMN_PITCH_PX
    top = window_y + DIGIT_ROW_TOP_PX + row * ROW_PITCH_PX
    return Rect(left, top, left + KEY_WIDTH_PX, top + KEY_HEIGHT_PX)


async def setup_calculator(desktop: StageableDesktop, place_seed: int) -> None:
    """Start the calculator with small keys at a random place."""
    await use_compact_look(desktop)
    await desktop.push(".config/galculator/galculator.conf", CONFIGURATION.encode())
    await desktop.launch(["galculator"])
    await place_calculator(desktop, place_seed)


async def place_calculator(desktop: StageableDesktop, seed: int) -> None:
    (window,) = await desktop.wait_window("galculator")
    ((x, y),) = scatter(random.Random(seed), [(window.width, window.height)], WIDTH, HEIGHT)
    await desktop.place_window(window, x, y)


async def display_value(desktop: StageableDesktop) -> str:
    """What the display holds, as the program's own copy command gives it."""
    await desktop.perform([Key(("ctrl", "c"))], action_id=f"judge-copy-{uuid.uuid4()}")
    return (await desktop.clipboard() or "").strip()


def enter_number(seed: int) -> Task:
    """Enter a number of two different digits by its keys."""
    rng = random.Random(f"calculator_number:{seed}")
    first, second = rng.sample(range(1, 10), 2)
    place_seed = rng.randrange(2**31)
    number = f"{first}{second}"

    async def setup(desktop: StageableDesktop) -> None:
        await setup_calculator(desktop, place_seed)

    async def boxes(desktop: StageableDesktop) -> dict[int, Rect]:
        (window,) = await desktop.wait_window("galculator")
        return {digit: key_box(window.x, window.y, digit) for digit in range(10)}

    async def check(desktop: StageableDesktop) -> CheckResult:
        shown = await display_value(desktop)
        value, told = worth(shown, number), f"the display holds {shown!r}"
        return CheckResult(
            value, told, untrusted_source=True, findings=(Finding("the display", value, repr(shown), repr(number)),)
        )

    async def oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        keys = await boxes(desktop)
        for digit in (first, second):
            yield [Click(Point(*keys[digit].center, screen_px(WIDTH, HEIGHT)))]
        yield [Done()]

    async def targets(desktop: StageableDesktop) -> tuple[Rect | None, list[Rect]]:
        keys = await boxes(desktop)
        return keys[first], [box for digit, box in keys.items() if digit != first]

    async def grounding_targets(desktop: StageableDesktop) -> list[tuple[str, Rect]]:
        keys = await boxes(desktop)
        return [(instruction(a, b), keys[a]) for a in range(1, 10) for b in range(1, 10) if a != b]

    return Task(
        id=f"basics/calculator_number/{seed}",
        family="calculator_number",
        suite="basics",
        seed=seed,
        instruction=instruction(first, second),
        width=WIDTH,
        height=HEIGHT,
        max_steps=4,
        setup=setup,
        check=check,
        oracle=oracle,
        first_click_targets=targets,
        grounding_targets=grounding_targets,
        shuffle_windows=place_calculator,
        metadata={"number": number},
    )


def worth(shown: str, number: str) -> float:
    """1 for the number itself; for another one of as many digits the share of digits in place; 0 for anything else."""
    if len(shown) != len(number) or not shown.isdecimal():
        return 0.0
    return sum(ours == asked for ours, asked in zip(shown, number, strict=True)) / len(number)


def instruction(first: int, second: int) -> str:
    return f"Enter {first} {second} on the calculator"


FAMILIES = (
    Family("calculator_number", ("galculator",), "easy", enter_number, "enter a number by the calculator's keys"),
)
