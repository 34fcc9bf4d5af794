"""Anthropic's computer tool in three versions: screenshot pixels, X11 key names, scrolls in notches.

Besides what the tool's documentation says, keys of a chord sequence are separated by spaces ("Down Down", as xdotool
reads it) or given with `repeat`, and a drag takes held keys: models write both, and the meaning is clear.

A reply is a tool input (`{"action": "left_click", "coordinate": [640, 400]}`), a list of inputs, or Messages API
output: `tool_use` blocks, a list of content blocks, a whole message. Text blocks before a tool call are reasoning; a
text-only message ends the episode. Keys held during a click are accepted as `text` or `key` and written as `text`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats import json_fields, json_schema
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.json_fields import Fields, JsonField, sample_points
from deskhand.actions.formats.json_format import CLICKS, INFEASIBLE, FreeText, JsonAction, JsonActionFormat
from deskhand.actions.formats.limits import MAX_OPS, MAX_WAIT_S, truncate_repr
from deskhand.actions.key_names import X11
from deskhand.actions.keys import MODIFIERS
from deskhand.actions.ops import Space
from deskhand.actions.pointer_merge import DragTo
from deskhand.errors import AgentError

_REASONING_BLOCKS = ("thinking", "redacted_thinking")
_BLOCK_KEYS = ("type", "id", "name", "input", "cache_control", "caller")


_HELD_KEYS = json_fields.chord(("text", "key"), X11, "modifiers", required=False)


def _drag(space: Space, *, held: bool = False) -> JsonField:
    """Return the field of a drag from `start_coordinate`, or from the pointer, to `coordinate`.

    `held` accepts keys held meanwhile.
    """
    end = json_fields.pair("coordinate", space, "end", required=True)
    both = json_fields.endpoints(json_fields.pair("start_coordinate", space, "start", required=True), end)

    def read(values: json_fields.Values) -> Fields:
        if "coordinate" not in values:
            raise AgentError("needs the key coordinate")
        path = both.read(values)["path"] if "start_coordinate" in values else (end.read(values)["end"],)
        return {"path": path} | (_HELD_KEYS.read(values) if held else {})

    also = {**_HELD_KEYS.keys, **_HELD_KEYS.also} if held else {}
    return JsonField(both.keys, both.fields, read, both.write, both.required, also, lenient=True)


def _drag_ops(fields: Fields) -> list[Any]:
    path, held = fields["path"], fields.get("modifiers", ())
    return [ir.Drag(path, modifiers=held) if len(path) == 2 else DragTo(*path, modifiers=held)]


def _keys() -> JsonField:
    """Return the field of a chord that also accepts several, and `repeat`."""
    one = json_fields.chord(("text",), X11)

    def read(values: json_fields.Values) -> Fields:
        try:
            chords = [one.read(values)["keys"]]
        except AgentError:
            parts = values["text"].split()
            if len(parts) < 2:
                raise
            chords = [one.read({"text": part})["keys"] for part in parts]
            if any(set(keys) <= set(MODIFIERS) for keys in chords):
                raise  # "ctrl s": a chord without its +, or two presses
        return {"chords": chords * int(values.get("repeat", 1))}

    return replace(one, read=read, also={"repeat": json_schema.integer(1, MAX_OPS)})


def _key_ops(fields: Fields) -> list[Any]:
    if len(fields["chords"]) > MAX_OPS:
        raise AgentError(f"key: {len(fields['chords'])} presses in one action; the most is {MAX_OPS}")
    return [ir.Key(keys) for keys in fields["chords"]]


def _hold_ops(fields: Fields) -> list[Any]:
    keys = fields["keys"]
    return [*map(ir.KeyDown, keys), ir.Wait(fields["seconds"]), *map(ir.KeyUp, reversed(keys))]


def _refuse_cursor_position(fields: Fields) -> list[Any]:
    raise AgentError("cursor_position: where the cursor is cannot be asked; look for it on the screenshot")


@lru_cache(maxsize=64)
def _actions_20241022(view: ScreenView) -> tuple[JsonAction, ...]:
    """Return the actions of 2024-10-22, where clicks have no coordinates."""
    at, (center, corner) = json_fields.pair("coordinate", view.image, required=True), sample_points(view.image)
    about_drag = "drag with the left button from one point to the other"
    return (
        JsonAction("key", ir.Key(("ctrl", "s")), "press a key, or keys together", _keys(), make_ops=_key_ops),
        JsonAction("type", ir.Type("hello"), "type the text", json_fields.text_field("text")),
        JsonAction("mouse_move", ir.Move(center), "move the cursor there", at),
        *(
            JsonAction(name, ir.Click(**fixed), f"{about} where the cursor is", **fixed)
            for name, (fixed, about) in CLICKS.items()
            if name != "triple_click"
        ),
        JsonAction("left_click_drag", ir.Drag((center, corner)), about_drag, _drag(view.image), make_ops=_drag_ops),
        JsonAction("screenshot", ir.Screenshot(), "look again"),
        JsonAction("cursor_position", make_ops=_refuse_cursor_position),
    )


@lru_cache(maxsize=64)
def _actions_20250124(view: ScreenView) -> tuple[JsonAction, ...]:
    at, (center, _) = json_fields.pair("coordinate", view.image), sample_points(view.image)
    keys, sample = json_fields.chord(("text",), X11), {"text": "shift", "duration": 1}
    seconds = json_fields.number_field("duration", "seconds", json_schema.number(0, MAX_WAIT_S))
    wheel = json_fields.direction(("scroll_direction",), "scroll_amount")
    return (
        *(
            JsonAction(old.name, old.example, old.about, _drag(view.image, held=True), make_ops=_drag_ops)
            if old.name == "left_click_drag"
            else old
            for old in _actions_20241022(view)
            if old.name not in CLICKS
        ),
        *(
            JsonAction(
                name, ir.Click(center, **fixed), f"{about} there, or where the cursor is", at, _HELD_KEYS, **fixed
            )
            for name, (fixed, about) in CLICKS.items()
        ),
        JsonAction("left_mouse_down", ir.MouseDown(), "press the left button and hold it", at, button="left"),
        JsonAction("left_mouse_up", ir.MouseUp(), "release the left button", at, button="left"),
        JsonAction("scroll", ir.Scroll(0, 3, center), "turn the wheel by scroll_amount notches", at, wheel, _HELD_KEYS),
        JsonAction(
            "hold_key", None, "hold keys down for duration seconds", keys, seconds, make_ops=_hold_ops, sample=sample
        ),
        JsonAction("wait", ir.Wait(1), "wait for duration seconds", seconds),
    )


@lru_cache(maxsize=64)
def _actions_20251124(view: ScreenView) -> tuple[JsonAction, ...]:
    region, (center, corner) = json_fields.corners("region", view.image), sample_points(view.image)
    about = "look at the rectangle [left, top, right, bottom]"
    return (*_actions_20250124(view), JsonAction("zoom", ir.Zoom(corner, center), about, region))


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
    ends_with_text = True
    notes: Mapping[type[Any], str] = {
        ir.Drag: "left, from one point to another; no keys held",
        ir.Done: "a message without words",
        ir.Fail: f"a message that begins with {INFEASIBLE}",
        ir.Answer: "a message of words",
    }

    def __init__(
        self,
        version: str,
        json_actions: Callable[[ScreenView], tuple[JsonAction, ...]],
        notes: Mapping[type[Any], str],
        *split_kinds: type[Any],
    ) -> None:
        self.name, self.notes = f"anthropic_{version}", {**Anthropic.notes, **notes}
        self.json_actions, self.split_kinds = json_actions, frozenset(split_kinds)

    def opening(self, view: ScreenView) -> list[str]:
        return [
            "Use a mouse and a keyboard to control a computer, by the tool `computer`.",
            f"Coordinates are pixels of the screenshot of {view.image_width}x{view.image_height}, "
            "from the top left corner.",
            "You may think in words first. Then write the tool's input as a JSON object, or a list "
            "of them, and nothing after it:",
        ]

    def closing(self, view: ScreenView) -> list[str]:
        return [
            "Names of keys are those of X11: Return, Escape, Page_Down, ctrl, super.",
            super().closing(view)[0],
            f"or {self.dumps(self.text_value(f'{INFEASIBLE} why'))} when the task cannot be done.",
        ]

    def unwrap(self, value: Any) -> list[Any]:
        if not isinstance(value, dict) or "action" in value:
            return [value]
        if "content" in value:
            content = value["content"]
            if isinstance(content, str):
                return [FreeText(content)]
            if not isinstance(content, list):
                raise AgentError("the content of a message must be a text or a list of blocks")
            return [item for block in content for item in self.unwrap(block)] or [FreeText("")]
        if value.get("type") == "text":
            rules = dict.fromkeys(("type", "text", "citations"), json_schema.ANYTHING) | {"text": json_schema.text()}
            json_schema.check_keys("text", value, rules, ("text",))
            return [FreeText(value["text"])]
        if value.get("type") in _REASONING_BLOCKS:
            return [FreeText("")]
        if "input" in value:
            json_schema.check_keys("tool_use", value, dict.fromkeys(_BLOCK_KEYS, json_schema.ANYTHING), ())
            if value.get("name") != "computer" or value.get("type", "tool_use") != "tool_use":
                raise AgentError(f"unknown tool {truncate_repr(value.get('name'))}; the only one is computer")
            return [value["input"]]
        return [value]

    def text_value(self, text: str) -> Any:
        return {"type": "text", "text": text}

    def reply_schema(self, actions: list[dict[str, Any]]) -> dict[str, Any]:
        text = json_schema.object_of(type={"const": "text"}, text=json_schema.text())
        return {"oneOf": [*super().reply_schema(actions)["oneOf"], text]}


_ABOUT_CLICK = "left, middle or right once; left twice; no keys held; a point is a mouse_move before it"
V20241022 = Anthropic("20241022", _actions_20241022, {ir.Click: _ABOUT_CLICK}, ir.Click)
V20250124 = Anthropic("20250124", _actions_20250124, _LATER_NOTES)
V20251124 = Anthropic("20251124", _actions_20251124, _LATER_NOTES)
