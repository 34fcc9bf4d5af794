"""Click targets compared with what a click does, and partial scores of numbers."""

from __future__ import annotations

import asyncio

import pytest
from patience import limit

from deskhand.actions.ops import Click, Point, screen_px
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.tasks.suites.basics import calculator, make_task
from deskhand.tasks.suites.basics.layout import close_button


async def closes(dx: int, dy: int, *, from_end: bool) -> bool:
    """Whether a click so far from the first (or the last) pixel of a terminal's close button closes the terminal."""
    task, desktop = make_task("terminal_close", 0), LocalDesktop()
    try:
        await desktop.reset(DesktopSpec(task.theme, task.width, task.height))
        await task.setup(desktop)
        window = (await desktop.windows())[0]
        box = close_button(window)
        x, y = (box.right - 1, box.bottom - 1) if from_end else (box.left, box.top)
        await desktop.perform([Click(Point(x + dx, y + dy, screen_px(task.width, task.height)))], action_id="click")
        for _ in range(round(limit(20))):
            if window.title not in {other.title for other in await desktop.windows()}:
                return True
            await asyncio.sleep(0.02)
        return False
    finally:
        await desktop.close()


@pytest.mark.parametrize("from_end", [False, True])
async def test_the_first_and_the_last_pixel_of_the_close_button_close(from_end: bool) -> None:
    assert await closes(0, 0, from_end=from_end)


@pytest.mark.parametrize(("dx", "dy", "from_end"), [(-1, 4, False), (4, -1, False), (1, -4, True), (-4, 1, True)])
async def test_a_pixel_beyond_the_close_button_does_not_close(dx: int, dy: int, from_end: bool) -> None:
    assert not await closes(dx, dy, from_end=from_end)


@pytest.mark.parametrize(
    ("shown", "worth"),
    [
        ("47", 1.0),
        ("42", 0.5),
        ("37", 0.5),
        ("74", 0.0),
        ("", 0.0),
        ("0", 0.0),
        ("4", 0.0),
        ("7", 0.0),
        ("147", 0.0),
        ("4x", 0.0),
    ],
)
def test_a_number_is_worth_its_digits_in_place(shown: str, worth: float) -> None:
    assert calculator.display_score(shown, "47") == worth
