"""How values are written in a reply. Invariant: every text reads back as itself from a Python literal, and none of its characters
can end a code fence or a block of reasoning.
"""

from __future__ import annotations

import json

from deskhand.actions import ops
from deskhand.actions.formats.limits import check_point, check_text
from deskhand.actions.ops import Point, Space


def quoted(text: str, mark: str = "'") -> str:
    """`text` as a Python literal between `mark`s. Raises `AgentError` for what is not Unicode text.

    A back-tick and the < of a `<think>` are escaped: they would mean something to whoever looks for code in a reply.
    """
    body = json.dumps(check_text("text", text), ensure_ascii=False)[1:-1]
    body = (
        body.replace("`", "\\x60")
        .replace("<think", "\\x3cthink")
        .replace("</think", "\\x3c/think")
        .replace("\x7f", "\\x7f")
    )
    if mark == "'":
        body = body.replace('\\"', '"').replace("'", "\\'")
    return mark + body + mark


def number(value: float) -> str:
    """A number that reads back as itself; without a fraction where it has none."""
    return str(int(value)) if float(value).is_integer() else repr(value)


def in_space(point: Point, space: Space) -> Point:
    """`ops.in_space` of a point that is on the screen. Raises `AgentError` when it is not."""
    check_point(point)
    return ops.in_space(point, space)
