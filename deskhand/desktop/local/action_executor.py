"""Carrying out ops. Invariant: all ops of an action are checked before the first is performed; once one was sent, a failure of the
desktop is `DeliveryUnknown`; and every op ends within its budget (`budget_s`), whatever the guests do.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from deskhand.actions.formats.limits import (
    MAX_CLICKS,
    MAX_PERFORMED_PATH,
    MAX_SCROLL_NOTCHES,
    MAX_TEXT,
    MAX_WAIT_S,
    points_of,
)
from deskhand.actions.keys import character_keysym, keysym
from deskhand.actions.ops import (
    Click,
    Drag,
    Key,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    Move,
    Op,
    Point,
    Scroll,
    Type,
    Wait,
    Zoom,
    to_screen_px,
)
from deskhand.desktop.base import Frame
from deskhand.desktop.local import cursor_overlay
from deskhand.desktop.local import framebuffer as pixels_of
from deskhand.desktop.local.desktop_session import DesktopSession
from deskhand.desktop.local.input_sync import wait_until_read
from deskhand.desktop.local.settle import BUSY_LIMIT_S, Settler, SettleResult
from deskhand.desktop.local.x_connection import x_errors
from deskhand.desktop.local.xtest_input import BUTTONS, DRAG_STEP_PX, DRAG_STEP_S, XTestInput
from deskhand.errors import AgentError, DeliveryUnknown, FrameError, InfrastructureError

_BETWEEN_OPS_QUIET_S = 0.03
_BETWEEN_OPS_CAP_S = 2.0
_DRAIN_CAP_S = 10.0


@dataclass(frozen=True)
class ActionPlan:
    """Checked ops with their points in screen pixels."""

    steps: tuple[tuple[Op, tuple[tuple[int, int], ...]], ...]
    longest_s: float


class ActionExecutor:
    """Performs on `session`; used by one thread, except `plan`, which touches nothing."""

    def __init__(self, session: DesktopSession, quiet_s: float, cap_s: float) -> None:
        self._session = session
        self._quiet_s = quiet_s
        self._cap_s = cap_s
        size = (session.template.width, session.template.height)
        session.connection.hide_pointer()
        self.settler = Settler(session.connection, session.screen, size, session.busy)
        self.hand = XTestInput(session.connection, self._catch_up, self._drained)
        self._hash = pixels_of.PixelHash(*size)
        self._sequence = 0
        self._button_down = False
        self._last: np.ndarray | None = None

    def plan(self, ops: list[Op]) -> ActionPlan:
        """Raises `AgentError` for the first op that cannot be performed on this screen."""
        longest = self._cap_s
        steps = []
        for op in ops:
            points = tuple(self._px(point) for point in _points(op))
            _check(op)
            longest += op_budget_s(op, points)
            steps.append((op, points))
        return ActionPlan(tuple(steps), longest)

    def _px(self, point: Point) -> tuple[int, int]:
        return to_screen_px(point, self._session.template.width, self._session.template.height)

    def perform(self, plan: ActionPlan) -> Frame:
        """Raises `DeliveryUnknown` when it fails after the first input was sent."""
        with x_errors("getting ready to act"):
            self._session.connection.sync()
        try:
            previous: Op | None = None
            for op, points in plan.steps:
                if previous is not None and (self._button_down or _must_catch_up(previous, op)):
                    self._catch_up()
                self._do(op, points)
                previous = op
                if isinstance(op, (MouseDown, MouseUp)):
                    self._button_down = isinstance(op, MouseDown)
            return self.observe()
        except FrameError:
            raise
        except Exception as error:
            raise DeliveryUnknown(f"the desktop failed while it acted: {type(error).__name__} {error}") from error

    def _do(self, op: Op, points: tuple[tuple[int, int], ...]) -> None:
        hand = self.hand
        for place in points or ((self.hand.position,) if isinstance(op, _POINTER_OPS) else ()):
            self.settler.motion.forget_at(*place)
        match op:
            case Move():
                hand.move(*points[0])
            case Click():
                hand.click(points[0] if points else None, op.button, op.count, op.modifiers)
            case MouseDown() | MouseUp():
                if points:
                    hand.move(*points[0])
                (hand.press if isinstance(op, MouseDown) else hand.release)(op.button)
            case Drag():
                hand.drag(list(points), op.button, op.modifiers)
            case Scroll():
                if points:
                    hand.move(*points[0])
                hand.scroll(op.dx, op.dy, op.modifiers)
            case Type():
                hand.type(op.text)
            case Key():
                hand.press_chord(op.keys)
            case KeyDown():
                hand.key_down(op.key)
            case KeyUp():
                hand.key_up(op.key)
            case Wait():
                self._session.connection.sync()
                time.sleep(op.seconds)
        self._session.connection.x.flush()

    def _catch_up(self) -> None:
        self._settle(_BETWEEN_OPS_QUIET_S, _BETWEEN_OPS_CAP_S)

    def _drained(self) -> None:
        """The keyboard is about to change: what was typed must have been read with the keyboard as it was."""
        if not wait_until_read(self._session.connection, _DRAIN_CAP_S):
            self._settle(_BETWEEN_OPS_QUIET_S, _DRAIN_CAP_S, _DRAIN_CAP_S)

    def _settle(self, quiet_s: float, cap_s: float, busy_limit_s: float = BUSY_LIMIT_S) -> SettleResult:
        settled = self.settler.settle(quiet_s, cap_s, busy_limit_s)
        self.hand.guests_caught_up()
        return settled

    def first_frame(self) -> Frame:
        """The settled screen of a fresh desktop, with the pointer out of the way."""
        self.hand.move(self._session.template.width - 2, self._session.template.height - 2)
        return self._frame(self._settle(_BETWEEN_OPS_QUIET_S, self._cap_s))

    def observe(self) -> Frame:
        """The settled screen. Raises `FrameError` for a black one, `InfrastructureError` when the desktop has died."""
        settled = self._settle(self._quiet_s, self._cap_s)
        if not self._session.box.is_running():
            raise InfrastructureError(self._session.failure() or "the desktop's box has ended")
        return self._frame(settled)

    def _frame(self, settled: SettleResult) -> Frame:
        pixels = settled.pixels
        pixels_of.check_not_black(pixels)
        image = self._session.connection.pointer_image()
        under = cursor_overlay.draw_cursor(pixels, image)
        box = pixels_of.changed_bbox(self._last, pixels)
        self._last = pixels
        self._sequence += 1
        pixels.flags.writeable = False
        height, width = pixels.shape
        bgrx = pixels.view(np.uint8).reshape(height, width, 4)
        return Frame(
            bgrx=bgrx,
            sequence=self._sequence,
            content_hash=self._hash(pixels),
            settle_ms=settled.elapsed_s * 1000,
            settle_reason=settled.reason,
            changed_bbox=box,
            cursor=(image.x, image.y),
            moving=self.settler.motion.boxes(),
            under_cursor=(under[0], under[1], under[2].view(np.uint8).reshape(*under[2].shape, 4))
            if under is not None
            else None,
        )


def _points(op: Op) -> tuple[Point, ...]:
    return () if isinstance(op, Zoom) else points_of(op)


def _check(op: Op) -> None:
    match op:
        case Click():
            if not 1 <= op.count <= MAX_CLICKS:
                raise AgentError(f"click count {op.count} is not 1..{MAX_CLICKS}")
        case Drag():
            if not 2 <= len(op.path) <= MAX_PERFORMED_PATH:
                raise AgentError(f"a drag has 2..{MAX_PERFORMED_PATH} points, not {len(op.path)}")
        case Scroll():
            if max(abs(op.dx), abs(op.dy)) > MAX_SCROLL_NOTCHES:
                raise AgentError(f"scroll of {op.dx},{op.dy} notches; the most is {MAX_SCROLL_NOTCHES}")
        case Type():
            if len(op.text) > MAX_TEXT:
                raise AgentError(f"text of {len(op.text)} characters; the most is {MAX_TEXT}")
            for character in op.text:
                character_keysym(character)
        case Key():
            if not op.keys:
                raise AgentError("a key op needs a key")
            for name in op.keys:
                keysym(name)
        case KeyDown() | KeyUp():
            keysym(op.key)
        case Wait():
            if not 0 <= op.seconds <= MAX_WAIT_S:
                raise AgentError(f"wait of {op.seconds:g} s is not 0..{MAX_WAIT_S:g}")
        case _:
            pass
    if isinstance(op, (Click, MouseDown, MouseUp, Drag)) and op.button not in BUTTONS:
        raise AgentError(f"unknown mouse button {op.button!r}; use one of {', '.join(BUTTONS)}")
    if isinstance(op, (Click, Drag, Scroll)):
        for name in op.modifiers:
            keysym(name)


def op_budget_s(op: Op, points: tuple[tuple[int, int], ...] = ()) -> float:
    """The longest that `op` with its waiting for the guests may take on a machine that keeps up."""
    match op:
        case Wait():
            return _BETWEEN_OPS_CAP_S + op.seconds
        case Drag():
            way_px = sum(max(abs(a[0] - b[0]), abs(a[1] - b[1])) for a, b in pairwise(points))
            return 3 * _BETWEEN_OPS_CAP_S + 2 * DRAG_STEP_S * (way_px / DRAG_STEP_PX + 2 * len(points))
        case Type():
            return _BETWEEN_OPS_CAP_S + _DRAIN_CAP_S * (1 + len(op.text) // 50)
        case Click():
            return _BETWEEN_OPS_CAP_S + 1.0 + 0.05 * op.count
        case _:
            return _BETWEEN_OPS_CAP_S


_POINTER_OPS = (Click, MouseDown, MouseUp, Drag, Scroll)
_KEY_OPS = (Type, Key, KeyDown, KeyUp)


def _must_catch_up(previous: Op, op: Op) -> bool:
    """Input after a change of device or place is sent only when the guests have acted on the input before (focus, menus)."""
    if isinstance(previous, _KEY_OPS):
        return isinstance(op, _POINTER_OPS) or (isinstance(previous, Key) and isinstance(op, (Type, Key)))
    return isinstance(previous, _POINTER_OPS) and isinstance(op, (*_POINTER_OPS, *_KEY_OPS))
