"""Gemini's computer use: x and y are 0..1000 of the screen, and 100 of scroll magnitude are one notch.

A reply is a function call (`{"name": "click", "args": {...}}`), a list of them, or API output: parts with
`function_call` (or `functionCall`), a content with parts. Text parts before a call are reasoning; text alone ends the
episode. The functions of models since 3.5 are in the prompt and written; those of the preview (`click_at`,
`type_text_at`, ...) are accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats import json_fields, json_schema
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.json_fields import Fields, JsonField, Values
from deskhand.actions.formats.json_format import INFEASIBLE, FreeText, JsonAction, JsonActionFormat
from deskhand.actions.formats.limits import MAX_WAIT_S, truncate_repr
from deskhand.actions.key_names import GEMINI
from deskhand.actions.ops import REL_1000, Point
from deskhand.errors import AgentError

MAGNITUDE_PER_NOTCH = 100
MAX_MAGNITUDE = 999
DEFAULT_MAGNITUDE = 800
_MAX_NOTCHES = MAX_MAGNITUDE // MAGNITUDE_PER_NOTCH
_IGNORED_ARGUMENTS = ("intent", "safety_decision")
"""Explanations and safety decisions; not executed."""
_CALLS = ("function_call", "functionCall")
_PART_KEYS = ("text", "thought", "thought_signature", "thoughtSignature", *_CALLS)
_CLICKS = {
    "click": ({"button": "left", "count": 1}, "click there"),
    "double_click": ({"button": "left", "count": 2}, "click twice"),
    "triple_click": ({"button": "left", "count": 3}, "click three times"),
    "middle_click": ({"button": "middle", "count": 1}, "click the middle button"),
    "right_click": ({"button": "right", "count": 1}, "click the right button"),
}
_PAGE = {"up": ir.Key(("pageup",)), "down": ir.Key(("pagedown",)), "left": ir.Scroll(dx=-5), "right": ir.Scroll(dx=5)}
"""Ops of scroll_document: a page vertically, half a screen horizontally."""


def _type_ops(fields: Fields) -> list[Any]:
    return [ir.Type(fields["text"]), *([ir.Key(("enter",))] if fields["press_enter"] else [])]


def _type_at_ops(fields: Fields) -> list[Any]:
    """Click, clear the field, type and press Return, as the flags request."""
    cleared = [ir.Key(("ctrl", "a")), ir.Key(("delete",))] if fields["clear_before_typing"] else []
    return [ir.Click(fields["point"]), *cleared, *_type_ops(fields)]


def _press_ops(fields: Fields) -> list[Any]:
    return [ir.Key((fields["key"],))]


def _single_op(kind: type[Any]) -> Callable[[Fields], list[Any]]:
    """Return a `make_ops` for an action that is parsed but never written."""
    return lambda fields: [kind(**fields)]


def _always(op: ir.Op) -> Callable[[Fields], list[Any]]:
    return lambda fields: [op]


def _flag(key: str, default: bool) -> JsonField:
    return JsonField({key: json_schema.BOOLEAN}, (), lambda values: {key: values.get(key, default)}, lambda fields: {})


@lru_cache(maxsize=1)
def _json_actions() -> tuple[JsonAction, ...]:
    at = json_fields.xy(REL_1000, required=True)
    center, corner = Point(500, 300, REL_1000), Point(250, 200, REL_1000)
    end = json_fields.xy(REL_1000, "end", ("destination_x", "destination_y"), required=True)
    drag = json_fields.endpoints(json_fields.xy(REL_1000, "start", required=True), end)
    wheel = json_fields.direction(
        ("direction",), "magnitude", unit=MAGNITUDE_PER_NOTCH, max_amount=MAX_MAGNITUDE, default=DEFAULT_MAGNITUDE
    )
    one_key, some_keys = json_fields.key_name("key", GEMINI), json_fields.key_list("keys", GEMINI)
    seconds = json_fields.number_field("seconds", "seconds", json_schema.number(0, MAX_WAIT_S), 1)
    page = json_fields.choice("direction", "direction", {name: name for name in _PAGE})
    text = json_fields.text_field("text")
    type_flags = (_flag("press_enter", True), _flag("clear_before_typing", True))
    about_scroll = f"turn the wheel there, {MAGNITUDE_PER_NOTCH} of magnitude to the notch"
    return (
        *(JsonAction(name, ir.Click(center, **fixed), about, at, **fixed) for name, (fixed, about) in _CLICKS.items()),
        JsonAction("mouse_down", ir.MouseDown(center), "press the left button there", at, button="left"),
        JsonAction("mouse_up", ir.MouseUp(center), "release the left button there", at, button="left"),
        JsonAction("move", ir.Move(center), "move the pointer there", at),
        JsonAction("type", ir.Type("hello"), "type the text", text, _flag("press_enter", False), make_ops=_type_ops),
        JsonAction("drag_and_drop", ir.Drag((center, corner)), "drag with the left button", drag),
        JsonAction("wait", ir.Wait(2), "wait for the screen to change", seconds),
        JsonAction("press_key", None, "press a key", one_key, make_ops=_press_ops, sample={"key": "enter"}),
        JsonAction("key_down", ir.KeyDown("shift"), "press a key and hold it", one_key),
        JsonAction("key_up", ir.KeyUp("shift"), "release a key", one_key),
        JsonAction("hotkey", ir.Key(("ctrl", "s")), "press keys together", some_keys),
        JsonAction("take_screenshot", ir.Screenshot(), "look again"),
        JsonAction("scroll", ir.Scroll(0, 3, center), about_scroll, at, wheel),
        *(
            JsonAction(f"go_{way}", None, f"go {way} in a browser", make_ops=_always(ir.Key(("alt", key))), sample={})
            for way, key in (("back", "left"), ("forward", "right"))
        ),
        JsonAction("click_at", None, "", at, make_ops=_single_op(ir.Click)),
        JsonAction("hover_at", None, "", at, make_ops=_single_op(ir.Move)),
        JsonAction("type_text_at", None, "", at, text, *type_flags, make_ops=_type_at_ops),
        JsonAction("scroll_document", None, "", page, make_ops=lambda fields: [_PAGE[fields["direction"]]]),
        JsonAction("scroll_at", None, "", at, wheel, make_ops=_single_op(ir.Scroll)),
        JsonAction("key_combination", None, "", json_fields.chord(("keys",), GEMINI), make_ops=_single_op(ir.Key)),
        JsonAction("wait_5_seconds", make_ops=_always(ir.Wait(5))),
    )


class Gemini(JsonActionFormat):
    json_actions = staticmethod(lambda view: _json_actions())
    name = "gemini"
    tag = "name"
    ends_with_text = True
    notes: Mapping[type[Any], str] = {
        ir.Click: "at a point; left, middle or right once, left twice or three times; no keys held",
        ir.MouseDown: "left, at a point",
        ir.MouseUp: "left, at a point",
        ir.Drag: "left, from one point to another; no keys held",
        ir.Scroll: f"at a point, one direction at a time, at most {_MAX_NOTCHES} notches; no keys held",
        ir.Key: "characters without case: shift is a key of its own",
        ir.Wait: f"at most {MAX_WAIT_S:g} s",
        ir.Done: "a text without words",
        ir.Fail: f"a text that begins with {INFEASIBLE}",
        ir.Answer: "a text of words",
    }

    def opening(self, view: ScreenView) -> list[str]:
        return [
            "Use a mouse and a keyboard to control a computer.",
            "x and y are 0..1000 of the screen's width and height, from the top left corner.",
            "You may think in words first. Then write one function call, or a list of them, and nothing after it:",
        ]

    def unwrap(self, value: Any) -> list[Any]:
        if not isinstance(value, dict):
            return [value]
        if "candidates" in value:
            json_schema.check("candidates", value["candidates"], json_schema.items(json_schema.ANYTHING, 1, 1))
            return self.unwrap(value["candidates"][0])
        if isinstance(value.get("content"), dict):
            return self.unwrap(value["content"])
        if "parts" in value:
            if not isinstance(value["parts"], list):
                raise AgentError("the parts of a content must be a list")
            return [item for part in value["parts"] for item in self.unwrap(part)] or [FreeText("")]
        called = [key for key in _CALLS if value.get(key) is not None]
        if called:
            json_schema.check_keys("a part", value, dict.fromkeys(_PART_KEYS, json_schema.ANYTHING), ())
            return [value[called[0]]]
        if "text" in value and "name" not in value:
            rules = dict.fromkeys(_PART_KEYS, json_schema.ANYTHING) | {"text": json_schema.text()}
            json_schema.check_keys("a part", value, rules, ("text",))
            return [FreeText("" if value.get("thought") else value["text"])]
        return [value]

    def split_name(self, action: Any) -> tuple[str, Values]:
        name, outer = super().split_name(action)
        if not name:
            return name, outer
        keys = ("args", "arguments", "id", "type")
        json_schema.check_keys(truncate_repr(name), outer, dict.fromkeys(keys, json_schema.ANYTHING), ())
        inner = outer.get("args", outer.get("arguments", {}))
        if not isinstance(inner, dict):
            raise AgentError(f"the arguments of {truncate_repr(name)} must be an object")
        return name, self.without_keys(inner, *_IGNORED_ARGUMENTS)

    def action(self, name: str, values: Values) -> dict[str, Any]:
        return {"name": name, "args": dict(values)}

    def text_value(self, text: str) -> Any:
        return {"text": text}

    def action_schema(self, name: str, properties: dict[str, Any]) -> dict[str, Any]:
        return json_schema.object_of(name={"const": name}, args=properties)

    def reply_schema(self, actions: list[dict[str, Any]]) -> dict[str, Any]:
        return {"oneOf": [*super().reply_schema(actions)["oneOf"], json_schema.object_of(text=json_schema.text())]}


FORMAT = Gemini()
