"""OpenAI's computer tool: the preview with one action a call, the general one with a batch. Invariant: coordinates are pixels of
the image that the model sees, and the wheel turns by pixels, positive to the right and downwards.

A reply is an action (`{"type": "click", ...}`), a list of actions in the general tool, or what the Responses API returns: a
`computer_call` with `action` or `actions`, a list of output items, a whole response. Messages before a call are reasoning; a
message alone ends the work. A key in capitals is that key: ["CTRL", "C"] is ctrl and c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats import json_fields, json_schema
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.json_fields import Fields, JsonAction, JsonField, Values
from deskhand.actions.formats.json_format import INFEASIBLE, FreeText, JsonActionFormat
from deskhand.actions.key_names import OPENAI
from deskhand.actions.ops import Point
from deskhand.errors import AgentError

PIXELS_PER_NOTCH = 120
WAIT_S = 2.0
"""What a wait without a duration waits, in the vendor's samples."""
_BUTTONS = {"left": "left", "right": "right", "wheel": "middle", "back": "back", "forward": "forward"}
_OF_A_CALL = ("type", "id", "call_id", "status", "pending_safety_checks", "action", "actions")
_OF_A_MESSAGE = ("type", "id", "role", "status", "content", "phase")


def _moved(fields: Fields) -> list[Any]:
    """A move with keys held down."""
    keys = fields.get("modifiers", ())
    return [*map(ir.KeyDown, keys), ir.Move(fields["point"]), *map(ir.KeyUp, reversed(keys))]


def _move_keys() -> JsonField:
    """Keys that are held during a move, which is no part of a `Move`."""
    keys = json_fields.key_list("keys", OPENAI, "modifiers", required=False)
    return JsonField({}, (), keys.read, lambda fields: {}, also=keys.keys)


@lru_cache(maxsize=64)
def _forms(view: ScreenView) -> tuple[JsonAction, ...]:
    at = json_fields.xy(view.image, required=True)
    centre = Point(view.image_width // 2, view.image_height // 3, view.image)
    corner = Point(view.image_width // 4, view.image_height // 5, view.image)
    held = json_fields.key_list("keys", OPENAI, "modifiers", required=False)
    button, path = json_fields.choice("button", "button", _BUTTONS), json_fields.path("path", view.image, named=True)
    wheel = json_fields.wheel("scroll_x", "scroll_y", unit=PIXELS_PER_NOTCH)
    about_scroll = f"turn the wheel, {PIXELS_PER_NOTCH} pixels to the notch; positive is right and down"
    return (
        JsonAction("click", ir.Click(centre), "click there; wheel is the middle button", button, at, held, count=1),
        JsonAction(
            "double_click", ir.Click(centre, count=2), "click the left button twice", at, held, button="left", count=2
        ),
        JsonAction("drag", ir.Drag((centre, corner)), "hold the left button along the path", path, held, button="left"),
        JsonAction("keypress", ir.Key(("ctrl", "s")), "press keys together", json_fields.key_list("keys", OPENAI)),
        JsonAction("move", ir.Move(centre), "move the pointer there", at, _move_keys(), reads=_moved),
        JsonAction("screenshot", ir.Screenshot(), "look again"),
        JsonAction("scroll", ir.Scroll(0, 3, centre), about_scroll, at, wheel, held),
        JsonAction("type", ir.Type("hello"), "type the text", json_fields.text_field("text")),
        JsonAction("wait", ir.Wait(WAIT_S), "wait for the screen to change", json_fields.constant("seconds", WAIT_S)),
    )


class OpenAI(JsonActionFormat):
    """One form of the tool."""

    tag = "type"
    ends_by_words = True
    notes: Mapping[type[Any], str] = {
        ir.Click: "at a point; any button once, left twice",
        ir.Drag: "left",
        ir.Scroll: "at a point",
        ir.Key: "characters without case: shift is a key of its own",
        ir.Done: "a message without words",
        ir.Fail: f"a message that begins with {INFEASIBLE}",
        ir.Answer: "a message of words",
    }
    losses: Mapping[type[Any], str] = {ir.Wait: f"waits {WAIT_S:g} s, whatever was asked"}

    def __init__(self, name: str, most: int) -> None:
        self.name = name
        self.most = most

    def forms(self, view: ScreenView) -> tuple[JsonAction, ...]:
        return _forms(view)

    def opening(self, view: ScreenView) -> list[str]:
        batch = self.most > 1
        call = {"type": "computer_call", "actions": ["..."]} if batch else {"type": "computer_call", "action": "..."}
        return [
            "Use a mouse and a keyboard to control a computer.",
            f"Coordinates are pixels of the screenshot of {view.image_width}x{view.image_height}, from the top left corner.",
            f"You may think in words first. Then write {self.written(call)}, and nothing after it,",
            "with a list of actions that are performed in order:" if batch else "with one action:",
        ]

    def unwrapped(self, value: Any) -> list[Any]:
        if not isinstance(value, dict):
            return [value]
        if "output" in value and "type" not in value:
            if not isinstance(value["output"], list):
                raise AgentError("the output of a response must be a list of items")
            return [item for inner in value["output"] for item in self.unwrapped(inner)] or [FreeText("")]
        kind = value.get("type")
        if kind == "computer_call":
            return self._called(value)
        if kind == "reasoning":
            return [FreeText("")]
        if kind == "message":
            return [FreeText(_message_text(value))]
        if kind is None and "actions" in value:
            return self._called({"type": "computer_call", **value})
        return [value]

    def _called(self, call: Values) -> list[Any]:
        json_schema.check_keys("computer_call", call, dict.fromkeys(_OF_A_CALL, json_schema.ANYTHING), ())
        one, batch = call.get("action"), call.get("actions")
        if (one is None) == (batch is None):
            raise AgentError("computer_call needs action or actions, and not both")
        if batch is None:
            return [one]
        json_schema.check("computer_call.actions", batch, json_schema.items(json_schema.ANYTHING, 1, 1000))
        return list(batch)

    def words(self, text: str) -> Any:
        return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}

    def reply(self, actions: Sequence[dict[str, Any]]) -> str:
        call = {"actions": list(actions)} if self.most > 1 else {"action": actions[0]}
        return self.written({"type": "computer_call", **call})

    def schema_of_reply(self, actions: list[dict[str, Any]]) -> dict[str, Any]:
        one = {"oneOf": actions}
        key, inner = ("actions", json_schema.items(one, 1, self.most)) if self.most > 1 else ("action", one)
        call = json_schema.object_of(type={"const": "computer_call"}, **{key: inner})
        text = json_schema.object_of(type={"const": "output_text"}, text=json_schema.text())
        content = json_schema.items(text, 1, 1)
        return {
            "oneOf": [
                call,
                json_schema.object_of(type={"const": "message"}, role={"const": "assistant"}, content=content),
            ]
        }


def _message_text(message: Values) -> str:
    """The text of a message item: of its parts, or its content itself."""
    json_schema.check_keys("message", message, dict.fromkeys(_OF_A_MESSAGE, json_schema.ANYTHING), ("content",))
    content = message["content"]
    if isinstance(content, str):
        return content
    json_schema.check(
        "message.content",
        content,
        json_schema.items({"type": "object", "properties": _TEXT_PART, "required": ["text"]}, 0, 1000),
    )
    return "".join(part["text"] for part in content)


_TEXT_PART = {
    "text": json_schema.text(),
    "type": json_schema.one_of("output_text"),
    "annotations": json_schema.ANYTHING,
    "logprobs": json_schema.ANYTHING,
}

PREVIEW = OpenAI("openai_preview", 1)
GA = OpenAI("openai_ga", 64)
