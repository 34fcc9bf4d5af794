"""The action IR. Invariant: a closed set of frozen ops; a point always carries its coordinate space, and only `to_screen_px` and
`in_space` convert one.

In range maps exactly; the edge value (1000 of 1000, 1.0 of 1) is the last pixel; anything beyond is an
`AgentError` and is never moved onto the screen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from deskhand.errors import AgentError

Button = Literal["left", "middle", "right", "back", "forward"]


@dataclass(frozen=True, slots=True)
class Space:
    """A coordinate space of `width` x `height` units.

    `kind` is "pixels" (integer positions 0..n-1 of an image or the screen) or "relative" (0..n, where n is the far edge).
    """

    kind: Literal["pixels", "relative"]
    width: float
    height: float


REL_1000 = Space("relative", 1000, 1000)
REL_999 = Space("relative", 999, 999)
REL_1 = Space("relative", 1, 1)


def screen_px(width: int, height: int) -> Space:
    """Pixels of the screen itself."""
    return Space("pixels", width, height)


def image_px(width: int, height: int) -> Space:
    """Pixels of an image that shows the whole screen, perhaps resized."""
    return Space("pixels", width, height)


@dataclass(frozen=True, slots=True)
class Point:
    """A position in `space`."""

    x: float
    y: float
    space: Space


def to_screen_px(point: Point, width: int, height: int) -> tuple[int, int]:
    """Convert `point` to integer pixels of a `width` x `height` screen. Raises `AgentError` when it is off the screen."""
    return (
        _axis_to_px(point.x, point.space.width, width, point.space.kind, "x"),
        _axis_to_px(point.y, point.space.height, height, point.space.kind, "y"),
    )


def in_space(point: Point, space: Space) -> Point:
    """`point` as the nearest unit of `space` (of a scale from 0 to 1: the nearest 1/10000); itself when it is in `space` already.

    A pixel stands for its middle. Raises `AgentError` when the point is off its own space.
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
    if kind == "pixels" and not 0 <= value < extent:
        raise AgentError(f"{axis}={value:g} is off the screen; it must be 0 <= {axis} < {extent:g}")
    if kind != "pixels" and not 0 <= value <= extent:
        raise AgentError(f"{axis}={value:g} is off the screen; it must be 0 <= {axis} <= {extent:g}")


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
    """Press and release `button` `count` times at `point` (None: where the pointer is) with `modifiers` held."""

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
    """Hold `button` along `path` (two points or more; the first is where the button goes down)."""

    path: tuple[Point, ...]
    button: Button = "left"
    modifiers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scroll:
    """Wheel notches: `dx` positive is right, `dy` positive is down."""

    dx: int = 0
    dy: int = 0
    point: Point | None = None
    modifiers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Type:
    """Type Unicode `text`; a line feed is the Return key."""

    text: str


@dataclass(frozen=True, slots=True)
class Key:
    """Press `keys` as one chord, in order, and release them in reverse; names are those of `actions.keys`."""

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
    """Look at the rectangle from `top_left` to `bottom_right`."""

    top_left: Point
    bottom_right: Point


@dataclass(frozen=True, slots=True)
class Done:
    """The agent says that the task is finished."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The agent says that the task cannot be done."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The agent's final answer in words."""

    text: str = field(default="")


Op = (
    Move
    | Click
    | MouseDown
    | MouseUp
    | Drag
    | Scroll
    | Type
    | Key
    | KeyDown
    | KeyUp
    | Wait
    | Screenshot
    | Zoom
    | Done
    | Fail
    | Answer
)
TERMINAL_OPS = (Done, Fail, Answer)
