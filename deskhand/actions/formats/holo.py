"""Holo: one JSON object per step with a note, a thought and an action. `holo1_5` is for Holo1 and Holo1.5, `holo` for
Holo2 and Holo3.

`holo1_5` has `{"note", "thought", "action": {"action": "click_element", ...}}` in pixels of the image as resized by
Qwen2.5-VL; `holo` has `{"note", "thought", "tool_call": {"tool_name": "click", ...}}` in 0..1000 of the screen, and
reads Holo3.1's function calls. The models take their actions from the schema in the prompt. The published ones are for
a browser (`click_element`, `write_element`, `scroll`, `go_back`, `refresh`, `goto`, `wait`, `answer`; `click`, `write`,
`answer`); the others here, such as `hotkey` and `drag`, are Deskhand's, for a desktop. `restart` is refused. A place
alone, which the models give as localizers, is a click.

Sources: hcompai/hai-cookbook at 2ba89619, `utils/navigation.py` and the notebooks of Holo1.5 and Holo2;
hcompai/surfer-h-cli at b054d8eb, `skills/navigation_models.py` and `surferh.py`; hub.hcompany.ai, "Agent loop".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats import json_fields, json_schema
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.json_fields import Fields, JsonField
from deskhand.actions.formats.json_format import JsonAction, JsonActionFormat
from deskhand.actions.formats.json_scan import NO_REASONING, Found, parse_lenient_values, skip_whitespace, value_at
from deskhand.actions.formats.limits import MAX_WAIT_S, truncate_repr
from deskhand.actions.formats.reply_sections import end_of_reasoning
from deskhand.actions.formats.smart_resize import resized_size
from deskhand.actions.formats.tool_calls import call_arguments, call_name, find_calls
from deskhand.actions.key_names import PYAUTOGUI
from deskhand.actions.ops import REL_1000, Space
from deskhand.errors import AgentError, ParseError

NOTCHES = 5
"""Wheel notches of a scroll without an amount."""
WAIT_SECONDS = 2
_NOTES = ("note", "notes", "thought")
_JSON = re.compile(r'\{\s*+"')
_CLICKS: dict[str, tuple[dict[str, Any], str]] = {
    "double_click": ({"button": "left", "count": 2}, "click the left button twice"),
    "triple_click": ({"button": "left", "count": 3}, "click the left button three times"),
    "right_click": ({"button": "right", "count": 1}, "click the right button"),
    "middle_click": ({"button": "middle", "count": 1}, "click the middle button"),
}


_BROWSER = {"go_back": ir.Key(("alt", "left")), "refresh": ir.Key(("f5",))}


def _write_at_ops(fields: Fields) -> list[Any]:
    """Click the field, clear it, write and press Return, as the published agents do."""
    cleared = [ir.Key(("ctrl", "a")), ir.Key(("backspace",))]
    return [ir.Click(fields["point"]), *cleared, ir.Type(fields["content"]), ir.Key(("enter",))]


def _always(op: ir.Op) -> Callable[[Fields], list[Any]]:
    return lambda fields: [op]


def _answer_ops(fields: Fields) -> list[Any]:
    return [ir.Answer(fields["text"]) if fields["text"].strip() else ir.Done()]


def _words(text: str) -> str:
    if not text.strip():
        raise AgentError("an answer needs a word; one without means that the work is done")
    return text


@lru_cache(maxsize=64)
def _json_actions(space: Space, click: str) -> tuple[JsonAction, ...]:
    center, corner = json_fields.sample_points(space)
    named = JsonField({"element": json_schema.text()}, (), lambda values: {}, lambda fields: {})
    at, maybe_at = json_fields.xy(space, required=True), json_fields.xy(space)
    drag = json_fields.endpoints(
        json_fields.xy(space, "start", required=True),
        json_fields.xy(space, "end", ("end_x", "end_y"), required=True),
    )
    turn = json_fields.direction(("direction",), "amount", default=NOTCHES)
    content = json_fields.single("content", "content", json_schema.text(), str, str)
    reason = json_fields.text_field("reason", "reason")
    answer = json_fields.single("content", "text", json_schema.text(), str, _words)
    done = JsonField({"content": json_schema.text()}, (), lambda _: {}, lambda _: {"content": ""}, ("content",))
    seconds = json_fields.number_field("seconds", "seconds", json_schema.number(0, MAX_WAIT_S), WAIT_SECONDS)
    left: dict[str, Any] = {"button": "left", "count": 1}
    write_at = {"content": "hello", "element": "the search field", "x": center.x, "y": center.y}
    return (
        JsonAction(click, ir.Click(center, **left), "click the left button there", named, at, **left),
        *(
            JsonAction(name, ir.Click(center, **fixed), f"{about} there", named, at, **fixed)
            for name, (fixed, about) in _CLICKS.items()
        ),
        JsonAction("hover", ir.Move(center), "move the pointer there", named, at),
        JsonAction("drag", ir.Drag((center, corner)), "drag with the left button from x, y to end_x, end_y", drag),
        JsonAction("scroll", ir.Scroll(0, 3, center), "turn the wheel by notches", turn, maybe_at),
        JsonAction("write", ir.Type("hello"), "type where the focus is", json_fields.text_field("content", "text")),
        *(
            JsonAction(
                name, None, "click the field, clear it, type, and press Return", content, named, at,
                make_ops=_write_at_ops, sample=write_at if name == "write_element" else None,
            )
            for name in ("write_element", "write_element_abs")
        ),
        JsonAction("hotkey", ir.Key(("ctrl", "s")), "press keys together", json_fields.key_list("keys", PYAUTOGUI)),
        *(
            JsonAction(name, None, f"{name.replace('_', ' ')} in the browser", make_ops=_always(key), sample={})
            for name, key in _BROWSER.items()
        ),
        JsonAction(
            "goto", None, "open a page in the browser", json_fields.single("url", "url", json_schema.text(1), str, str),
            make_ops=lambda fields: [ir.Key(("ctrl", "l")), ir.Type(fields["url"]), ir.Key(("enter",))],
            sample={"url": "https://example.org"},
        ),
        JsonAction("wait", ir.Wait(WAIT_SECONDS), "wait for the screen to change", seconds),
        JsonAction(
            "answer", None, "end the work with an answer, which is empty if there is nothing to say",
            json_fields.text_field("content", "text"), make_ops=_answer_ops, sample={"content": "It is 42."},
        ),
        JsonAction("answer", ir.Done, "", done),
        JsonAction("answer", ir.Answer, "", answer),
        JsonAction("give_up", ir.Fail("no such file"), "the task cannot be done", reason),
        JsonAction("click_absolute", None, "", at, make_ops=lambda fields: [ir.Click(**fields)]),
    )  # fmt: skip


class Holo(JsonActionFormat):
    """The layout of one generation: `call` is the key of the action, `tag` that of its name."""

    max_actions = 1
    notes: Mapping[type[Any], str] = {
        ir.Click: "at a point; left, middle or right once, left twice or three times; no keys held",
        ir.Drag: "left, from one point to another; no keys held",
        ir.Scroll: "one direction at a time; no keys held",
        ir.Key: "keys that pyautogui names",
        ir.Wait: f"at most {MAX_WAIT_S:g} s",
        ir.Answer: "at least one word",
    }

    def __init__(self, name: str, call: str, tag: str, click: str, *, absolute: bool) -> None:
        self.name, self.call, self.tag, self.click, self.absolute = name, call, tag, click, absolute
        self.json_actions = lambda view: _json_actions(self.space(view), click)

    def space(self, view: ScreenView) -> Space:
        return resized_size(view) if self.absolute else REL_1000

    def opening(self, view: ScreenView) -> list[str]:
        space, click = self.space(view), self.offered(view)[0]
        pixels = (
            f"are pixels of the image that you see, {space.width:g}x{space.height:g}; (0, 0) is the top left corner."
        )
        share = "run from 0 to 1000 over the screen's width and height, from the top left corner."
        return [
            "You control a desktop. Each step you get a screenshot and answer with one JSON object and nothing else:",
            self.reply([self.action(click.name, click.shown)]),
            "note: what later steps need to know of this screen, or empty. thought: why you do the action, in a line.",
            f"x and y {pixels if self.absolute else share}",
            "element, which comes before them, names the target.",
            f"The objects under {self.call}:",
        ]

    def values(self, text: str) -> Found:
        start = end_of_reasoning(text, NO_REASONING)
        tag = text.find("<tool_call>", start)
        in_tags = tag >= 0 and _JSON.search(text, start, tag) is None
        return find_calls(text, "", _xml_value) if in_tags else parse_lenient_values(text)

    def unwrap(self, value: Any) -> list[Any]:
        if isinstance(value, dict) and "name" in value and "arguments" in value:
            name, arguments = call_name(value), call_arguments(value)
            if not isinstance(arguments, dict):
                raise AgentError(f"the arguments of {truncate_repr(name)} must be an object")
            return [{self.tag: name, **arguments}]
        if not isinstance(value, dict) or isinstance(value.get(self.tag), str):
            return [value]
        if set(value) == {"x", "y"}:
            return [{self.tag: self.click, **value}]
        keys = (*_NOTES, self.call)
        json_schema.check_keys("a step", value, dict.fromkeys(keys, json_schema.ANYTHING), (self.call,))
        return [value[self.call]]

    def reply(self, actions: Sequence[dict[str, Any]]) -> str:
        return self.dumps({"note": "", "thought": "", self.call: actions[0]})

    def action_schema(self, name: str, properties: dict[str, Any]) -> dict[str, Any]:
        words = json_schema.text()
        return json_schema.object_of(note=words, thought=words, **{self.call: super().action_schema(name, properties)})


def _xml_value(text: str, key: str, start: int, end: int) -> Any:
    """Read an argument of a function call in XML: JSON, or a text if it is not JSON."""
    written = text[start:end].strip()
    try:
        value, after = value_at(written, skip_whitespace(written, 0))
    except ParseError:
        return written
    return value if after == len(written) and key not in ("content", "element", "reason", "url") else written


HOLO1_5 = Holo("holo1_5", "action", "action", "click_element", absolute=True)
HOLO = Holo("holo", "tool_call", "tool_name", "click", absolute=False)
