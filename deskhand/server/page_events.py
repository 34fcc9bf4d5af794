"""Mouse and keyboard of a page as ops. Used by the desktops that a person may use (`server.live_desktops`)."""

from __future__ import annotations

from typing import Any

from deskhand.actions.ops import (
    Answer,
    Button,
    Click,
    Done,
    Drag,
    Fail,
    Key,
    Op,
    Point,
    Scroll,
    Type,
    Wait,
    screen_px,
)
from deskhand.errors import ConfigError

MAX_TEXT = 10_000
"""Characters of a text that is typed."""
MAX_WAIT_S = 10.0
_BUTTONS: dict[int, Button] = {0: "left", 1: "middle", 2: "right", 3: "back", 4: "forward"}
"""Mouse buttons by DOM number."""


def op_from_event(event: Any, width: int, height: int) -> Op:
    """Return the op of one page event on a screen of this size in pixels. Raises `ConfigError` if it has none."""
    try:
        return _op(event, width, height)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise ConfigError(f"invalid event: {type(error).__name__} {error}") from error


def _op(event: Any, width: int, height: int) -> Op:
    space = screen_px(width, height)

    def point(name: str) -> Point:
        x, y = (int(value) for value in event[name])
        if not (0 <= x < width and 0 <= y < height):
            raise ValueError(f"{name} is outside of the screen of {width}x{height}")
        return Point(x, y, space)

    match event["kind"]:
        case "click":
            count = int(event["count"])
            if not 1 <= count <= 3:
                raise ValueError("count must be 1, 2 or 3")
            return Click(point("at"), button=_BUTTONS[int(event["button"])], count=count)
        case "drag":
            return Drag((point("from"), point("at")))
        case "scroll":
            return Scroll(dx=int(event["dx"]), dy=int(event["dy"]), point=point("at"))
        case "type":
            return Type(str(event["text"])[:MAX_TEXT])
        case "key":
            return Key(tuple(str(key) for key in event["keys"]))
        case "wait":
            return Wait(min(max(float(event["seconds"]), 0.1), MAX_WAIT_S))
        case "done":
            return Done()
        case "fail":
            return Fail(str(event.get("reason", ""))[:MAX_TEXT])
        case "answer":
            return Answer(str(event["text"])[:MAX_TEXT])
        case other:
            raise ValueError(f"unknown event kind {other!r}")
