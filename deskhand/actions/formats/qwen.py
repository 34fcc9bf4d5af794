"""Qwen's function `computer_use`, called in `<tool_call>` tags.

Qwen2.5-VL uses pixels of the image after its own resizing; Qwen3-VL uses 0..1000 of the screen. A reply is reasoning
(optionally in `<think>`, optionally a line "Action: ..."), then `<tool_call>` blocks with `{"name": "computer_use",
"arguments": {"action": ...}}`, such objects without tags, or Qwen3.5's blocks with one tag per argument. The key
`pixels` is notches of the wheel, as in the published agents, which pass it to `pyautogui.scroll`; positive is up and
right. A drag starts at the pointer.

Sources: OSWorld `mm_agents/qwen25vl_agent.py`, `qwen3vl_agent.py`, `evocua/evocua_agent.py` and `owl15_agent.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats import json_fields, json_schema
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.json_fields import Fields, JsonField
from deskhand.actions.formats.json_format import CLICKS, JsonAction, JsonActionFormat
from deskhand.actions.formats.json_scan import NO_REASONING, Found, parse_lenient_values, skip_whitespace, value_at
from deskhand.actions.formats.limits import MAX_NUMBER, MAX_SCROLL_NOTCHES, MAX_WAIT_S, truncate_repr
from deskhand.actions.formats.reply_sections import end_of_reasoning
from deskhand.actions.formats.smart_resize import resized_size
from deskhand.actions.key_names import PYAUTOGUI
from deskhand.actions.ops import REL_1000, Space
from deskhand.actions.pointer_merge import DragTo
from deskhand.errors import AgentError, ParseError

WAIT_SECONDS = 2.0
"""Duration of a wait without `time`: the pause of OSWorld's `step`."""
FUNCTION = "computer_use"
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_XML_FUNCTION = re.compile(r"<function=([^>\s]{1,64})>")
_XML_PARAMETER = re.compile(r"<parameter=([^>\s]{1,64})>\n?")
_XML_END, _XML_PARAMETER_END = "</function>", "</parameter>"
_XML_TEXTS = ("action", "text", "status")
"""Arguments that are texts; the others are JSON."""
_UNTAGGED = re.compile(rf'\{{\s*+"name"\s*+:\s*+"{FUNCTION}"')
_SUCCESS = {"status": "success"}
_ABOUT_KEYS = {
    "keys": "for `key`: names of keys, in order",
    "text": "for `type` and `answer`",
    "coordinate": "(x, y) from the top left corner",
    "pixels": "for `scroll` and `hscroll`: notches of the wheel; positive is up, or right",
    "time": "for `wait`: seconds",
    "status": "for `terminate`",
}


@lru_cache(maxsize=64)
def _json_actions(space: Space) -> tuple[JsonAction, ...]:
    at, must_be_at = json_fields.pair("coordinate", space), json_fields.pair("coordinate", space, required=True)
    center, corner = json_fields.sample_points(space)
    vertical, horizontal = (_wheel(*keys) for keys in ((None, "pixels"), ("pixels", None)))
    where = JsonField({}, ("point",), at.read, at.write, also=at.keys)
    seconds = json_fields.or_default(
        json_fields.number_field("time", "seconds", json_schema.number(0, MAX_WAIT_S)), {"seconds": WAIT_SECONDS}
    )
    status = json_fields.or_default(
        json_fields.choice("status", "status", {"success": ir.Done, "failure": ir.Fail}), {"status": ir.Done}
    )
    held = json_fields.key_list("keys", PYAUTOGUI)
    to = replace(must_be_at, also={"duration": json_schema.number(0, MAX_WAIT_S)})
    about_drag, about_end = "drag with the left button from where the pointer is", "end the work: done, or impossible"
    return (
        JsonAction("key", ir.Key(("ctrl", "s")), "press keys together", json_fields.key_list("keys", PYAUTOGUI)),
        JsonAction("type", ir.Type("hello"), "type the text", json_fields.text_field("text")),
        JsonAction("mouse_move", ir.Move(center), "move the pointer there", must_be_at),
        *(
            JsonAction(name, ir.Click(center, **fixed), f"{about} there, or where the pointer is", at, **fixed)
            for name, (fixed, about) in CLICKS.items()
        ),
        JsonAction("click", None, "", at, make_ops=lambda fields: [ir.Click(**fields)]),
        JsonAction("left_click_drag", DragTo(corner), about_drag, to),
        JsonAction("scroll", ir.Scroll(0, 3), "turn the wheel up or down", where, vertical),
        JsonAction("hscroll", ir.Scroll(3, 0), "turn the wheel left or right", where, horizontal),
        JsonAction("key_down", None, "", held, make_ops=lambda fields: [*map(ir.KeyDown, fields["keys"])]),
        JsonAction("key_up", None, "", held, make_ops=lambda fields: [*map(ir.KeyUp, reversed(fields["keys"]))]),
        JsonAction("wait", ir.Wait(1), "wait for the screen to change", seconds),
        JsonAction("terminate", None, about_end, status, make_ops=_end_ops, sample={"status": "success"}),
        JsonAction("terminate", ir.Done, "", _status("success")),
        JsonAction("terminate", ir.Fail, "", _status("failure"), json_fields.constant("reason")),
        JsonAction("answer", ir.Answer("42"), "the final answer in words", json_fields.text_field("text")),
    )


