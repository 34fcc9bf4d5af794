"""Ops as elements of a Gymnasium space: `action_space`, `op_of`, `action_of`. Used by `env`.

An action is a dictionary with every field below; an op reads the fields that it has.

| field       | space                                   | ops                                        |
|-------------|-----------------------------------------|--------------------------------------------|
| `op`        | `Discrete`, an index of `OP_NAMES`      | all                                        |
| `point`     | `Box` 0..1, (x, y) of the screen        | pointer ops; the start of a drag           |
| `end`       | `Box` 0..1, (x, y)                      | drag                                       |
| `button`    | `Discrete`, an index of `BUTTONS`       | click, mouse_down, mouse_up, drag          |
| `count`     | `Discrete` 1..3                         | click                                      |
| `scroll`    | `Box` -10..10, notches right and down   | scroll                                     |
| `modifiers` | `MultiBinary`, in order of `MODIFIERS`  | click, drag, scroll; key                   |
| `key`       | `Discrete`, an index of `KEYS`          | key, key_down, key_up                      |
| `seconds`   | `Box` 0..5, of one number               | wait                                       |
| `text`      | `Text` of at most `MAX_TEXT` characters | type; reason of fail; answer               |
"""

from __future__ import annotations

import importlib
import string
from collections.abc import Mapping
from typing import Any, cast, get_args

import numpy as np

from deskhand.actions.keys import NAMES
from deskhand.actions.ops import (
    REL_1,
    Answer,
    Button,
    Click,
    Done,
    Drag,
    Fail,
    Key,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    Move,
    Op,
    Point,
    Scroll,
    Type,
    Wait,
    in_space,
)
from deskhand.actions.serialization import name_of
from deskhand.errors import AgentError

spaces: Any = importlib.import_module("gymnasium.spaces")

BUTTONS: tuple[str, ...] = get_args(Button)
MODIFIERS = ("ctrl", "shift", "alt", "super")
KEYS: tuple[str, ...] = (*NAMES, *(chr(code) for code in range(0x21, 0x7F)))
_OPS = (Move, Click, MouseDown, MouseUp, Drag, Scroll, Type, Key, KeyDown, KeyUp, Wait, Done, Fail, Answer)
OP_NAMES = tuple(name_of(kind) for kind in _OPS)
MAX_TEXT = 512
MAX_NOTCHES, MAX_COUNT, MAX_WAIT_S = 10, 3, 5.0
CHARACTERS = string.ascii_letters + string.digits + string.punctuation + " \n\t"
"""Characters that sampled texts contain; a step types any others as well."""


def action_space() -> Any:
    """Return the `spaces.Dict` of structured actions."""
    return spaces.Dict(
        {
            "op": spaces.Discrete(len(OP_NAMES)),
            "point": spaces.Box(0.0, 1.0, (2,), np.float32),
            "end": spaces.Box(0.0, 1.0, (2,), np.float32),
            "button": spaces.Discrete(len(BUTTONS)),
            "count": spaces.Discrete(MAX_COUNT, start=1),
            "scroll": spaces.Box(-MAX_NOTCHES, MAX_NOTCHES, (2,), np.int64),
            "modifiers": spaces.MultiBinary(len(MODIFIERS)),
            "key": spaces.Discrete(len(KEYS)),
            "seconds": spaces.Box(0.0, MAX_WAIT_S, (1,), np.float32),
            "text": spaces.Text(MAX_TEXT, min_length=0, charset=CHARACTERS),
        }
    )


def op_of(action: Mapping[str, Any]) -> Op:
    """Return the op of a structured action. Raises `AgentError` for a field outside its space."""
    try:
        return _OP_OF[OP_NAMES[_index(action["op"], OP_NAMES, "op")]](action)
    except (KeyError, TypeError, ValueError) as error:
        raise AgentError(f"action: {type(error).__name__} {error}; give every field of the action space") from None


def _index(value: Any, names: tuple[str, ...], field: str) -> int:
    if not 0 <= int(value) < len(names):
        raise AgentError(f"{field}: must be in 0..{len(names) - 1}, got {int(value)}")
    return int(value)


def _point(action: Mapping[str, Any], field: str = "point") -> Point:
    x, y = (float(value) for value in action[field])
    return Point(x, y, REL_1)


def _button(action: Mapping[str, Any]) -> Button:
    return cast(Button, BUTTONS[_index(action["button"], BUTTONS, "button")])


def _key(action: Mapping[str, Any]) -> str:
    return KEYS[_index(action["key"], KEYS, "key")]


