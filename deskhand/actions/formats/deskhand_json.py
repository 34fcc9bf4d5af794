"""Deskhand's own dialect: compact JSON. Invariant: a reply is one object or a list of objects and nothing else, and every op of the
IR has exactly one way to be written.

Points are relative, 0..1000 of the screen's width and height, where 1000 is the far edge. A point of another space is written as
the nearest integer of that scale. Names of keys are passed on as they are; the desktop says which it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats import json_fields, json_schema
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.json_actions import JsonAction
from deskhand.actions.formats.json_format import JsonActionFormat
from deskhand.actions.formats.json_scan import Found, parse_json_values
from deskhand.actions.formats.limits import MAX_WAIT_S
from deskhand.actions.key_names import KeyNaming
from deskhand.actions.ops import REL_1000, Op, Point

NAME = "deskhand_json"
MAX_OPS = 16
"""Ops in one reply, at most."""
_VIEW = ScreenView.of_screen(1000, 1000)
"""Nothing in this dialect depends on the view."""


_ANY = KeyNaming({}, anything=True)
_BUTTONS = {name: name for name in ("left", "middle", "right", "back", "forward")}


def _at(*, required: bool = False, field: str = "point", keys: tuple[str, str] = ("x", "y")) -> json_fields.JsonField:
    return json_fields.xy(REL_1000, field, keys, required=required, whole=False)


def _point(x: int, y: int) -> Point:
    return Point(x, y, REL_1000)


_POINT = _at()
_BUTTON = json_fields.choice("button", "button", _BUTTONS, default="left", brief=True)
_COUNT = json_fields.numeral("count", "count", json_schema.integer(1, 3), default=1)
_MODIFIERS = json_fields.key_list("modifiers", _ANY, "modifiers", required=False)
_FORMS = (
    JsonAction(
        "click",
        ir.Click,
        (_POINT, _BUTTON, _COUNT, _MODIFIERS),
        about='click there; optional "button":"right", "count":2 for a double click, "modifiers":["ctrl"]',
        example=ir.Click(_point(512, 300)),
    ),
    JsonAction("move", ir.Move, (_at(required=True),), about="move the pointer", example=ir.Move(_point(512, 300))),
    JsonAction(
        "mouse_down",
        ir.MouseDown,
        (_POINT, _BUTTON),
        about="press and hold a button",
        example=ir.MouseDown(_point(512, 300)),
    ),
    JsonAction(
        "mouse_up", ir.MouseUp, (_POINT, _BUTTON), about="release a button", example=ir.MouseUp(_point(512, 300))
    ),
    JsonAction(
        "drag",
        ir.Drag,
        (json_fields.path("path", REL_1000, named=False, whole=False), _BUTTON, _MODIFIERS),
        about="hold a button along the path",
        example=ir.Drag((_point(100, 200), _point(300, 400))),
    ),
    JsonAction(
        "scroll",
        ir.Scroll,
        (_POINT, json_fields.wheel("dx", "dy"), _MODIFIERS),
        about="turn the wheel; dx positive is right, dy positive is down",
        example=ir.Scroll(0, 3, _point(512, 300)),
    ),
    JsonAction(
        "type",
        ir.Type,
        (json_fields.text_field("text"),),
        about="type text; \\n is the Return key",
        example=ir.Type("hello"),
    ),
    JsonAction(
        "key", ir.Key, (json_fields.key_list("keys", _ANY),), about="press keys together", example=ir.Key(("ctrl", "s"))
    ),
    JsonAction(
        "key_down",
        ir.KeyDown,
        (json_fields.key_name("key", _ANY),),
        about="press and hold a key",
        example=ir.KeyDown("shift"),
    ),
    JsonAction(
        "key_up", ir.KeyUp, (json_fields.key_name("key", _ANY),), about="release a key", example=ir.KeyUp("shift")
    ),
    JsonAction(
        "wait",
        ir.Wait,
        (json_fields.numeral("seconds", "seconds", json_schema.number(0, MAX_WAIT_S)),),
        about="wait for the screen to change",
        example=ir.Wait(1),
    ),
    JsonAction("screenshot", ir.Screenshot, about="look again", example=ir.Screenshot()),
    JsonAction(
        "zoom",
        ir.Zoom,
        (_at(required=True, field="top_left"), _at(required=True, field="bottom_right", keys=("x2", "y2"))),
        about="look at a rectangle of the screen",
        example=ir.Zoom(_point(100, 100), _point(300, 300)),
    ),
    JsonAction("done", ir.Done, about="the task is finished", example=ir.Done()),
    JsonAction(
        "fail",
        ir.Fail,
        (json_fields.text_field("reason", "reason"),),
        about="the task cannot be done",
        example=ir.Fail(),
    ),
    JsonAction(
        "answer", ir.Answer, (json_fields.text_field("text"),), about="the final answer in words", example=ir.Answer()
    ),
)


class DeskhandJson(JsonActionFormat):
    """See the module."""

    name = NAME
    tag = "op"
    most = MAX_OPS
    separators = (",", ":")
    null_is_nothing = False
    lists_options = False
    bounds: Mapping[type[Any], str] = {ir.Wait: f"at most {MAX_WAIT_S:g} s"}

    def forms(self, view: ScreenView) -> tuple[JsonAction, ...]:
        return _FORMS

    def values(self, text: str) -> Found:
        return parse_json_values(text)

    def opening(self, view: ScreenView) -> list[str]:
        return [
            "Reply with one JSON object, or a list of objects that are performed in order, and nothing else.",
            "x and y are 0..1000 of the screen's width and height, from the top left corner. The objects:",
        ]

    def closing(self, view: ScreenView) -> list[str]:
        return [
            'x and y of "click", "mouse_down", "mouse_up" and "scroll" may both be left out: where the pointer is.',
            'When the task is finished reply {"op":"done"}; nothing may follow it.',
        ]


DIALECT = DeskhandJson()
PROMPT = DIALECT.prompt(_VIEW)


def parse(text: str) -> list[Op]:
    """`DIALECT.parse`, which needs no view."""
    return DIALECT.parse(text, _VIEW)


def emit(ops: list[Op]) -> str:
    """`DIALECT.emit`, which needs no view."""
    return DIALECT.emit(ops, _VIEW)


def schema() -> dict[str, Any]:
    """`DIALECT.schema`, which needs no view."""
    made = DIALECT.schema(_VIEW)
    assert made is not None
    return made