def _wheel(dx: str | None, dy: str | None) -> JsonField:
    """Return the field of a scroll. Amounts beyond the limit are the most notches: the published agents turn the wheel
    by -1000 as well, which reaches the end of any page."""
    notches = json_fields.wheel(dx, dy, y_sign=-1, whole=False)

    def read(values: json_fields.Values) -> Fields:
        bound = {key: max(-MAX_SCROLL_NOTCHES, min(MAX_SCROLL_NOTCHES, values[key])) for key in notches.keys}
        return notches.read(bound)

    return replace(notches, read=read, also=dict.fromkeys(notches.keys, json_schema.number(-MAX_NUMBER, MAX_NUMBER)))


def _end_ops(fields: Fields) -> list[Any]:
    return [fields["status"]()]


def _status(value: str) -> JsonField:
    return JsonField(
        {"status": json_schema.one_of(value)}, (), lambda values: {}, lambda fields: {"status": value}, ("status",)
    )


class Qwen(JsonActionFormat):
    """The function of one model generation; `absolute` uses pixels of the resized image."""

    tag = "action"
    split_kinds = frozenset({ir.Scroll, DragTo})
    notes: Mapping[type[Any], str] = {
        ir.Click: "left, middle or right once; left twice or three times; no keys held",
        ir.Drag: "left, from one point to another: mouse_move and left_click_drag",
        ir.Scroll: "one direction at a time; no keys held; a point is a mouse_move before it",
        ir.Key: "keys that pyautogui names",
        ir.Wait: f"at most {MAX_WAIT_S:g} s",
    }
    losses: Mapping[type[Any], str] = {ir.Fail: "the reason is omitted"}

    def __init__(self, name: str, *, absolute: bool) -> None:
        self.name = name
        self.absolute = absolute
        self.json_actions = lambda view: _json_actions(self.space(view))

    def space(self, view: ScreenView) -> Space:
        return resized_size(view) if self.absolute else REL_1000

    def prompt(self, view: ScreenView) -> str:
        """Return the function in the layout of Qwen's chat template."""
        space, actions = self.space(view), self.offered(view)
        about = "\n".join(f"* `{action.name}`: {action.about}." for action in actions)
        names = {"type": "string", "enum": [action.name for action in actions], "description": about}
        properties = {"action": names} | {
            key: {name: rule[name] for name in ("type", "enum") if name in rule} | {"description": _ABOUT_KEYS[key]}
            for action in actions
            for key, rule in action.keys.items()
        }
        function = {
            "name": FUNCTION,
            "description": "Use a mouse and a keyboard to control a computer.\n"
            f"* The screen's resolution is {space.width}x{space.height}.",
            "parameters": {"type": "object", "properties": properties, "required": ["action"]},
        }
        click = next(action for action in actions if action.name == "left_click")
        return (
            "# Tools\n\nYou may call functions to assist with the user query. Their signatures are within "
            f"<tools></tools> tags:\n<tools>\n{self.dumps({'type': 'function', 'function': function})}\n</tools>\n\n"
            f"You may think in words first. Each call is a JSON object within {_OPEN}{_CLOSE} "
            f"tags; nothing follows the last:\n{self.reply([self.action(click.name, click.shown)])}"
        )

    def values(self, text: str) -> Found:
        start = text.find(_OPEN, end_of_reasoning(text, NO_REASONING))
        if start < 0:
            return parse_lenient_values(text)
        untagged = _UNTAGGED.search(text, end_of_reasoning(text, NO_REASONING), start)
        if untagged is not None:
            raise ParseError((untagged.start(), start), f"a call without {_OPEN} in front of one with it")
        found: Found = []
        while start < len(text):
            if not text.startswith(_OPEN, start):
                raise ParseError((start, len(text)), "unexpected text after the action")
            begin = skip_whitespace(text, start + len(_OPEN))
            value, end = (_xml_call if text.startswith("<function=", begin) else value_at)(text, begin)
            found.append((value, (begin, end)))
            end = skip_whitespace(text, end)
            if end < len(text) and not text.startswith(_CLOSE, end):
                raise ParseError((end, len(text)), f"expected {_CLOSE} after the call")
            start = skip_whitespace(text, end + len(_CLOSE))
        return found

    def unwrap(self, value: Any) -> list[Any]:
        if not isinstance(value, dict):
            raise AgentError(f"expected an object, not {truncate_repr(value)}")
        keys = ("name", "arguments")
        json_schema.check_keys("a call", value, dict.fromkeys(keys, json_schema.ANYTHING), keys)
        if value["name"] != FUNCTION:
            raise AgentError(f"unknown function {truncate_repr(value['name'])}; the only one is {FUNCTION}")
        arguments = value["arguments"]
        return [_parse_arguments(arguments) if isinstance(arguments, str) else arguments]

    def confirms_end(self, op: Any, action: Any) -> bool:
        """A `terminate` after an `answer` ends the same episode; the published models write both."""
        return isinstance(op, ir.Answer) and action in ({"action": "terminate"}, {"action": "terminate"} | _SUCCESS)

    def reply(self, actions: Sequence[dict[str, Any]]) -> str:
        calls = [{"name": FUNCTION, "arguments": action} for action in actions]
        return "\n".join(f"{_OPEN}\n{self.dumps(call)}\n{_CLOSE}" for call in calls)

    def action_schema(self, name: str, properties: dict[str, Any]) -> dict[str, Any]:
        return json_schema.object_of(name={"const": FUNCTION}, arguments=super().action_schema(name, properties))


