"""Anthropic's computer tool in its three versions. Invariant: coordinates are pixels of the image that the model sees, keys have
the names of X11, and the wheel is counted in notches.

A reply is the tool's input (`{"action": "left_click", "coordinate": [640, 400]}`), a list of inputs, or what the Messages API
returns: `tool_use` blocks, a list of content blocks, a whole message. Blocks of text before a tool call are reasoning; a message
of text alone ends the work. Keys that are held during a click are read from `text` and from `key`, and written as `text`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats import json_fields, json_schema
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.json_fields import Fields, JsonAction, JsonField
from deskhand.actions.formats.json_format import INFEASIBLE, FreeText, JsonActionFormat
from deskhand.actions.formats.limits import MAX_WAIT_S, truncate_repr
from deskhand.actions.key_names import X11
from deskhand.actions.ops import Point, Space
from deskhand.actions.pointer_merge import DragTo
from deskhand.errors import AgentError

_REASONING_BLOCKS = ("thinking", "redacted_thinking")
_OF_A_BLOCK = ("type", "id", "name", "input", "cache_control", "caller")


def _drag(space: Space) -> JsonField:
    """From `start_coordinate`, or from where the pointer is, to `coordinate`."""
    both = json_fields.ends(
        json_fields.pair("start_coordinate", space, "start", required=True),
        json_fields.pair("coordinate", space, "end", required=True),
    )

    def read(values: json_fields.Values) -> Fields:
        if "coordinate" not in values:
            raise AgentError("needs the key coordinate")
        if "start_coordinate" in values:
            return both.read(values)
        x, y = values["coordinate"]
        return {"path": (Point(json_schema.strip_description(x), json_schema.strip_description(y), space),)}

    return JsonField(both.keys, both.fields, read, both.write, both.required, lenient=True)


def _dragged(fields: Fields) -> list[Any]:
    path = fields["path"]
    return [ir.Drag(path) if len(path) == 2 else DragTo(*path)]


def _held_down(fields: Fields) -> list[Any]:
    """hold_key: down in order, up in reverse."""
    keys = fields["keys"]
    return [*map(ir.KeyDown, keys), ir.Wait(fields["seconds"]), *map(ir.KeyUp, reversed(keys))]


def _untold(fields: Fields) -> list[Any]:
    raise AgentError("cursor_position: where the cursor is cannot be asked; look for it on the screenshot")


@lru_cache(maxsize=64)
def _first_forms(view: ScreenView) -> tuple[JsonAction, ...]:
    """The actions of 2024-10-22, in which a click has no place."""
    at, centre = json_fields.pair("coordinate", view.image, required=True), _centre(view)
    return (
        JsonAction("key", ir.Key(("ctrl", "s")), "press a key, or keys together", json_fields.chord(("text",), X11)),
        JsonAction("type", ir.Type("hello"), "type the text", json_fields.text_field("text")),
        JsonAction("mouse_move", ir.Move(centre), "move the cursor there", at),
        *(
            JsonAction(name, ir.Click(**fixed), f"{about} where the cursor is", **fixed)
            for name, (fixed, about) in json_fields.CLICKS.items()
            if name != "triple_click"
        ),
        JsonAction(
            "left_click_drag",
            ir.Drag((centre, _corner(view))),
            "drag with the left button from one point to the other",
            _drag(view.image),
            reads=_dragged,
        ),
        JsonAction("screenshot", ir.Screenshot(), "look again"),
        JsonAction("cursor_position", reads=_untold),
    )


@lru_cache(maxsize=64)
def _second_forms(view: ScreenView) -> tuple[JsonAction, ...]:
    """The actions of 2025-01-24."""
    at, centre = json_fields.pair("coordinate", view.image), _centre(view)
    held = json_fields.chord(("text", "key"), X11, "modifiers", required=False)
    seconds = json_fields.numeral("duration", "seconds", json_schema.number(0, MAX_WAIT_S))
    wheel = json_fields.direction(("scroll_direction",), "scroll_amount")
    return (
        *(form for form in _first_forms(view) if form.name not in json_fields.CLICKS),
        *(
            JsonAction(name, ir.Click(centre, **fixed), f"{about} there, or where the cursor is", at, held, **fixed)
            for name, (fixed, about) in json_fields.CLICKS.items()
        ),
        JsonAction("left_mouse_down", ir.MouseDown(), "press the left button and hold it", at, button="left"),
        JsonAction("left_mouse_up", ir.MouseUp(), "release the left button", at, button="left"),
        JsonAction("scroll", ir.Scroll(0, 3, centre), "turn the wheel by scroll_amount notches", at, wheel, held),
        JsonAction(
            "hold_key",
            None,
            "hold keys down for duration seconds",
            json_fields.chord(("text",), X11),
            seconds,
            reads=_held_down,
            sample={"text": "shift", "duration": 1},
        ),
        JsonAction("wait", ir.Wait(1), "wait for duration seconds", seconds),
    )


@lru_cache(maxsize=64)
def _third_forms(view: ScreenView) -> tuple[JsonAction, ...]:
    """The actions of 2025-11-24."""
    region, zoom = json_fields.corners("region", view.image), ir.Zoom(_corner(view), _centre(view))
    return (*_second_forms(view), JsonAction("zoom", zoom, "look at the rectangle [left, top, right, bottom]", region))


def _centre(view: ScreenView) -> Point:
    return Point(view.image_width // 2, view.image_height // 3, view.image)


def _corner(view: ScreenView) -> Point:
    return Point(view.image_width // 4, view.image_height // 5, view.image)


_HOLD = "hold_key is read as keys down, a wait, and keys up"
_LATER_NOTES: Mapping[type[Any], str] = {
    ir.Click: "left, middle or right once; left twice or three times",
    ir.MouseDown: "left",
    ir.MouseUp: "left",
    ir.Scroll: "one direction at a time",
    ir.Wait: f"at most {MAX_WAIT_S:g} s",
    ir.KeyDown: _HOLD,
    ir.KeyUp: _HOLD,
}


class Anthropic(JsonActionFormat):
    """One version of the tool."""

    tag = "action"
    ends_by_words = True
    notes: Mapping[type[Any], str] = {
        ir.Drag: "left, from one point to another; no keys held",
        ir.Done: "a message without words",
        ir.Fail: f"a message that begins with {INFEASIBLE}",
        ir.Answer: "a message of words",
    }

    def __init__(self, version: str) -> None:
        self.name = f"anthropic_{version}"
        self._forms = {"20241022": _first_forms, "20250124": _second_forms, "20251124": _third_forms}[version]
        if version == "20241022":
            self.apart_kinds = frozenset({ir.Click})
            about_click = "left, middle or right once; left twice; no keys held; a point is a mouse_move before it"
            self.notes = {**Anthropic.notes, ir.Click: about_click}
        else:
            self.notes = {**Anthropic.notes, **_LATER_NOTES}

    def forms(self, view: ScreenView) -> tuple[JsonAction, ...]:
        return self._forms(view)

    def opening(self, view: ScreenView) -> list[str]:
        return [
            "Use a mouse and a keyboard to control a computer, by the tool `computer`.",
            f"Coordinates are pixels of the screenshot of {view.image_width}x{view.image_height}, from the top left corner.",
            "You may think in words first. Then write the tool's input as a JSON object, or a list of them, and nothing after it:",
        ]

    def closing(self, view: ScreenView) -> list[str]:
        return [
            "Names of keys are those of X11: Return, Escape, Page_Down, ctrl, super.",
            super().closing(view)[0],
            f"or {self.written(self.words(f'{INFEASIBLE} why'))} when the task cannot be done.",
        ]

    def unwrapped(self, value: Any) -> list[Any]:
        if not isinstance(value, dict) or "action" in value:
            return [value]
        if "content" in value:
            content = value["content"]
            if isinstance(content, str):
                return [FreeText(content)]
            if not isinstance(content, list):
                raise AgentError("the content of a message must be a text or a list of blocks")
            return [item for block in content for item in self.unwrapped(block)] or [FreeText("")]
        if value.get("type") == "text":
            json_schema.check_keys(
                "text",
                value,
                {"type": json_schema.ANYTHING, "text": json_schema.text(), "citations": json_schema.ANYTHING},
                ("text",),
            )
            return [FreeText(value["text"])]
        if value.get("type") in _REASONING_BLOCKS:
            return [FreeText("")]
        if "input" in value:
            json_schema.check_keys("tool_use", value, dict.fromkeys(_OF_A_BLOCK, json_schema.ANYTHING), ())
            if value.get("name") != "computer" or value.get("type", "tool_use") != "tool_use":
                raise AgentError(f"unknown tool {truncate_repr(value.get('name'))}; the only one is computer")
            return [value["input"]]
        return [value]

    def words(self, text: str) -> Any:
        return {"type": "text", "text": text}

    def schema_of_reply(self, actions: list[dict[str, Any]]) -> dict[str, Any]:
        text = json_schema.object_of(type={"const": "text"}, text=json_schema.text())
        return {"oneOf": [*super().schema_of_reply(actions)["oneOf"], text]}


V20241022 = Anthropic("20241022")
V20250124 = Anthropic("20250124")
V20251124 = Anthropic("20251124")
