"""PyAutoGUI calls that do not map to exactly one op: drags, relative moves, held keys, repeated presses.

A gesture that is written as several calls is parsed back into one op.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats import call_format
from deskhand.actions.formats.arg_types import ArgType, choice, number, quoted, whole
from deskhand.actions.formats.call_format import CallActionFormat, CallReader, CallSpec, arguments, flatten_fields
from deskhand.actions.formats.call_parser import ParsedCall
from deskhand.actions.formats.limits import MAX_OPS, check_key, check_text, truncate_repr
from deskhand.actions.key_names import PYAUTOGUI
from deskhand.actions.ops import Point, Space, in_space
from deskhand.errors import AgentError

_BUTTONS = {name: name for name in ("left", "middle", "right")} | {"primary": "left", "secondary": "right"}
_NUMBERED_BUTTONS = dict(enumerate(("left", "middle", "right"), 1))
_HELD = "held "
"""Tag prefix of a move with a button held; the button name follows."""


def _key_name(key: str) -> str:
    return quoted(PYAUTOGUI.write(check_key(key)))


def _read_keys(name: str, value: Any) -> tuple[str, ...]:
    """Read one key, or a list of keys, which may be the only positional argument."""
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


BUTTON = choice(_BUTTONS | _NUMBERED_BUTTONS)
KEY = ArgType(lambda name, value: check_key(value), _key_name)
KEYS = ArgType(_read_keys, lambda keys: ", ".join(_key_name(key) for key in keys))
LIST_OF_KEYS = ArgType(_read_keys, lambda keys: f"[{', '.join(_key_name(key) for key in keys)}]")
MESSAGE = ArgType(_read_message, quoted)
"""A text, or a list of keys pressed in sequence."""
PRESSES = ArgType(_read_presses, number)
TRUTH = ArgType(_read_truth, str)


def press(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> None:
    keys, presses = values["keys"], values.get("presses", 1)
    if len(keys) * presses > MAX_OPS:
        raise AgentError(f"more than {MAX_OPS} key presses in one call")
    for key in keys * presses:
        program.add(ir.Key((key,)), call.span)


def type_or_press(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> None:
    if isinstance(values["text"], str):
        program.add(ir.Type(values["text"]), call.span)
    else:
        press(program, call, {"keys": values["text"]})


def write_click(action_format: CallActionFormat, spec: CallSpec, op: Any, space: Space) -> list[str] | None:
    """Write a click that has no call of its own."""
    special = op.count in (2, 3) or (op.count == 1 and op.button != "left")
    return None if special else call_format.write_plainly(action_format, spec, op, space)


def write_press(action_format: CallActionFormat, spec: CallSpec, op: Any, space: Space) -> list[str] | None:
    return [f"{spec.call}({arguments(spec, {'keys': op.keys})})"] if len(op.keys) == 1 else None


def drag_to(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> None:
    """Drag from the preceding move, or from the pointer position."""
    _drag(program, call, values, Point(values["x"], values["y"], program.space))


def move_by(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> None:
    program.add(ir.Move(_relative_point(program, call, values)), call.span)


def drag_by(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> None:
    _drag(program, call, values, _relative_point(program, call, values))


def _relative_point(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> Point:
    if program.pointer is None:
        raise AgentError(f"{call.name} counts from a place that this reply has not named; move there first")
    return Point(program.pointer.x + values["dx"], program.pointer.y + values["dy"], program.space)


def _drag(program: CallReader, call: ParsedCall, values: dict[str, Any], to: Point) -> None:
    button = values.get("button", "left")
    if not values.get("down_up", True):
        program.add(ir.Move(to), call.span, _HELD + button)
        return
    start = program.pop_move()
    if start is not None:
        program.add(ir.Drag((start[0], to), button), (start[1][0], call.span[1]))
        return
    program.add(ir.MouseDown(button=button), call.span)
    program.add(ir.MouseUp(to, button), call.span)


def mouse_up(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> None:
    """Finish a drag along a path, or release a button."""
    up = call_format.build(ir.MouseUp, values, program.space)
    assert isinstance(up, ir.MouseUp)
    along = 0
    while along < len(program.tags) and program.tags[-1 - along] == _HELD + up.button:
        along += 1
    match program.ops[-2 - along : len(program.ops) - along]:
        case [ir.Move(), ir.MouseDown(point=None, button=up.button)] if along and up.point is None:
            taken, span = program.pop_ops(2 + along)
            path = tuple(move.point for move in taken if isinstance(move, ir.Move))
            program.add(ir.Drag(path, up.button), (span[0], call.span[1]))
        case _:
            program.add(up, call.span)


def write_drag(action_format: CallActionFormat, spec: CallSpec, op: Any, space: Space) -> list[str] | None:
    """Write a two-point drag as a move and one call."""
    if op.modifiers or len(op.path) != 2:
        return None
    values = flatten_fields(ir.Drag(op.path, op.button), space)
    values["x"], values["y"] = values.pop("x2"), values.pop("y2")
    if not set(values) - {"path"} <= {name for parameter in spec.parameters for name in parameter.fields}:
        return None
    return [*action_format.write(ir.Move(op.path[0]), space), f"{spec.call}({arguments(spec, values)})"]


def write_path(action_format: CallActionFormat, spec: CallSpec, op: Any, space: Space) -> list[str] | None:
    """Write a drag along a path: press, one call per point with the button held, release."""
    if op.modifiers:
        return None
    lines = action_format.write(ir.Move(op.path[0]), space) + action_format.write(ir.MouseDown(None, op.button), space)
    for point in op.path[1:]:
        to = in_space(point, space)
        lines.append(f"{spec.call}({arguments(spec, {'x': to.x, 'y': to.y, 'button': op.button, 'down_up': False})})")
    return lines + action_format.write(ir.MouseUp(None, op.button), space)


def hold(program: CallReader, call: ParsedCall, values: dict[str, Any]) -> None:
    """Hold keys during the calls inside; a single click, drag or scroll gets them as modifiers."""
    inner = CallReader(program.action_format, program.space, program.pointer)
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


def write_held(action_format: CallActionFormat, spec: CallSpec, op: Any, space: Space) -> list[str] | None:
    if not isinstance(op, (ir.Click, ir.Drag, ir.Scroll)) or not op.modifiers:
        return None
    lines = action_format.write(replace(op, modifiers=()), space)
    return [f"with {spec.call}({LIST_OF_KEYS.write(op.modifiers)}):", *(f"    {line}" for line in lines)]


def write_word(action_format: CallActionFormat, spec: CallSpec, op: Any, space: Space) -> list[str]:
    return [spec.call]


def write_bare(action_format: CallActionFormat, spec: CallSpec, op: Any, space: Space) -> list[str]:
    return [f"{spec.call}()"]