def _xml_call(text: str, start: int) -> tuple[Any, int]:
    """Parse Qwen3.5's `<function=NAME>` with one `<parameter=KEY>` per argument; return the call with its end."""
    head = _XML_FUNCTION.match(text, start)
    if head is None:
        raise ParseError((start, len(text)), "expected <function=NAME>")
    arguments: dict[str, Any] = {}
    position = skip_whitespace(text, head.end())
    while not text.startswith(_XML_END, position):
        tag = _XML_PARAMETER.match(text, position)
        end = text.find(_XML_PARAMETER_END, tag.end()) if tag is not None else -1
        if tag is None or end < 0:
            raise ParseError((position, len(text)), f"expected <parameter=KEY>...{_XML_PARAMETER_END} or {_XML_END}")
        if tag[1] in arguments:
            raise ParseError((position, end), f"{truncate_repr(tag[1])} is given twice")
        arguments[tag[1]] = _xml_value(text, tag[1], tag.end(), end)
        position = skip_whitespace(text, end + len(_XML_PARAMETER_END))
    return {"name": head[1], "arguments": arguments}, position + len(_XML_END)


def _xml_value(text: str, key: str, start: int, end: int) -> Any:
    if key in _XML_TEXTS:
        written = text[start:end].removesuffix("\n")
        return written if key == "text" else written.strip()
    value, after = value_at(text, skip_whitespace(text, start))
    if skip_whitespace(text, after) < end or after > end:
        raise ParseError((start, end), f"{truncate_repr(key)} must be one JSON value")
    return value


def _parse_arguments(arguments: str) -> Any:
    try:
        value, end = value_at(arguments, skip_whitespace(arguments, 0))
    except ParseError as error:
        raise AgentError(f"the arguments, {truncate_repr(arguments)}: {error.reason}") from None
    if skip_whitespace(arguments, end) < len(arguments):
        raise AgentError(f"the arguments, {truncate_repr(arguments)}: more than one JSON value")
    return value


QWEN25 = Qwen("qwen25_vl", absolute=True)
QWEN3 = Qwen("qwen3_vl", absolute=False)
