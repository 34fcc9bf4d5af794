"""How pyautogui's calls become ops where one call is not one op. Invariant: what a call does to the pointer, the buttons and the
keys is what its ops do, and a gesture that is written as several calls is read back as one op.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats.arg_types import ArgType, choice, number, quoted, whole
from deskhand.actions.formats.call_format import (
    CallActionFormat,
    CallReader,
    CallSpec,
    arguments,
    build,
    flatten_fields,
    in_space,
    write_plainly,
)
from deskhand.actions.formats.call_parser import ParsedCall
from deskhand.actions.formats.limits import MAX_OPS, check_key, check_text, truncate_repr
from deskhand.actions.key_names import PYAUTOGUI
from deskhand.actions.ops import Point, Space
from deskhand.errors import AgentError

_BUTTONS = {
    "left": "left",
    "middle": "middle",
    "right": "right",
    "primary": "left",
    "secondary": "right",
    1: "left",
    2: "middle",
    3: "right",
}
_HELD = "held "
"""The tag of a move along which a button is held; the button's name follows."""


def _key_name(key: str) -> str:
    return quoted(PYAUTOGUI.write(check_key(key)))


def _read_keys(name: str, value: Any) -> tuple[str, ...]:
    """One key, or a list of keys, perhaps as the only one of all positional arguments."""
    items = value if isinstance(value, tuple) else (value,)
    if len(items) == 1 and isinstance(items[0], tuple):
        items = items[0]
    if not items:
        raise AgentError(f"{name} needs a key")
    return tuple(check_key(item) for item in items)


def _read_presses(name: str, value: Any) -> int:
    presses = whole(name, value)
    if not 1 <= presses <= MAX_OPS:
        raise AgentError(f"{name}: {presses} is outside 1..{MAX_OPS}")
    return presses


def _read_message(name: str, value: Any) -> Any:
    return _read_keys(name, value) if isinstance(value, tuple) else check_text(name, value)


def _read_truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise AgentError(f"{name} must be True or False, not {truncate_repr(value)}")
    return value


BUTTON = choice(_BUTTONS)
KEY = ArgType(lambda name, value: check_key(value), _key_name)
KEYS = ArgType(_read_keys, lambda keys: ", ".join(_key_name(key) for key in keys))
LIST_OF_KEYS = ArgType(_read_keys, lambda keys: f"[{', '.join(_key_name(key) for key in keys)}]")
MESSAGE = ArgType(_read_message, quoted)
"""A text, or a list of keys that are pressed one after the other."""
PRESSES = ArgType(_read_presses, number)
TRUTH = ArgType(_read_truth, str)


