"""Ops on a local desktop: `ActionExecutor`.

Invariant: every op of an action is validated before the first is performed. Once input was sent, a failure is
`DeliveryUnknown`, or `GuestFailure`. Every op ends within its budget (`op_budgets`), whatever the guests do: all of its
waits for them end at one deadline.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from deskhand.actions.formats.limits import MAX_PERFORMED_PATH, check_amounts, points_of
from deskhand.actions.keys import character_keysym
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
    Scroll,
    Type,
    Wait,
    Zoom,
    to_screen_px,
)
from deskhand.desktop import op_budgets
from deskhand.desktop.applications import catalog
from deskhand.desktop.base import Frame
from deskhand.desktop.local import framebuffer
from deskhand.desktop.local.desktop_session import DesktopSession
from deskhand.desktop.local.settle import MAX_BUSY_S, Settler, SettleResult
from deskhand.desktop.local.windows import active_class, wait_for_manager, wait_until_input_is_read
from deskhand.desktop.local.x_connection import x_errors
from deskhand.desktop.local.xtest_input import BUTTONS, XTestInput
from deskhand.errors import AgentError, DeliveryUnknown, GuestFailure, InfrastructureError

_BETWEEN_OPS_SETTLE_S = 0.03
_UNREAD_SETTLE_S = 0.1
"""For programs that do not tell when they have read their input."""


@dataclass(frozen=True)
class ActionPlan:
    """Validated ops with their points in screen pixels."""

    steps: tuple[tuple[Op, tuple[tuple[int, int], ...], float], ...]
    """Op, its points, and its budget in seconds."""
    budget_s: float


class ActionExecutor:
    """Performs ops on `session`. Used by one thread, except `plan`, which changes nothing."""

    def __init__(self, session: DesktopSession, settle_s: float, settle_timeout_s: float) -> None:
        self._session = session
        self._settle_s = settle_s
        self._settle_timeout_s = settle_timeout_s
        size = (session.spec.width, session.spec.height)
        session.connection.hide_pointer()
        self.settler = Settler(session.connection, session.screen, size, session.busy)
        waits = self._catch_up, self._drain, self._await_focus
        self.xtest = XTestInput(session.connection, *waits, self._repeat_gap_s)
        self._hash = framebuffer.PixelHash(*size)
        self._sequence = 0
        self._button_down = False
        self._deadline = math.inf
        """When the current op must have ended its waits for the guests."""
        self._last: np.ndarray | None = None

    def plan(self, ops: list[Op]) -> ActionPlan:
        """Raise `AgentError` for the first op that cannot be performed on this screen."""
        budget_s = self._settle_timeout_s
        steps = []
        for op in ops:
            width, height = self._session.spec.width, self._session.spec.height
            targets = () if isinstance(op, Zoom) else points_of(op)
            points = tuple(to_screen_px(point, width, height) for point in targets)
            _check(op)
            op_budget_s = op_budgets.op_budget_s(op, width, height)
            budget_s += op_budget_s
            steps.append((op, points, op_budget_s))
        return ActionPlan(tuple(steps), budget_s)

    def perform(self, plan: ActionPlan) -> Frame:
        """Raise `DeliveryUnknown` if it fails after the first input was sent, or `GuestFailure`."""
        with x_errors("preparing an action"):
            self._session.connection.sync()
        try:
            previous: Op | None = None
            for op, points, budget_s in plan.steps:
                self._deadline = time.monotonic() + budget_s
                if previous is not None and (self._button_down or _must_catch_up(previous, op)):
                    self._catch_up()
                self._do(op, points)
                previous = op
                if isinstance(op, (MouseDown, MouseUp)):
                    self._button_down = isinstance(op, MouseDown)
            return self.observe()
        except GuestFailure:
            raise
        except Exception as error:
            raise DeliveryUnknown(f"the desktop failed during an action: {type(error).__name__} {error}") from error

    def _do(self, op: Op, points: tuple[tuple[int, int], ...]) -> None:
        xtest = self.xtest
        for position in points or ((self.xtest.position,) if isinstance(op, _POINTER_OPS) else ()):
            self.settler.animation_filter.reset_at(*position)
        match op:
            case Move():
                xtest.move(*points[0])
            case Click():
                xtest.click(points[0] if points else None, op.button, op.count, op.modifiers)
            case MouseDown() | MouseUp():
                if points:
                    xtest.move(*points[0])
                (xtest.press if isinstance(op, MouseDown) else xtest.release)(op.button)
            case Drag():
                xtest.drag(list(points), op.button, op.modifiers)
            case Scroll():
                if points:
                    xtest.move(*points[0])
                xtest.scroll(op.dx, op.dy, op.modifiers)
            case Type():
                xtest.type(op.text)
            case Key():
                xtest.press_chord(op.keys)
            case KeyDown():
                xtest.key_down(op.key)
            case KeyUp():
                xtest.key_up(op.key)
            case Wait():
                self._session.connection.sync()
                time.sleep(op.seconds)
        self._session.connection.x.flush()

    def _catch_up(self) -> None:
        self._settle(_BETWEEN_OPS_SETTLE_S, self._limit_s(op_budgets.BETWEEN_OPS_TIMEOUT_S))

    def _limit_s(self, timeout_s: float) -> float:
        """Return the time limit of a wait of the current op."""
        return max(0.0, min(timeout_s, self._deadline - time.monotonic()))

    def _drain(self) -> bool:
        # For example, the keyboard map is about to change: pending input must be read under the current map.
        limit_s = self._limit_s(op_budgets.DRAIN_TIMEOUT_S)
        deadline = time.monotonic() + limit_s
        if limit_s <= 0 or wait_until_input_is_read(self._session.connection, limit_s):
            return limit_s > 0
        remaining_s = deadline - time.monotonic()
        settle_timeout_s = max(_UNREAD_SETTLE_S, remaining_s)
        settled = self._settle(_UNREAD_SETTLE_S, settle_timeout_s, settle_timeout_s)
        return remaining_s > 0 and settled.reason != "cap"

    def _await_focus(self) -> None:
        wait_for_manager(self._session.connection, self._limit_s(op_budgets.FOCUS_TIMEOUT_S))

    def _repeat_gap_s(self) -> float:
        return catalog.repeat_gap_s(active_class(self._session.connection))

    def _settle(self, settle_s: float, settle_timeout_s: float, max_busy_s: float = MAX_BUSY_S) -> SettleResult:
        settled = self.settler.settle(settle_s, settle_timeout_s, max_busy_s)
        self.xtest.mark_caught_up()
        return settled

    def first_frame(self) -> Frame:
        """Return the settled screen of a fresh desktop, with the pointer in the corner. Raises `FrameError` if it is
        black; later a guest may have blackened it.
        """
        self.xtest.move(self._session.spec.width - 2, self._session.spec.height - 2)
        settled = self._settle(_BETWEEN_OPS_SETTLE_S, self._settle_timeout_s)
        framebuffer.check_not_black(settled.pixels)
        return self._frame(settled)

    def observe(self) -> Frame:
        """Return the settled screen. Raises `InfrastructureError` on failure."""
        settled = self._settle(self._settle_s, self._settle_timeout_s)
        if not self._session.jail.is_running():
            raise InfrastructureError(self._session.failure() or "the jail has exited")
        return self._frame(settled)

    def _frame(self, settled: SettleResult) -> Frame:
        pixels = settled.pixels
        image = self._session.connection.pointer_image()
        under = framebuffer.draw_cursor(pixels, image)
        changed = framebuffer.changed_bbox(self._last, pixels)
        self._last = pixels
        self._sequence += 1
        pixels.flags.writeable = False
        return Frame(
            bgrx=_bytes(pixels),
            sequence=self._sequence,
            content_hash=self._hash(pixels),
            settle_ms=settled.elapsed_s * 1000,
            settle_reason=settled.reason,
            changed_bbox=changed,
            cursor=(image.x, image.y),
            moving=self.settler.animation_filter.boxes(),
            under_cursor=(under[0], under[1], _bytes(under[2])) if under else None,
        )


def _bytes(pixels: np.ndarray) -> np.ndarray:
    return pixels.view(np.uint8).reshape(*pixels.shape, 4)


def _check(op: Op) -> None:
    check_amounts(op, MAX_PERFORMED_PATH)
    if isinstance(op, Type):
        for character in op.text:
            character_keysym(character)
    if isinstance(op, (Click, MouseDown, MouseUp, Drag)) and op.button not in BUTTONS:
        raise AgentError(f"unknown mouse button {op.button!r}; use one of {', '.join(BUTTONS)}")


_POINTER_OPS = (Click, MouseDown, MouseUp, Drag, Scroll)
_KEY_OPS = (Type, Key, KeyDown, KeyUp)


def _must_catch_up(previous: Op, op: Op) -> bool:
    """Whether guests must process `previous` first: focus and menus change between devices and positions."""
    if isinstance(previous, _KEY_OPS):
        return isinstance(op, _POINTER_OPS) or (isinstance(previous, Key) and isinstance(op, (Type, Key)))
    return isinstance(previous, _POINTER_OPS) and isinstance(op, (*_POINTER_OPS, *_KEY_OPS))
