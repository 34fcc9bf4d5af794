"""Operations (ops): the actions that every format is parsed into and every desktop executes.

A point carries its coordinate space; only `to_screen_px` and `in_space` convert it. Points in range map exactly, and
the edge value (1000 of 1000, 1.0 of 1) is the last pixel. A point outside its space raises `AgentError`; it is never
clamped onto the screen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from deskhand.errors import AgentError

Button = Literal["left", "middle", "right", "back", "forward"]


@dataclass(frozen=True, slots=True)
class Space:
    """A coordinate space of `width` x `height` units.

    `kind` is "pixels" (integer positions 0..n-1 of an image or the screen) or "relative" (0..n, n being the far edge).
    """

    kind: Literal["pixels", "relative"]
    width: float
    height: float


REL_1000 = Space("relative", 1000, 1000)
REL_999 = Space("relative", 999, 999)
REL_1 = Space("relative", 1, 1)


def screen_px(width: int, height: int) -> Space:
    """Return the pixel space of the screen, or of an image of the whole screen."""
    return Space("pixels", width, height)


@dataclass(frozen=True, slots=True)
class Point:
    """A position in `space`."""

    x: float
    y: float
    space: Space


def to_screen_px(point: Point, width: int, height: int) -> tuple[int, int]:
    """Convert `point` to integer pixels of a `width` x `height` screen. Raises `AgentError` if it is off the screen."""
    return (
        _axis_to_px(point.x, point.space.width, width, point.space.kind, "x"),
        _axis_to_px(point.y, point.space.height, height, point.space.kind, "y"),
    )


def in_space(point: Point, space: Space) -> Point:
    """Convert `point` to the nearest unit of `space` (the nearest 1/10000 on a 0..1 scale).

    A pixel is represented by its center. Raises `AgentError` if the point lies outside its own space.
    """
    if point.space == space:
        return point
    if space.kind == "pixels":
        return Point(*to_screen_px(point, int(space.width), int(space.height)), space)
    return Point(
        _axis_to_unit(point.x, point.space.width, space.width, point.space.kind, "x"),
        _axis_to_unit(point.y, point.space.height, space.height, point.space.kind, "y"),
        space,
    )


def _axis_to_unit(value: float, extent: float, units: float, kind: str, axis: str) -> float:
    _check_on_axis(value, extent, kind, axis)
    share = (math.floor(value) + 0.5) / extent if kind == "pixels" else value / extent
    return round(share * units) if units > 1 else round(share * units, 4)


def _check_on_axis(value: float, extent: float, kind: str, axis: str) -> None:
    if not math.isfinite(value):
        raise AgentError(f"{axis}={value} is not a number; give a finite coordinate")
    less = "<" if kind == "pixels" else "<="
    if not 0 <= value <= extent or (kind == "pixels" and value == extent):
        raise AgentError(f"{axis}={value:g} is off the screen; it must be 0 <= {axis} {less} {extent:g}")


def _axis_to_px(value: float, extent: float, pixels: int, kind: str, axis: str) -> int:
    _check_on_axis(value, extent, kind, axis)
    if kind == "pixels":
        return int(value) if extent == pixels else min(int((value + 0.5) * pixels / extent), pixels - 1)
    return min(int(value * pixels / extent), pixels - 1)


@dataclass(frozen=True, slots=True)
class Move:
    point: Point


@dataclass(frozen=True, slots=True)
class Click:
    """Press and release `button` `count` times at `point` (None: the pointer position) with `modifiers` held."""

    point: Point | None = None
    button: Button = "left"
    count: int = 1
    modifiers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MouseDown:
    point: Point | None = None
    button: Button = "left"


@dataclass(frozen=True, slots=True)
class MouseUp:
    point: Point | None = None
    button: Button = "left"


@dataclass(frozen=True, slots=True)
class Drag:
    """Hold `button` along `path`: at least two points, pressed at the first and released at the last."""

    path: tuple[Point, ...]
    button: Button = "left"
    modifiers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scroll:
    """Turn the wheel by `dx` notches to the right and `dy` notches down."""

    dx: int = 0
    dy: int = 0
    point: Point | None = None
    modifiers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Type:
    """Type Unicode `text`; a line feed presses Return."""

    text: str


@dataclass(frozen=True, slots=True)
class Key:
    """Press `keys` as one chord and release them in reverse order; see `actions.keys` for names."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeyDown:
    key: str


@dataclass(frozen=True, slots=True)
class KeyUp:
    key: str


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Screenshot:
    pass


@dataclass(frozen=True, slots=True)
class Zoom:
    """Request an enlarged view of the rectangle from `top_left` to `bottom_right`."""

    top_left: Point
    bottom_right: Point


@dataclass(frozen=True, slots=True)
class Done:
    """End the episode: the task is finished."""


@dataclass(frozen=True, slots=True)
class Fail:
    """End the episode: the task is infeasible."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """End the episode with a final answer."""

    text: str = ""


PointerOp = Move | Click | MouseDown | MouseUp | Drag | Scroll
KeyboardOp = Type | Key | KeyDown | KeyUp
Op = PointerOp | KeyboardOp | Wait | Screenshot | Zoom | Done | Fail | Answer
TERMINAL_OPS = (Done, Fail, Answer)
PASSIVE_OPS = (Wait, Screenshot, Zoom, Done, Answer)
"""Ops that do not change the desktop."""