def _modifiers(action: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name, is_held in zip(MODIFIERS, action["modifiers"], strict=True) if is_held)


def _scroll(action: Mapping[str, Any]) -> Scroll:
    dx, dy = (int(notches) for notches in action["scroll"])
    return Scroll(dx, dy, _point(action), _modifiers(action))


_OP_OF: Mapping[str, Any] = {
    "move": lambda action: Move(_point(action)),
    "click": lambda action: Click(_point(action), _button(action), int(action["count"]), _modifiers(action)),
    "mouse_down": lambda action: MouseDown(_point(action), _button(action)),
    "mouse_up": lambda action: MouseUp(_point(action), _button(action)),
    "drag": lambda action: Drag((_point(action), _point(action, "end")), _button(action), _modifiers(action)),
    "scroll": lambda action: _scroll(action),
    "type": lambda action: Type(str(action["text"])),
    "key": lambda action: Key((*_modifiers(action), _key(action))),
    "key_down": lambda action: KeyDown(_key(action)),
    "key_up": lambda action: KeyUp(_key(action)),
    "wait": lambda action: Wait(float(action["seconds"][0])),
    "done": lambda action: Done(),
    "fail": lambda action: Fail(str(action["text"])),
    "answer": lambda action: Answer(str(action["text"])),
}


def action_of(op: Op) -> dict[str, Any]:
    """Return the structured action of an op; `op_of` reverses it, with points at 1/10000 of the screen.

    Raises `AgentError` if the space has no such action: a path of more than two points, a pointer op without a point, a
    chord of other keys than modifiers and one key, a number or text outside its space.
    """
    if name_of(type(op)) not in OP_NAMES:
        raise AgentError(f"{name_of(type(op))}: the action space has no such op; it has: {', '.join(OP_NAMES)}")
    action: dict[str, Any] = {
        "op": np.int64(OP_NAMES.index(name_of(type(op)))),
        "point": np.full(2, 0.5, np.float32),
        "end": np.full(2, 0.5, np.float32),
        "button": np.int64(0),
        "count": np.int64(1),
        "scroll": np.zeros(2, np.int64),
        "modifiers": np.zeros(len(MODIFIERS), np.int8),
        "key": np.int64(0),
        "seconds": np.zeros(1, np.float32),
        "text": "",
    }
    match op:
        case Drag(path=(start, end)):
            action |= {"point": _position(start), "end": _position(end)}
        case Move(point=Point() as at) | Click(point=Point() as at) | Scroll(point=Point() as at):
            action["point"] = _position(at)
        case MouseDown(point=Point() as at) | MouseUp(point=Point() as at):
            action["point"] = _position(at)
        case Key(keys=(*held, key)):
            action |= {"key": _key_index(key), "modifiers": _held(tuple(held))}
        case KeyDown(key=key) | KeyUp(key=key):
            action["key"] = _key_index(key)
        case Type(text=text) | Answer(text=text) | Fail(reason=text):
            action["text"] = text
        case Wait(seconds=seconds):
            action["seconds"] = np.array([seconds], np.float32)
        case Done():
            pass
        case _:
            raise AgentError(f"{name_of(type(op))}: the action space cannot express {op}"[:300])
    if isinstance(op, (Click, MouseDown, MouseUp, Drag)):
        action["button"] = np.int64(BUTTONS.index(op.button))
    if isinstance(op, (Click, Drag, Scroll)):
        action["modifiers"] = _held(op.modifiers)
    if isinstance(op, Click):
        action["count"] = np.int64(op.count)
    if isinstance(op, Scroll):
        action["scroll"] = np.array([op.dx, op.dy], np.int64)
    wrong = [name for name, space in _LIMITS.items() if not space.contains(action[name])]
    if wrong or len(action["text"]) > MAX_TEXT:
        raise AgentError(f"{name_of(type(op))}: {', '.join(wrong) or 'text'} is outside the action space")
    return action


def _position(point: Point) -> np.ndarray:
    at = in_space(point, REL_1)
    return np.array([at.x, at.y], np.float32)


def _key_index(key: str) -> np.int64:
    if key not in KEYS:
        raise AgentError(f"key: {key!r} is not in the action space")
    return np.int64(KEYS.index(key))


def _held(modifiers: tuple[str, ...]) -> np.ndarray:
    if modifiers != tuple(name for name in MODIFIERS if name in modifiers):
        raise AgentError(f"modifiers: {list(modifiers)} are not of {', '.join(MODIFIERS)}, in this order")
    return np.array([name in modifiers for name in MODIFIERS], np.int8)


_LIMITS = {name: space for name, space in action_space().items() if name != "text"}
