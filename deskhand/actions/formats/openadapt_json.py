"""OpenAdapt's JSON actions: one action per reply, with x and y as fractions of the screen unless the action declares
pixels.

Accepted are the flat form (`{"type": "click", "x": 0.5, "y": 0.3}`), that of openadapt-types (`"target": {"x": ...,
"y": ...}` and `"drag_end"`) and that of openadapt-ml (`"action_type"` and `"coordinate": [x, y]`). The flat form is
written, rounded to 1/10000.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats import json_fields, json_schema
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.json_fields import JsonField, Values
from deskhand.actions.formats.json_format import JsonAction, JsonActionFormat
from deskhand.actions.formats.limits import MAX_WAIT_S
from deskhand.actions.key_names import PYAUTOGUI
from deskhand.actions.ops import REL_1, Point
from deskhand.errors import AgentError

DEFAULT_NOTCHES = 3
DEFAULT_WAIT_S = 1
_CLICKS: dict[str, dict[str, Any]] = {
    "click": {"button": "left", "count": 1},
    "double_click": {"button": "left", "count": 2},
    "right_click": {"button": "right", "count": 1},
}
_REASONING = ("reasoning", "thought", "thinking")
_ECHOED = ("text", "key")
"""Keys that models copy empty from the published prompt, whose example shows all of them."""


def _point_field(
    view: ScreenView, field: str, names: tuple[str, str], nested: str, *, required: bool, listed: str = ""
) -> JsonField:
    """Return the field of a point as x and y, as an object under `nested`, or as a list under `listed`."""
    flat = json_fields.xy(REL_1, field, names, required=required, whole=False)
    fraction, pixels = json_schema.number(0, 1), json_fields.coordinate(view.screen, whole=False)

    def read(values: Values) -> json_fields.Fields:
        forms = {names[0]: any(name in values for name in names), nested: nested in values, listed: listed in values}
        given = [form for form, is_given in forms.items() if is_given]
        if len(given) > 1:
            raise AgentError(f"takes only one of {' and '.join(given)}")
        if not given and required:
            raise AgentError(f"needs {names[0]} and {names[1]}")
        if given == [nested]:
            return {field: _target(values[nested])}
        if given == [listed]:
            json_schema.check(listed, values[listed], json_schema.fixed_items(fraction, fraction))
            x, y = values[listed]
            return {field: Point(x, y, REL_1)}
        return flat.read(values)

    def _target(value: Any) -> Point:
        json_schema.check(nested, value, {"type": "object", "properties": _TARGET, "required": ()})
        if value.get("x") is None or value.get("y") is None:
            raise AgentError(f"{nested} needs x and y; elements have no names here")
        absolute = value.get("is_normalized") is False
        for axis, rule in zip("xy", pixels if absolute else (fraction, fraction), strict=True):
            json_schema.check(f"{nested}.{axis}", value[axis], rule)
        return Point(value["x"], value["y"], view.screen if absolute else REL_1)

    also = dict.fromkeys((nested, listed) if listed else (nested,), json_schema.ANYTHING)
    return JsonField(flat.keys, (field,), read, flat.write, flat.required, also, lenient=True)


_TARGET = dict.fromkeys(("x", "y", "is_normalized", "node_id", "description"), json_schema.ANYTHING)


def _keys() -> JsonField:
    """Return the field of a chord: "ctrl+s", or a key with `modifiers`."""
    last = json_fields.chord(("key",), PYAUTOGUI)
    held = json_fields.key_list("modifiers", PYAUTOGUI, "modifiers", required=False)

    def read(values: Values) -> json_fields.Fields:
        return {"keys": (*held.read(values).get("modifiers", ()), *last.read(values)["keys"])}

    return JsonField(last.keys, ("keys",), read, last.write, last.required, held.keys)


@lru_cache(maxsize=64)
def _json_actions(view: ScreenView) -> tuple[JsonAction, ...]:
    center, other = Point(0.5, 0.3, REL_1), Point(0.75, 0.5, REL_1)
    must_be_at = _point_field(view, "point", ("x", "y"), "target", required=True, listed="coordinate")
    at = _point_field(view, "point", ("x", "y"), "target", required=False, listed="coordinate")
    start = _point_field(view, "start", ("x", "y"), "target", required=True, listed="coordinate")
    end = _point_field(view, "end", ("end_x", "end_y"), "drag_end", required=True)
    held = json_fields.key_list("modifiers", PYAUTOGUI, "modifiers", required=False)
    wheel = json_fields.direction(("scroll_direction", "direction"), "scroll_amount", default=DEFAULT_NOTCHES)
    about_scroll = "turn the wheel by scroll_amount notches, there or where the pointer is"
    about_drag = "drag with the left button from x, y to end_x, end_y"
    seconds = json_fields.number_field("duration_seconds", "seconds", json_schema.number(0, MAX_WAIT_S), DEFAULT_WAIT_S)
    return (
        *(
            JsonAction(name, ir.Click(center, **fixed), f"{name.replace('_', ' ')} there", must_be_at, held, **fixed)
            for name, fixed in _CLICKS.items()
        ),
        JsonAction("hover", ir.Move(center), "move the pointer there", must_be_at),
        JsonAction("drag", ir.Drag((center, other)), about_drag, json_fields.endpoints(start, end)),
        JsonAction("scroll", ir.Scroll(0, 3, center), about_scroll, at, wheel),
        JsonAction("type", ir.Type("hello"), "type the text", json_fields.text_field("text", least=1)),
        JsonAction("key", ir.Key(("enter",)), 'press a key, or keys together: "ctrl+s"', _keys()),
        JsonAction("hotkey", ir.Key, "", _keys()),
        JsonAction("wait", ir.Wait(2), "wait for the screen to change", seconds),
        JsonAction("noop", make_ops=lambda fields: [ir.Wait(0)]),
        JsonAction("screenshot", ir.Screenshot(), "look again"),
        JsonAction("done", ir.Done(), "the task is finished"),
        JsonAction("fail", ir.Fail(), "the task cannot be done", json_fields.constant("reason")),
        JsonAction("answer", ir.Answer("42"), "the final answer in words", json_fields.text_field("answer", "text")),
    )


class OpenAdaptJson(JsonActionFormat):
    json_actions = staticmethod(_json_actions)
    name = "openadapt_json"
    tag = "type"
    max_actions = 1
    notes: Mapping[type[Any], str] = {
        ir.Click: "left once or twice, right once; always at a point",
        ir.Drag: "left, from one point to another; no keys held",
        ir.Scroll: "one direction at a time; no keys held",
        ir.Type: "at least one character",
        ir.Key: "keys that pyautogui names",
        ir.Wait: f"at most {MAX_WAIT_S:g} s",
    }
    losses: Mapping[type[Any], str] = {ir.Fail: "the reason is omitted"}

    def opening(self, view: ScreenView) -> list[str]:
        return [
            "You control a desktop. Given a screenshot and a task, output the next action as JSON, "
            "exactly one per turn.",
            "x and y are fractions of the screen: 0.0 is left or top, 1.0 is right or bottom. The actions:",
        ]

    def split_name(self, action: Any) -> tuple[str, Values]:
        if isinstance(action, dict) and "type" not in action and "action_type" in action:
            action = {"type" if key == "action_type" else key: value for key, value in action.items()}
        name, values = super().split_name(action)
        empty = [key for key in _ECHOED if values.get(key) == ""]
        return name.lower(), self.without_keys(values, *_REASONING, *empty)


FORMAT = OpenAdaptJson()
