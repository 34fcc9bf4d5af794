"""Scrolling by a direction, for dialects that name no amount. Invariant: one call is always the same number of notches; another
amount is written as that number, which the row declares as its loss.
"""

from __future__ import annotations

from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats.call_parser import ParsedCall
from deskhand.actions.formats.call_table import (
    CallReader,
    CallSpec,
    CallTable,
    Parameter,
    arguments,
    build,
    flatten_fields,
)
from deskhand.actions.ops import Op, Point, Space
from deskhand.errors import AgentError

_DIRECTIONS = {"down": (0, 1), "up": (0, -1), "right": (1, 0), "left": (-1, 0)}


def scroll_row(
    call: str,
    parameters: tuple[Parameter, ...],
    notches: int,
    *,
    default: str | None = None,
    at_pointer: bool = False,
    offer: str = "",
    about: str = "",
) -> CallSpec:
    """A row whose parameter for the field `direction` (of "down", "up", "right", "left") says which way `notches` go.

    `default` is the direction of a call that names none. Without `offer` the prompt shows an example.
    """

    def read(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> None:
        direction = values.pop("direction", default)
        if direction is None:
            raise AgentError(f"{call.name} needs a direction")
        across, down = _DIRECTIONS[direction]
        program.add(
            build(ir.Scroll, {**values, "dx": across * notches, "dy": down * notches}, program.space), call.span
        )

    def write(table: CallTable, row: CallSpec, op: Op, space: Space) -> list[str] | None:
        if not isinstance(op, ir.Scroll) or op.modifiers or (op.dx == 0) == (op.dy == 0):
            return None
        values = flatten_fields(op, space)
        across, down = _sign(values.pop("dx", 0)), _sign(values.pop("dy", 0))
        values["direction"] = next(name for name, signs in _DIRECTIONS.items() if signs == (across, down))
        return [f"{row.call}({arguments(row, values)})"]

    return CallSpec(
        call,
        parameters,
        ir.Scroll,
        read=read,
        write=write,
        example=None if offer else ir.Scroll(dy=notches, point=Point(0.5, 0.5, ir.REL_1)),
        offer=offer,
        about=about,
        at_pointer=at_pointer,
        loss=f"any amount becomes {notches} notches; one axis at a time",
    )


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)
