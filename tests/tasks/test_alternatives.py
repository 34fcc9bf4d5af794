"""Honest ways to do the families of `basics` and `web`, other than the oracle's, are paid.

`DESKHAND_TEST_FULL=1` plays all of them, as `python -m benchmarks.alternatives --full` does.
"""

from __future__ import annotations

import pytest
from desktops import desktop_for
from full import FULL

from benchmarks.alternatives import FAMILIES, WANTED, play
from benchmarks.ways import WAYS
from deskhand.actions.ops import Key, Wait
from deskhand.desktop.applications.install import missing
from deskhand.tasks.suites.basics import calculator
from deskhand.tasks.task import seed_for

SEED = seed_for("test", 0)
SPREAD = (
    ("calculator_sum", "by the keyboard"),
    ("calculator_sum", "by the mouse, with a menu left open"),
    ("file_move", "dragged"),
    ("file_delete", "the context menu"),
    ("form_fill", "by the keyboard"),
    ("editor_append", "saved by the File menu"),
    ("web/calendar/move", "by the keyboard"),
)
EVERY = [(name, way) for name, ways in WAYS.items() for way in ways(FAMILIES[name].generate(SEED))]


def test_every_family_has_enough_ways_for_every_seed() -> None:
    assert set(WAYS) == set(FAMILIES)
    for name, ways in WAYS.items():
        for index in range(20):
            assert len(ways(FAMILIES[name].generate(seed_for("train", index)))) >= WANTED, name
    assert set(SPREAD) <= set(EVERY)


@pytest.mark.parametrize(("name", "way"), EVERY if FULL else SPREAD)
async def test_an_honest_way_is_paid(name: str, way: str) -> None:
    if lacking := missing(list(FAMILIES[name].applications)):
        pytest.skip(f"not installed: {' '.join(lacking)} (deskhand desktop install all)")
    score, note = await play(FAMILIES[name].generate(SEED), way)
    assert score == 1.0, note


async def test_reading_the_calculator_needs_no_focus_and_changes_nothing_on_its_display() -> None:
    task = FAMILIES["calculator_number"].generate(SEED)
    number = task.metadata["number"]
    async with desktop_for(task) as desktop:
        await task.setup(desktop)
        await desktop.launch(["xterm", "-geometry", "8x2+0+0"])
        (other,) = await desktop.wait_window("xterm")
        (window,) = await desktop.wait_window("galculator")
        await desktop.activate_window(window)
        await desktop.observe()
        for digit in number:
            await desktop.perform([Key((digit,))], action_id=f"digit {digit}")
        for index, keys in enumerate((None, ("alt", "h"), ("alt", "f"))):
            await desktop.activate_window(window if keys else other)
            await desktop.observe()
            if keys:
                await desktop.perform([Key(keys)], action_id=f"menu {index}")
            assert [await calculator.display_value(desktop) for _ in range(2)] == [number] * 2
        for keys in (("ctrl", "c"), ("7",), ("alt", "h")):  # what was copied before is not what the display has
            await desktop.perform([Key(keys), Wait(0.5)], action_id="+".join(keys))
        assert await calculator.display_value(desktop) == f"{number}7"