def press(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> None:
    """Keys one after the other, as often as asked."""
    keys, presses = values["keys"], values.get("presses", 1)
    if len(keys) * presses > MAX_OPS:
        raise AgentError(f"more than {MAX_OPS} key presses in one call")
    for key in keys * presses:
        program.add(ir.Key((key,)), call.span)


def type_or_press(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> None:
    """A text, or keys one after the other."""
    if isinstance(values["text"], str):
        program.add(ir.Type(values["text"]), call.span)
    else:
        press(program, call, {"keys": values["text"]})


def write_click(dialect: CallActionFormat, row: CallSpec, op: Any, space: Space) -> list[str] | None:
    """A click that no row says more shortly."""
    special = op.count in (2, 3) or (op.count == 1 and op.button != "left")
    return None if special else write_plainly(row, op, space)


def write_press(dialect: CallActionFormat, row: CallSpec, op: Any, space: Space) -> list[str] | None:
    """A chord of one key."""
    return [f"{row.call}({arguments(row, {'keys': op.keys})})"] if len(op.keys) == 1 else None


def drag_to(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> None:
    """A drag from where the statement before has moved the pointer, or from where the pointer is."""
    _drag(program, call, values, Point(values["x"], values["y"], program.space))


def move_by(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> None:
    """A move to a place beside the one that the reply named before."""
    program.add(ir.Move(_beside(program, call, values)), call.span)


def drag_by(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> None:
    """A drag to a place beside the one that the reply named before."""
    _drag(program, call, values, _beside(program, call, values))


def _beside(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> Point:
    if program.pointer is None:
        raise AgentError(f"{call.name} counts from a place that this reply has not named; move there first")
    return Point(program.pointer.x + values["dx"], program.pointer.y + values["dy"], program.space)


def _drag(program: CallReader, call: ParsedCall, values: dict[str, Any], to: Point) -> None:
    button = values.get("button", "left")
    if not values.get("down_up", True):
        program.add(ir.Move(to), call.span, _HELD + button)
        return
    start = program.add_move()
    if start is not None:
        program.add(ir.Drag((start[0], to), button), (start[1][0], call.span[1]))
        return
    program.add(ir.MouseDown(button=button), call.span)
    program.add(ir.MouseUp(to, button), call.span)


def mouse_up(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> None:
    """The end of a drag along a path, or a button that goes up."""
    up = build(ir.MouseUp, values, program.space)
    assert isinstance(up, ir.MouseUp)
    along = 0
    while along < len(program.tags) and program.tags[-1 - along] == _HELD + up.button:
        along += 1
    match program.ops[-2 - along : len(program.ops) - along]:
        case [ir.Move(), ir.MouseDown(point=None, button=up.button)] if along and up.point is None:
            taken, span = program.add_op(2 + along)
            path = tuple(move.point for move in taken if isinstance(move, ir.Move))
            program.add(ir.Drag(path, up.button), (span[0], call.span[1]))
        case _:
            program.add(up, call.span)


def write_drag(dialect: CallActionFormat, row: CallSpec, op: Any, space: Space) -> list[str] | None:
    """A drag between two places: a move, and the row's call."""
    if op.modifiers or len(op.path) != 2:
        return None
    values = flatten_fields(ir.Drag(op.path, op.button), space)
    values["x"], values["y"] = values.pop("x2"), values.pop("y2")
    if not set(values) - {"path"} <= {name for parameter in row.parameters for name in parameter.fields}:
        return None
    return [*dialect.write(ir.Move(op.path[0]), space), f"{row.call}({arguments(row, values)})"]


def write_path(dialect: CallActionFormat, row: CallSpec, op: Any, space: Space) -> list[str] | None:
    """A drag along a path: the button goes down, the row's call holds it from place to place, and the button goes up."""
    if op.modifiers:
        return None
    lines = [*dialect.write(ir.Move(op.path[0]), space), *dialect.write(ir.MouseDown(button=op.button), space)]
    for point in op.path[1:]:
        to = in_space(point, space)
        lines.append(f"{row.call}({arguments(row, {'x': to.x, 'y': to.y, 'button': op.button, 'down_up': False})})")
    return lines + dialect.write(ir.MouseUp(button=op.button), space)


def hold(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> None:
    """Keys held around one click, drag or scroll, or around anything else."""
    inner = CallReader(program.dialect, program.space, program.pointer)
    inner.run(call.body or ())
    keys: tuple[str, ...] = values["keys"]
    match inner.ops:
        case [ir.Click(modifiers=()) | ir.Drag(modifiers=()) | ir.Scroll(modifiers=()) as op]:
            program.add(replace(op, modifiers=keys), call.span)
        case _:
            for key in keys:
                program.add(ir.KeyDown(key), call.span)
            for op, span in zip(inner.ops, inner.spans, strict=True):
                program.add(op, span)
            for key in reversed(keys):
                program.add(ir.KeyUp(key), call.span)


def write_held(dialect: CallActionFormat, row: CallSpec, op: Any, space: Space) -> list[str] | None:
    """An op with keys held."""
    if not isinstance(op, (ir.Click, ir.Drag, ir.Scroll)) or not op.modifiers:
        return None
    lines = dialect.write(replace(op, modifiers=()), space)
    return [f"with {row.call}({LIST_OF_KEYS.write(op.modifiers)}):", *(f"    {line}" for line in lines)]


def write_word(dialect: CallActionFormat, row: CallSpec, op: Any, space: Space) -> list[str] | None:
    """A bare word."""
    return [row.call]


def write_bare(dialect: CallActionFormat, row: CallSpec, op: Any, space: Space) -> list[str] | None:
    """The call without arguments, whatever the op's fields are."""
    return [f"{row.call}()"]
