"""An agent is stuck when its actions leave the screen as it was: waiting, a spinner and a caret are no evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import fake_desktop
import numpy as np
import pytest

from deskhand.actions.ops import Done, Key, Op, Screenshot, Wait
from deskhand.desktop.base import Frame
from deskhand.integrations.openadapt.rl_environment import RLEnvironment
from deskhand.integrations.openadapt.stuck import StuckDetector

ACT: list[Op] = [Key(("shift",))]
CARET = (8, 8, 10, 16)


def frame(*boxes: tuple[int, int, int, int], moving: Sequence[tuple[int, int, int, int]] = ()) -> Frame:
    """A gray screen in which these boxes are white."""
    pixels = np.full((48, 64, 4), 128, dtype=np.uint8)
    for left, top, right, bottom in boxes:
        pixels[top:bottom, left:right] = 255
    return Frame(pixels, 1, str(hash(pixels.tobytes())), 1.0, "quiet", None, (0, 0), tuple(moving))


def counts(first: Frame, *steps: tuple[list[Op], Frame]) -> list[int]:
    detector = StuckDetector(first)
    return [detector.after_step(ops, after) for ops, after in steps]


@pytest.mark.parametrize("ops", [[Wait(1.0)], [Screenshot()], [Wait(1.0), Screenshot()]])
def test_a_step_that_only_waits_neither_counts_nor_resets(ops: list[Op]) -> None:
    assert counts(frame(), (ops, frame()), (ops, frame()), (ops, frame())) == [0, 0, 0]
    assert counts(frame(), (ACT, frame()), (ops, frame()), (ACT, frame())) == [1, 1, 2]


def test_a_step_that_waits_after_an_action_counts() -> None:
    assert counts(frame(), ([*ACT, Wait(1.0)], frame())) == [1]


def test_an_effect_resets_the_count_even_while_waiting() -> None:
    opened = frame((20, 20, 40, 40))
    assert counts(frame(), (ACT, frame()), (ACT, opened), (ACT, opened)) == [1, 0, 1]
    assert counts(frame(), (ACT, frame()), ([Wait(1.0)], opened), (ACT, opened)) == [1, 0, 1]


def test_what_moves_by_itself_does_not_reset_the_count() -> None:
    """A clock: every frame is new; the frame says where it is."""
    clock = (50, 2, 62, 10)
    ticks = [frame((50 + tick, 2, 51 + tick, 10), moving=[clock]) for tick in range(6)]
    assert counts(frame(), *((ACT, tick) for tick in ticks)) == [1, 2, 3, 4, 5, 6]
    beside = frame((20, 20, 40, 40), moving=[clock])
    assert counts(frame(), (ACT, ticks[0]), (ACT, beside), (ACT, beside)) == [1, 0, 1]


def test_a_frame_that_does_not_name_the_clock_again_does_not_reset_the_count() -> None:
    clock = (50, 2, 62, 10)
    named, unnamed = frame((50, 2, 51, 10), moving=[clock]), frame((51, 2, 52, 10))
    assert counts(frame(), (ACT, named), (ACT, unnamed), (ACT, unnamed)) == [1, 2, 3]


def test_a_caret_that_no_frame_names_does_not_reset_the_count() -> None:
    off, on = frame(), frame(CARET)
    assert counts(off, (ACT, on), (ACT, off), (ACT, off), (ACT, on)) == [0, 1, 2, 3]


def test_going_through_pages_and_back_is_not_stuck() -> None:
    pages = [frame((number, 20, number + 1, 40)) for number in range(5)]
    seen = [*pages[1:], *pages[-2::-1]]
    assert max(counts(pages[0], *((ACT, page) for page in seen))) <= 1


def test_screens_of_other_sizes_differ() -> None:
    other = replace(frame(moving=[CARET]), bgrx=np.zeros((10, 10, 4), np.uint8), content_hash="other")
    assert counts(frame(), (ACT, other)) == [0]


class TickingDesktop(fake_desktop.PaintedDesktop):
    """A clock in the corner shows another time at every look."""

    async def observe(self) -> Frame:
        seen = await super().observe()
        pixels = seen.bgrx.copy()
        pixels[:4, :4] = self._sequence % 250
        return replace(seen, bgrx=pixels, content_hash=str(self._sequence), moving=((0, 0, 4, 4),))


def rollout(op: Op) -> tuple[int, str]:
    with RLEnvironment(lambda name: fake_desktop.square_task(3), "x", desktop=TickingDesktop) as env:
        steps = env.collect_rollout(lambda seen: op, max_steps=4, stuck_window=2)
    return len(steps), steps[-1].info["stopped"]


def test_rollouts_end_when_the_agent_is_stuck_and_not_while_it_waits() -> None:
    assert rollout(Key(("shift",))) == (2, "stuck")
    assert rollout(Wait(0.01)) == (4, "max_steps")
    assert rollout(Done()) == (1, "done")
