"""ASCII preview of where ops act on the screen; used by `deskhand actions explain`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from deskhand.actions.ops import Op
from deskhand.actions.serialization import op_to_json

COLUMNS = 64
_MARKS = "123456789abcdefghijklmnopqrstuvwxyz"
_TRAIL = "·"


def ascii_preview(ops: Sequence[Op], width: int, height: int) -> str:
    """Return the ops, one per line, above a map of their points. Raises `AgentError` if a point is off the screen."""
    plain = [op_to_json(op, width, height) for op in ops]
    marked = [(_MARKS[min(index, len(_MARKS) - 1)], op, _points(op)) for index, op in enumerate(plain)]
    lines = [f"{mark if places else ' '} {json.dumps(op, ensure_ascii=False)}" for mark, op, places in marked]
    if not any(places for _, _, places in marked):
        return "\n".join(lines)
    rows = min(COLUMNS, max(4, round(COLUMNS * height / width / 2)))
    cells = [[" "] * COLUMNS for _ in range(rows)]
    for mark, op, places in marked:
        if op["op"] == "drag":
            _draw_trail(cells, places, width, height)
        for x, y in places:
            cells[y * rows // height][x * COLUMNS // width] = mark
    edge = f"+{'-' * COLUMNS}+"
    return "\n".join([*lines, "", edge, *(f"|{''.join(row)}|" for row in cells), f"{edge} {width}x{height}"])


def _points(op: dict[str, Any]) -> list[tuple[int, int]]:
    points = [*op.get("path", ()), *(op[key] for key in ("point", "top_left", "bottom_right") if key in op)]
    return [(x, y) for x, y in points]


def _draw_trail(cells: list[list[str]], places: Sequence[tuple[int, int]], width: int, height: int) -> None:
    for (x, y), (to_x, to_y) in pairwise(places):
        for step in range(COLUMNS + 1):
            row, column = (
                (start + (end - start) * step // COLUMNS) * count // side
                for start, end, count, side in ((y, to_y, len(cells), height), (x, to_x, COLUMNS, width))
            )
            cells[row][column] = _TRAIL
