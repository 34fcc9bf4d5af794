"""What is taken for motion of its own."""

from __future__ import annotations

import numpy as np

from deskhand.desktop.local.animation_filter import CHANGES, FORGET_AFTER_S, TILE, AnimationFilter

WIDTH, HEIGHT = 640, 400


def change(left: int, top: int, right: int, bottom: int) -> np.ndarray:
    different = np.zeros((HEIGHT, WIDTH), bool)
    different[top:bottom, left:right] = True
    return different


def changes(motion: AnimationFilter, boxes, every_s: float) -> list[bool]:
    """Whether each change was explained."""
    answers = []
    for box in boxes:
        motion.passed(every_s)
        answers.append(motion.explains(change(*box)))
    return answers


CARET = (100, 50, 102, 66)
CLOCK = (500, 380, 560, 396)


def test_a_caret_is_known_after_some_changes_and_then_stays_known():
    motion = AnimationFilter(WIDTH, HEIGHT)
    assert changes(motion, [CARET] * 10, 0.1) == [False] * 4 + [True] * 6
    motion.begin(held_up=False)
    assert changes(motion, [CARET], 0.1) == [True]
    assert motion.boxes() == ((96, 48, 112, 80),)


def test_two_things_that_move_in_turn_or_at_once_are_both_known():
    motion = AnimationFilter(WIDTH, HEIGHT)
    changes(motion, [CARET, CLOCK] * 6, 0.06)
    assert motion.explains(change(*CARET) | change(*CLOCK))
    assert len(motion.boxes()) == 2
    assert not motion.explains(change(*CARET) | change(300, 200, 301, 201))


def test_a_bar_that_fills_and_text_that_is_printed_are_not_motion():
    motion = AnimationFilter(WIDTH, HEIGHT)
    bar = [(100, 200, 100 + 12 * step, 210) for step in range(1, 40)]
    assert not any(changes(motion, [(right - 12, top, right, bottom) for _, top, right, bottom in bar], 0.1))
    lines = [(10, 13 * row, 90, 13 * row + 26) for row in range(1, 25)]
    assert not any(changes(motion, lines, 0.1))


def test_a_picture_that_changes_as_a_whole_is_not_motion():
    motion = AnimationFilter(WIDTH, HEIGHT)
    assert not any(changes(motion, [(100, 100, 300, 250)] * 30, 0.04))
    assert motion.boxes() == ()


def test_answers_to_one_action_after_the_other_at_one_place_are_not_motion():
    motion = AnimationFilter(WIDTH, HEIGHT)
    for _ in range(20):
        motion.begin(held_up=False)
        assert changes(motion, [CARET] * (CHANGES - 1), 0.2) == [False] * (CHANGES - 1)


def test_a_slow_clock_that_holds_one_settle_up_does_not_hold_up_every_one():
    motion = AnimationFilter(WIDTH, HEIGHT)
    answers = []
    for _ in range(4):
        motion.begin(held_up=True)
        answers += changes(motion, [CLOCK] * 2, 1.0)
    assert answers == [False] * 3 + [True] * 5


def test_where_input_goes_and_what_stands_still_again_are_forgotten():
    motion = AnimationFilter(WIDTH, HEIGHT)
    changes(motion, [CARET, CLOCK] * 10, 0.05)
    motion.forget_at(CARET[0] + TILE, CARET[1])
    assert motion.boxes() == ((496, 368, 560, 400),)
    assert changes(motion, [CARET], 0.1) == [False]
    motion.passed(FORGET_AFTER_S + 0.1)
    assert motion.boxes() == ()
    assert changes(motion, [CLOCK], 0.1) == [False]
