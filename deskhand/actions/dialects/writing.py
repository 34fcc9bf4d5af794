"""How values are written in a reply. Invariant: every text reads back as itself from a Python literal, and none of its characters
can end a code fence or a block of reasoning.
"""

from __future__ import annotations

import json
import math

from deskhand.actions.dialects.limits import check_point, check_text
from deskhand.actions.ops import Point, Space, to_screen_px

_SHORT_DECIMALS = 4
"""A ten-thousandth of the screen's width is less than a pixel of any screen."""


def quoted(text: str, mark: str = "'") -> str:
    """`text` as a Python literal between `mark`s. Raises `AgentError` for what is not Unicode text.

    A back-tick and the < of a `<think>` are escaped: they would mean something to whoever looks for code in a reply.
    """
    body = json.dumps(check_text("text", text), ensure_ascii=False)[1:-1]
    body = body.replace("`", "\\x60").replace("<think", "\\x3cthink").replace("</think", "\\x3c/think").replace("\x7f", "\\x7f")
    if mark == "'":
        body = body.replace('\\"', '"').replace("'", "\\'")
    return mark + body + mark


def number(value: float) -> str:
    """A number that reads back as itself; without a fraction where it has none."""
    return str(int(value)) if float(value).is_integer() else repr(value)


def in_space(point: Point, space: Space) -> Point:
    """`point` in `space`: itself where it is in that space already, else the nearest position that the space can name.

    Raises `AgentError` when it is off the screen.
    """
    check_point(point)
    if point.space == space:
        return point
    if space.kind == "pixels":
        return Point(*to_screen_px(point, int(space.width), int(space.height)), space)
    return Point(
        _relative(point.x, point.space.width, point, space.width),
        _relative(point.y, point.space.height, point, space.height),
        space,
    )


def _relative(value: float, extent: float, point: Point, scale: float) -> float:
    share = (math.floor(value) + 0.5) / extent if point.space.kind == "pixels" else value / extent
    return round(share * scale) if scale > 1 else round(share, _SHORT_DECIMALS)
