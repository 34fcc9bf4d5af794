"""OSWorld's action space computer_13, in screen pixels, with the wheel positive upwards.

Thirteen actions and WAIT, FAIL, DONE, written as `{"action_type": T, "parameters": {...}}` or with the parameters next
to the type; the last three may be bare words. One SCROLL unit is one notch, as in PyAutoGUI on Linux. Buttons and
scrolls act at the pointer, and DRAG_TO starts there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats import json_fields, json_schema
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.json_fields import Values
from deskhand.actions.formats.json_format import JsonAction, JsonActionFormat
from deskhand.actions.formats.json_scan import Found, Word, parse_lenient_values
from deskhand.actions.key_names import PYAUTOGUI
from deskhand.actions.ops import Point
from deskhand.actions.pointer_merge import DragTo
from deskhand.errors import AgentError

WAIT_S = 2.0
"""Duration of WAIT: OSWorld's pause after an action."""
_WORDS = frozenset({"WAIT", "FAIL", "DONE"})
_BUTTONS = {name: name for name in ("left", "middle", "right")}


@lru_cache(maxsize=64)
def _json_actions(view: ScreenView) -> tuple[JsonAction, ...]:
    screen = view.screen
    at, must_be_at = json_fields.xy(screen, whole=False), json_fields.xy(screen, required=True, whole=False)
    button = json_fields.choice("button", "button", _BUTTONS, "left")
    center, other = json_fields.sample_points(screen)[0], Point(view.screen_width // 4, 0, screen)
    clicks = json_fields.number_field("num_clicks", "count", json_schema.integer(1, 3), 1)
    about_click = "click the left button, or the one given, at the position, or where the cursor is"
    wheel = json_fields.wheel("dx", "dy", y_sign=-1, lenient=True)
    keys, waited = json_fields.key_list("keys", PYAUTOGUI), json_fields.constant("seconds", WAIT_S)
    return (
        JsonAction("MOVE_TO", ir.Move(center), "move the cursor to the specified position", must_be_at),
        JsonAction("CLICK", ir.Click(center), about_click, button, at, clicks),
        JsonAction("MOUSE_DOWN", ir.MouseDown(), "press the button where the cursor is", button),
        JsonAction("MOUSE_UP", ir.MouseUp(), "release the button", button),
        JsonAction("RIGHT_CLICK", ir.Click(center, "right"), "right click there", at, button="right"),
        JsonAction("DOUBLE_CLICK", ir.Click(center, count=2), "double click there", at, count=2),
        JsonAction("DRAG_TO", DragTo(other), "drag from where the cursor is with the left button", must_be_at),
        JsonAction("SCROLL", ir.Scroll(0, 3), "turn the wheel; dx positive is right, dy positive is up", wheel),
        JsonAction("TYPING", ir.Type("hello"), "type the text", json_fields.text_field("text")),
        JsonAction("PRESS", ir.Key(("enter",)), "press the key and release it", _single_key()),
        JsonAction("KEY_DOWN", ir.KeyDown("shift"), "press the key", json_fields.key_name("key", PYAUTOGUI)),
        JsonAction("KEY_UP", ir.KeyUp("shift"), "release the key", json_fields.key_name("key", PYAUTOGUI)),
        JsonAction("HOTKEY", ir.Key(("ctrl", "s")), "press the keys together", keys),
        JsonAction("WAIT", ir.Wait(WAIT_S), "wait until the next action", waited),
        JsonAction("FAIL", ir.Fail(), "the task cannot be done", json_fields.constant("reason")),
        JsonAction("DONE", ir.Done(), "the task is done"),
    )


def _single_key() -> json_fields.JsonField:
    def write(keys: tuple[str, ...]) -> str:
        if len(keys) != 1:
            raise AgentError("it presses one key")
        return PYAUTOGUI.write_in_json(keys[0])

    rule = json_fields.key_name("key", PYAUTOGUI).keys["key"]
    return json_fields.single("key", "keys", rule, lambda name: (PYAUTOGUI.read(name),), write)


class Computer13(JsonActionFormat):
    json_actions = staticmethod(_json_actions)
    name = "computer_13"
    tag = "action_type"
    split_kinds = frozenset({ir.MouseDown, ir.MouseUp, ir.Scroll, DragTo})
    notes: Mapping[type[Any], str] = {
        ir.Click: "left, middle or right; no keys held",
        ir.MouseDown: "left, middle or right; a point is a MOVE_TO before it",
        ir.MouseUp: "left, middle or right; a point is a MOVE_TO before it",
        ir.Drag: "left, from one point to another: MOVE_TO and DRAG_TO",
        ir.Scroll: "no keys held; a point is a MOVE_TO before it",
        ir.Key: "keys that pyautogui names",
    }
    losses: Mapping[type[Any], str] = {
        ir.Wait: f"any time becomes {WAIT_S:g} seconds",
        ir.Fail: "the reason is omitted",
    }

    def opening(self, view: ScreenView) -> list[str]:
        return [
            "For each screenshot reply with the next action as JSON in a code fence (or with "
            "several, in a fence each):",
            self.emit([ir.Done()], view),
            f"x and y are pixels of the screen of {view.screen_width}x{view.screen_height}, from its "
            "top left corner. The actions:",
        ]

    def closing(self, view: ScreenView) -> list[str]:
        return ["WAIT, FAIL and DONE may stand as bare words in a code fence; nothing may follow FAIL or DONE."]

    def values(self, text: str) -> Found:
        return parse_lenient_values(text, _WORDS)

    def split_name(self, action: Any) -> tuple[str, Values]:
        if isinstance(action, Word):
            return action, {}
        name, values = super().split_name(action)
        inner = values.get("parameters")
        if "parameters" not in values:
            return name, values
        if not isinstance(inner, dict) or len(values) > 1:
            raise AgentError("parameters must be an object, with no parameters beside it")
        return name, self.without_keys(inner)

    def action(self, name: str, values: Values) -> dict[str, Any]:
        return {"action_type": name} | ({"parameters": dict(values)} if values else {})

    def reply(self, actions: Sequence[dict[str, Any]]) -> str:
        return "\n".join(f"```json\n{self.dumps(action)}\n```" for action in actions)

    def action_schema(self, name: str, properties: dict[str, Any]) -> dict[str, Any]:
        made = {"type": "object", "properties": {"action_type": {"const": name}}, "required": ["action_type"]}
        if properties["properties"]:
            made["properties"]["parameters"] = properties
            made["required"] += ["parameters"] if properties["required"] else []
        return made | {"additionalProperties": False}


FORMAT = Computer13()
