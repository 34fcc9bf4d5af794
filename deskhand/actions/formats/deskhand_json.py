"""Deskhand's own format: one compact JSON object or a list of objects, with exactly one way to write every op.

Points are 0..1000 of the screen's width and height, where 1000 is the far edge; points of other spaces are rounded to
that scale. Key names are passed through; the desktop rejects unknown ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats import json_fields, json_schema
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.json_format import JsonAction, JsonActionFormat
from deskhand.actions.formats.json_scan import Found, parse_json_values
from deskhand.actions.formats.limits import MAX_WAIT_S
from deskhand.actions.key_names import KeyNaming
from deskhand.actions.ops import REL_1000, Op, Point

NAME = "deskhand_json"
MAX_OPS = 16
"""Maximum number of ops in a reply."""
_VIEW = ScreenView.of_screen(1000, 1000)
"""This format does not depend on the view."""
_ANY = KeyNaming({}, pass_through=True)
_BUTTONS = {name: name for name in ("left", "middle", "right", "back", "forward")}


def _at(*, required: bool = False, field: str = "point", keys: tuple[str, str] = ("x", "y")) -> json_fields.JsonField:
    return json_fields.xy(REL_1000, field, keys, required=required, whole=False)


def _point(x: int, y: int) -> Point:
    return Point(x, y, REL_1000)


_POINT = _at()
_BUTTON = json_fields.choice("button", "button", _BUTTONS, "left")
_COUNT = json_fields.number_field("count", "count", json_schema.integer(1, 3), 1)
_MODIFIERS = json_fields.key_list("modifiers", _ANY, "modifiers", required=False)
_PATH = json_fields.path("path", REL_1000, named=False, whole=False)
_SECONDS = json_fields.number_field("seconds", "seconds", json_schema.number(0, MAX_WAIT_S))
_CORNERS = (_at(required=True, field="top_left"), _at(required=True, field="bottom_right", keys=("x2", "y2")))
_THERE, _DRAG_PATH = _point(512, 300), (_point(100, 200), _point(300, 400))
_ABOUT_CLICK = 'click there; optional "button":"right", "count":2 for a double click, "modifiers":["ctrl"]'
_ABOUT_SCROLL = "turn the wheel; dx positive is right, dy positive is down"
_JSON_ACTIONS = (
    JsonAction("click", ir.Click(_THERE), _ABOUT_CLICK, _POINT, _BUTTON, _COUNT, _MODIFIERS),
    JsonAction("move", ir.Move(_THERE), "move the pointer", _at(required=True)),
    JsonAction("mouse_down", ir.MouseDown(_THERE), "press and hold a button", _POINT, _BUTTON),
    JsonAction("mouse_up", ir.MouseUp(_THERE), "release a button", _POINT, _BUTTON),
    JsonAction("drag", ir.Drag(_DRAG_PATH), "hold a button along the path", _PATH, _BUTTON, _MODIFIERS),
    JsonAction("scroll", ir.Scroll(0, 3, _THERE), _ABOUT_SCROLL, _POINT, json_fields.wheel("dx", "dy"), _MODIFIERS),
    JsonAction("type", ir.Type("hello"), "type text; \\n is the Return key", json_fields.text_field("text")),
    JsonAction("key", ir.Key(("ctrl", "s")), "press keys together", json_fields.key_list("keys", _ANY)),
    JsonAction("key_down", ir.KeyDown("shift"), "press and hold a key", json_fields.key_name("key", _ANY)),
    JsonAction("key_up", ir.KeyUp("shift"), "release a key", json_fields.key_name("key", _ANY)),
    JsonAction("wait", ir.Wait(1), "wait for the screen to change", _SECONDS),
    JsonAction("screenshot", ir.Screenshot(), "look again"),
    JsonAction("zoom", ir.Zoom(_point(100, 100), _point(300, 300)), "look at a rectangle of the screen", *_CORNERS),
    JsonAction("done", ir.Done(), "the task is finished"),
    JsonAction("fail", ir.Fail(), "the task cannot be done", json_fields.text_field("reason", "reason")),
    JsonAction("answer", ir.Answer(), "the final answer in words", json_fields.text_field("text")),
)


class DeskhandJson(JsonActionFormat):
    json_actions = staticmethod(lambda view: _JSON_ACTIONS)
    name = NAME
    tag = "op"
    max_actions = MAX_OPS
    separators = (",", ":")
    ignore_nulls = False
    prompt_lists_options = False
    notes: Mapping[type[Any], str] = {ir.Wait: f"at most {MAX_WAIT_S:g} s"}

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


FORMAT = DeskhandJson()


def parse(text: str) -> list[Op]:
    return FORMAT.parse(text, _VIEW)


def emit(ops: list[Op]) -> str:
    return FORMAT.emit(ops, _VIEW)
