"""Click targets compared with what a click does, and partial scores of numbers."""

from __future__ import annotations

import asyncio

import pytest
from desktops import desktop_for
from patience import limit

from deskhand.actions.ops import Click, Point, screen_px
from deskhand.tasks.suites.basics import calculator, make_task
from deskhand.tasks.suites.basics.layout import close_button
from deskhand.tasks.suites.basics.scenario import Scenario
from deskhand.tasks.task import Rect


async def closes(dx: int, dy: int, *, from_end: bool) -> bool:
    """Whether a click so far from the first (or the last) pixel of a terminal's close button closes the terminal."""
    task = make_task("terminal_close", 0)
    async with desktop_for(task) as desktop:
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


@pytest.mark.parametrize("from_end", [False, True])
async def test_the_first_and_the_last_pixel_of_the_close_button_close(from_end: bool) -> None:
    assert await closes(0, 0, from_end=from_end)


@pytest.mark.parametrize(("dx", "dy", "from_end"), [(-1, 4, False), (4, -1, False), (1, -4, True), (-4, 1, True)])
async def test_a_pixel_beyond_the_close_button_does_not_close(dx: int, dy: int, from_end: bool) -> None:
    assert not await closes(dx, dy, from_end=from_end)


@pytest.mark.parametrize(
    ("shown", "worth"),
    [("47", 1.0), ("42", 0.5), ("37", 0.5), *((shown, 0.0) for shown in ("74", "", "0", "4", "7", "147", "4x"))],
)
def test_the_score_of_a_number_is_the_share_of_correct_digits(shown: str, worth: float) -> None:
    assert calculator.display_score(shown, "47") == worth


async def test_a_first_click_without_its_box_is_an_error():
    class Squares(Scenario):
        async def boxes(self, desktop):
            return {"red": Rect(0, 0, 8, 8)}

    scenario = Squares("squares", 0)
    assert await scenario.first_click_targets(None) == (None, [Rect(0, 0, 8, 8)])
    scenario.target = "red"
    assert await scenario.first_click_targets(None) == (Rect(0, 0, 8, 8), [])
    scenario.target = "blue"
    with pytest.raises(KeyError):
        await scenario.first_click_targets(None)
