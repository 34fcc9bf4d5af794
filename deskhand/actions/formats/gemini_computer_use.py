"""Gemini's computer use. Invariant: x and y are 0..1000 of the screen, where 1000 is the far edge, and 100 of the wheel's magnitude
are one notch.

A reply is a function call (`{"name": "click", "args": {...}}`), a list of them, or what the API returns: parts with `function_call`
(or `functionCall`), a content with parts. Parts of text before a call are reasoning; text alone ends the work. The
functions of the models since 3.5 are offered and written; those of the preview (`click_at`, `type_text_at`...) are read too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats import json_fields, json_schema
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.json_fields import Fields, JsonAction, JsonField, Values
from deskhand.actions.formats.json_format import INFEASIBLE, FreeText, JsonActionFormat
from deskhand.actions.formats.limits import MAX_WAIT_S, truncate_repr
from deskhand.actions.key_names import GEMINI
from deskhand.actions.ops import REL_1000, Point
from deskhand.errors import AgentError

MAGNITUDE_PER_NOTCH = 100
MOST_MAGNITUDE = 999
DEFAULT_MAGNITUDE = 800
_MEANINGLESS = ("intent", "safety_decision")
"""Arguments that say why, and whether a person should be asked: nothing that a desktop performs."""
_CALLS = ("function_call", "functionCall")
_OF_A_PART = ("text", "thought", "thought_signature", "thoughtSignature", *_CALLS)
_CLICKS = {
    "click": ({"button": "left", "count": 1}, "click there"),
    "double_click": ({"button": "left", "count": 2}, "click twice"),
    "triple_click": ({"button": "left", "count": 3}, "click three times"),
    "middle_click": ({"button": "middle", "count": 1}, "click the middle button"),
    "right_click": ({"button": "right", "count": 1}, "click the right button"),
}
_PAGE = {"up": ir.Key(("pageup",)), "down": ir.Key(("pagedown",)), "left": ir.Scroll(dx=-5), "right": ir.Scroll(dx=5)}
"""A document is scrolled by a page up or down, and by half a screen to the sides."""


def _typed(fields: Fields) -> list[Any]:
    return [ir.Type(fields["text"]), *([ir.Key(("enter",))] if fields["press_enter"] else [])]


def _typed_at(fields: Fields) -> list[Any]:
    """Click, select all and delete unless it says not to, type, Return unless it says not to."""
    cleared = [ir.Key(("ctrl", "a")), ir.Key(("delete",))] if fields["clear_before_typing"] else []
    return [ir.Click(fields["point"]), *cleared, *_typed(fields)]


def _making(kind: type[Any]) -> Callable[[Fields], list[Any]]:
    """Reads one op of `kind`, for a form that is never written."""
    return lambda fields: [kind(**fields)]


def _flag(key: str, default: bool) -> JsonField:
    return JsonField({key: json_schema.BOOLEAN}, (), lambda values: {key: values.get(key, default)}, lambda fields: {})


@lru_cache(maxsize=1)
def _forms() -> tuple[JsonAction, ...]:
    at = json_fields.xy(REL_1000, required=True)
    centre, corner = Point(500, 300, REL_1000), Point(250, 200, REL_1000)
    end = json_fields.xy(REL_1000, "end", ("destination_x", "destination_y"), required=True)
    drag = json_fields.ends(json_fields.xy(REL_1000, "start", required=True), end)
    wheel = json_fields.direction(
        ("direction",), "magnitude", unit=MAGNITUDE_PER_NOTCH, most=MOST_MAGNITUDE, default=DEFAULT_MAGNITUDE
    )
    one_key, some_keys = json_fields.key_name("key", GEMINI), json_fields.key_list("keys", GEMINI)
    seconds = json_fields.numeral("seconds", "seconds", json_schema.number(0, MAX_WAIT_S), 1)
    page = json_fields.choice("direction", "direction", {name: name for name in _PAGE})
    text = json_fields.text_field("text")
    about_scroll = f"turn the wheel there, {MAGNITUDE_PER_NOTCH} of magnitude to the notch"
    pressed = {"reads": lambda fields: [ir.Key((fields["key"],))], "sample": {"key": "enter"}}
    return (
        *(JsonAction(name, ir.Click(centre, **fixed), about, at, **fixed) for name, (fixed, about) in _CLICKS.items()),
        JsonAction("mouse_down", ir.MouseDown(centre), "press the left button there", at, button="left"),
        JsonAction("mouse_up", ir.MouseUp(centre), "release the left button there", at, button="left"),
        JsonAction("move", ir.Move(centre), "move the pointer there", at),
        JsonAction("type", ir.Type("hello"), "type the text", text, _flag("press_enter", False), reads=_typed),
        JsonAction("drag_and_drop", ir.Drag((centre, corner)), "drag with the left button", drag),
        JsonAction("wait", ir.Wait(2), "wait for the screen to change", seconds),
        JsonAction("press_key", None, "press a key", one_key, **pressed),
        JsonAction("key_down", ir.KeyDown("shift"), "press a key and hold it", one_key),
        JsonAction("key_up", ir.KeyUp("shift"), "release a key", one_key),
        JsonAction("hotkey", ir.Key(("ctrl", "s")), "press keys together", some_keys),
        JsonAction("take_screenshot", ir.Screenshot(), "look again"),
        JsonAction("scroll", ir.Scroll(0, 3, centre), about_scroll, at, wheel),
        JsonAction("go_back", None, "go back in a browser", reads=lambda fields: [ir.Key(("alt", "left"))], sample={}),
        JsonAction(
            "go_forward", None, "go forward in a browser", reads=lambda fields: [ir.Key(("alt", "right"))], sample={}
        ),
        JsonAction("click_at", None, "", at, reads=_making(ir.Click)),
        JsonAction("hover_at", None, "", at, reads=_making(ir.Move)),
        JsonAction(
            "type_text_at",
            None,
            "",
            at,
            text,
            _flag("press_enter", True),
            _flag("clear_before_typing", True),
            reads=_typed_at,
        ),
        JsonAction("scroll_document", None, "", page, reads=lambda fields: [_PAGE[fields["direction"]]]),
        JsonAction("scroll_at", None, "", at, wheel, reads=_making(ir.Scroll)),
        JsonAction("key_combination", None, "", json_fields.chord(("keys",), GEMINI), reads=_making(ir.Key)),
        JsonAction("wait_5_seconds", reads=lambda fields: [ir.Wait(5)]),
    )


class Gemini(JsonActionFormat):
    """See the module."""

    name = "gemini"
    tag = "name"
    ends_by_words = True
    notes: Mapping[type[Any], str] = {
        ir.Click: "at a point; left, middle or right once, left twice or three times; no keys held",
        ir.MouseDown: "left, at a point",
        ir.MouseUp: "left, at a point",
        ir.Drag: "left, from one point to another; no keys held",
        ir.Scroll: f"at a point, one direction at a time, at most {MOST_MAGNITUDE // MAGNITUDE_PER_NOTCH} notches; no keys held",
        ir.Key: "characters without case: shift is a key of its own",
        ir.Wait: f"at most {MAX_WAIT_S:g} s",
        ir.Done: "a text without words",
        ir.Fail: f"a text that begins with {INFEASIBLE}",
        ir.Answer: "a text of words",
    }

    def forms(self, view: ScreenView) -> tuple[JsonAction, ...]:
        return _forms()

    def opening(self, view: ScreenView) -> list[str]:
        return [
            "Use a mouse and a keyboard to control a computer.",
            "x and y are 0..1000 of the screen's width and height, from the top left corner.",
            "You may think in words first. Then write one function call, or a list of them, and nothing after it:",
        ]

    def unwrapped(self, value: Any) -> list[Any]:
        if not isinstance(value, dict):
            return [value]
        if "candidates" in value:
            json_schema.check("candidates", value["candidates"], json_schema.items(json_schema.ANYTHING, 1, 1))
            return self.unwrapped(value["candidates"][0])
        if isinstance(value.get("content"), dict):
            return self.unwrapped(value["content"])
        if "parts" in value:
            if not isinstance(value["parts"], list):
                raise AgentError("the parts of a content must be a list")
            return [item for part in value["parts"] for item in self.unwrapped(part)] or [FreeText("")]
        called = [key for key in _CALLS if value.get(key) is not None]
        if called:
            json_schema.check_keys("a part", value, dict.fromkeys(_OF_A_PART, json_schema.ANYTHING), ())
            return [value[called[0]]]
        if "text" in value and "name" not in value:
            json_schema.check_keys(
                "a part",
                value,
                dict.fromkeys(_OF_A_PART, json_schema.ANYTHING) | {"text": json_schema.text()},
                ("text",),
            )
            return [FreeText("" if value.get("thought") else value["text"])]
        return [value]

    def named(self, action: Any) -> tuple[str, Values]:
        name, outer = super().named(action)
        if not name:
            return name, outer
        json_schema.check_keys(
            truncate_repr(name), outer, dict.fromkeys(("args", "arguments", "id", "type"), json_schema.ANYTHING), ()
        )
        inner = outer.get("args", outer.get("arguments", {}))
        if not isinstance(inner, dict):
            raise AgentError(f"the arguments of {truncate_repr(name)} must be an object")
        return name, self.given(inner, *_MEANINGLESS)

    def action(self, name: str, values: Values) -> dict[str, Any]:
        return {"name": name, "args": dict(values)}

    def words(self, text: str) -> Any:
        return {"text": text}

    def schema_of(self, name: str, properties: dict[str, Any]) -> dict[str, Any]:
        return json_schema.object_of(name={"const": name}, args=properties)

    def schema_of_reply(self, actions: list[dict[str, Any]]) -> dict[str, Any]:
        return {"oneOf": [*super().schema_of_reply(actions)["oneOf"], json_schema.object_of(text=json_schema.text())]}


DIALECT = Gemini()
