"""OpenAI's computer tool: the preview version (one action per call) and the general one (a batch).

Coordinates are pixels of the screenshot; scrolls are in pixels, positive right and down. A reply is an action
(`{"type": "click", ...}`), a list of actions (general version), or Responses API output: a `computer_call` with
`action` or `actions`, a list of items, a whole response. Messages before a call are reasoning; a message alone ends
the episode. Capital letters name keys: ["CTRL", "C"] is ctrl and c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats import json_fields, json_schema
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.json_fields import Fields, JsonField, Values
from deskhand.actions.formats.json_format import INFEASIBLE, FreeText, JsonAction, JsonActionFormat
from deskhand.actions.key_names import OPENAI
from deskhand.errors import AgentError

PIXELS_PER_NOTCH = 120
WAIT_S = 2.0
"""Duration of a wait in the vendor's samples."""
_BUTTONS = {"left": "left", "right": "right", "wheel": "middle", "back": "back", "forward": "forward"}
_CALL_KEYS = ("type", "id", "call_id", "status", "pending_safety_checks", "action", "actions")
_MESSAGE_KEYS = ("type", "id", "role", "status", "content", "phase")


def _move_ops(fields: Fields) -> list[Any]:
    keys = fields.get("modifiers", ())
    return [*map(ir.KeyDown, keys), ir.Move(fields["point"]), *map(ir.KeyUp, reversed(keys))]


def _move_keys() -> JsonField:
    """Return the field of keys held during a move, which `Move` does not have."""
    keys = json_fields.key_list("keys", OPENAI, "modifiers", required=False)
    return JsonField({}, (), keys.read, lambda fields: {}, also=keys.keys)


@lru_cache(maxsize=64)
def _json_actions(view: ScreenView) -> tuple[JsonAction, ...]:
    at = json_fields.xy(view.image, required=True)
    center, corner = json_fields.sample_points(view.image)
    held = json_fields.key_list("keys", OPENAI, "modifiers", required=False)
    button, path = json_fields.choice("button", "button", _BUTTONS), json_fields.path("path", view.image, named=True)
    wheel = json_fields.wheel("scroll_x", "scroll_y", unit=PIXELS_PER_NOTCH)
    about_twice = "click the left button twice"
    about_scroll = f"turn the wheel, {PIXELS_PER_NOTCH} pixels to the notch; positive is right and down"
    return (
        JsonAction("click", ir.Click(center), "click there; wheel is the middle button", button, at, held, count=1),
        JsonAction("double_click", ir.Click(center, count=2), about_twice, at, held, button="left", count=2),
        JsonAction("drag", ir.Drag((center, corner)), "hold the left button along the path", path, held, button="left"),
        JsonAction("keypress", ir.Key(("ctrl", "s")), "press keys together", json_fields.key_list("keys", OPENAI)),
        JsonAction("move", ir.Move(center), "move the pointer there", at, _move_keys(), make_ops=_move_ops),
        JsonAction("screenshot", ir.Screenshot(), "look again"),
        JsonAction("scroll", ir.Scroll(0, 3, center), about_scroll, at, wheel, held),
        JsonAction("type", ir.Type("hello"), "type the text", json_fields.text_field("text")),
        JsonAction("wait", ir.Wait(WAIT_S), "wait for the screen to change", json_fields.constant("seconds", WAIT_S)),
    )


class OpenAI(JsonActionFormat):
    """One version of the tool."""

    json_actions = staticmethod(_json_actions)
    tag = "type"
    ends_with_text = True
    notes: Mapping[type[Any], str] = {
        ir.Click: "at a point; any button once, left twice",
        ir.Drag: "left",
        ir.Scroll: "at a point",
        ir.Key: "characters without case: shift is a key of its own",
        ir.Done: "a message without words",
        ir.Fail: f"a message that begins with {INFEASIBLE}",
        ir.Answer: "a message of words",
    }
    losses: Mapping[type[Any], str] = {ir.Wait: f"any time becomes {WAIT_S:g} seconds"}

    def __init__(self, name: str, max_actions: int) -> None:
        self.name = name
        self.max_actions = max_actions

    def opening(self, view: ScreenView) -> list[str]:
        batch = self.max_actions > 1
        call = {"type": "computer_call", "actions": ["..."]} if batch else {"type": "computer_call", "action": "..."}
        return [
            "Use a mouse and a keyboard to control a computer.",
            f"Coordinates are pixels of the screenshot of {view.image_width}x{view.image_height}, "
            "from the top left corner.",
            f"You may think in words first. Then write {self.dumps(call)}, and nothing after it,",
            "with a list of actions that are performed in order:" if batch else "with one action:",
        ]

    def unwrap(self, value: Any) -> list[Any]:
        if not isinstance(value, dict):
            return [value]
        if "output" in value and "type" not in value:
            if not isinstance(value["output"], list):
                raise AgentError("the output of a response must be a list of items")
            return [item for inner in value["output"] for item in self.unwrap(inner)] or [FreeText("")]
        kind = value.get("type")
        if kind == "computer_call":
            return self._call_actions(value)
        if kind == "reasoning":
            return [FreeText("")]
        if kind == "message":
            return [FreeText(_message_text(value))]
        if kind is None and "actions" in value:
            return self._call_actions({"type": "computer_call", **value})
        return [value]

    def _call_actions(self, call: Values) -> list[Any]:
        json_schema.check_keys("computer_call", call, dict.fromkeys(_CALL_KEYS, json_schema.ANYTHING), ())
        one, batch = call.get("action"), call.get("actions")
        if (one is None) == (batch is None):
            raise AgentError("computer_call needs action or actions, and not both")
        if batch is None:
            return [one]
        json_schema.check("computer_call.actions", batch, json_schema.items(json_schema.ANYTHING, 1, 1000))
        return list(batch)

    def text_value(self, text: str) -> Any:
        return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}

    def reply(self, actions: Sequence[dict[str, Any]]) -> str:
        call = {"actions": list(actions)} if self.max_actions > 1 else {"action": actions[0]}
        return self.dumps({"type": "computer_call", **call})

    def reply_schema(self, actions: list[dict[str, Any]]) -> dict[str, Any]:
        one = {"oneOf": actions}
        acts = {"actions": json_schema.items(one, 1, self.max_actions)} if self.max_actions > 1 else {"action": one}
        call = json_schema.object_of(type={"const": "computer_call"}, **acts)
        text = json_schema.object_of(type={"const": "output_text"}, text=json_schema.text())
        content, role = json_schema.items(text, 1, 1), {"const": "assistant"}
        return {"oneOf": [call, json_schema.object_of(type={"const": "message"}, role=role, content=content)]}


def _message_text(message: Values) -> str:
    json_schema.check_keys("message", message, dict.fromkeys(_MESSAGE_KEYS, json_schema.ANYTHING), ("content",))
    content = message["content"]
    if isinstance(content, str):
        return content
    part = {"type": "object", "properties": _TEXT_PART, "required": ["text"]}
    json_schema.check("message.content", content, json_schema.items(part, 0, 1000))
    return "".join(part["text"] for part in content)


_TEXT_PART = {
    "text": json_schema.text(),
    "type": json_schema.one_of("output_text"),
    "annotations": json_schema.ANYTHING,
    "logprobs": json_schema.ANYTHING,
}

PREVIEW = OpenAI("openai_preview", 1)
GA = OpenAI("openai_ga", 64)
