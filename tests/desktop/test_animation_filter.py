"""Animation filter: carets, clocks and spinners, but no responses to actions."""

from __future__ import annotations

import numpy as np

from deskhand.desktop.local.animation_filter import FORGET_AFTER_S, MIN_CHANGES, TILE, AnimationFilter

WIDTH, HEIGHT = 640, 400


def change(left: int, top: int, right: int, bottom: int) -> np.ndarray:
    different = np.zeros((HEIGHT, WIDTH), bool)
    different[top:bottom, left:right] = True
    return different


def changes(motion: AnimationFilter, boxes, every_s: float) -> list[bool]:
    """Whether each change was explained."""
    answers = []
    for box in boxes:
        motion.advance(every_s)
        answers.append(motion.is_animation(change(*box)))
    return answers


CARET = (100, 50, 102, 66)
CLOCK = (500, 380, 560, 396)


def test_a_caret_is_recognized_after_some_changes():
    motion = AnimationFilter(WIDTH, HEIGHT)
    assert changes(motion, [CARET] * 10, 0.1) == [False] * 4 + [True] * 6
    motion.start_settle(timed_out=False)
    assert changes(motion, [CARET], 0.1) == [True]
    assert motion.boxes() == ((96, 48, 112, 80),)


def test_two_animations_are_both_recognized():
    motion = AnimationFilter(WIDTH, HEIGHT)
    changes(motion, [CARET, CLOCK] * 6, 0.06)
    assert motion.is_animation(change(*CARET) | change(*CLOCK))
    assert len(motion.boxes()) == 2
    assert not motion.is_animation(change(*CARET) | change(300, 200, 301, 201))


def test_progress_bars_and_printed_text_are_not_animations():
    motion = AnimationFilter(WIDTH, HEIGHT)
    bar = [(100, 200, 100 + 12 * step, 210) for step in range(1, 40)]
    assert not any(changes(motion, [(right - 12, top, right, bottom) for _, top, right, bottom in bar], 0.1))
    lines = [(10, 13 * row, 90, 13 * row + 26) for row in range(1, 25)]
    assert not any(changes(motion, lines, 0.1))


def test_large_changes_are_not_animations():
    motion = AnimationFilter(WIDTH, HEIGHT)
    assert not any(changes(motion, [(100, 100, 300, 250)] * 30, 0.04))
    assert motion.boxes() == ()


def test_responses_to_repeated_actions_are_not_animations():
    motion = AnimationFilter(WIDTH, HEIGHT)
    for _ in range(20):
        motion.start_settle(timed_out=False)
        assert changes(motion, [CARET] * (MIN_CHANGES - 1), 0.2) == [False] * (MIN_CHANGES - 1)


def test_a_slow_clock_delays_only_the_first_settle():
    motion = AnimationFilter(WIDTH, HEIGHT)
    answers = []
    for _ in range(4):
        motion.start_settle(timed_out=True)
        answers += changes(motion, [CLOCK] * 2, 1.0)
    assert answers == [False] * 3 + [True] * 5


def test_input_and_stillness_clear_the_history():
    motion = AnimationFilter(WIDTH, HEIGHT)
    changes(motion, [CARET, CLOCK] * 10, 0.05)
    motion.reset_at(CARET[0] + TILE, CARET[1])
    assert motion.boxes() == ((496, 368, 560, 400),)
    assert changes(motion, [CARET], 0.1) == [False]
    motion.advance(FORGET_AFTER_S + 0.1)
    assert motion.boxes() == ()
    assert changes(motion, [CLOCK], 0.1) == [False]
