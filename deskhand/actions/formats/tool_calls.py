"""`ToolCallFormat`: one function, called in `<tool_call>` tags as JSON or as XML. Base of the formats of Qwen, EvoCUA,
Fara, GUI-Owl and MAI-UI; Holo reads its calls with `find_calls`.

A reply is reasoning, then `<tool_call>` blocks with `{"name": ..., "arguments": {"action": ...}}`, or with
`<function=NAME>` and one `<parameter=KEY>` per argument, which Qwen3.5's chat template writes. Objects without tags are
read too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deskhand.actions.formats import json_schema
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.json_format import JsonActionFormat
from deskhand.actions.formats.json_scan import NO_REASONING, Found, parse_lenient_values, skip_whitespace, value_at
from deskhand.actions.formats.limits import truncate_repr
from deskhand.actions.formats.reply_sections import end_of_reasoning
from deskhand.actions.ops import Space
from deskhand.errors import AgentError, ParseError

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_XML_FUNCTION = re.compile(r"<function=([^>\s]{1,64})>")
_XML_PARAMETER = re.compile(r"<parameter=([^>\s]{1,64})>\n?")
_XML_END, _XML_PARAMETER_END = "</function>", "</parameter>"
_XML_TEXTS = ("action", "text", "status")
"""Arguments that are texts; the others are JSON."""
XmlValue = Callable[[str, str, int, int], Any]
"""Reads the argument `key` in XML, which is `text[start:end]`. Raises `ParseError`."""


class ToolCallFormat(JsonActionFormat):
    """Subclasses define `name`, `json_actions`, `space` and what differs from Qwen's function."""

    tag = "action"
    function = "computer_use"
    about = "Use a mouse and a keyboard to control a computer."
    """Description of the function, before the size of its coordinates."""
    about_keys: Mapping[str, str] = {}
    """Description of each argument in the prompt."""
    writes_xml = False

    def space(self, view: ScreenView) -> Space:
        """Return the coordinate space of the model's output."""
        raise NotImplementedError

    def prompt(self, view: ScreenView) -> str:
        """Return the function in the layout of Qwen's chat template."""
        kind = "a block of XML" if self.writes_xml else "a JSON object"
        click = next(action for action in self.offered(view) if action.name.endswith("click"))
        return (
            "# Tools\n\nYou may call functions to assist with the user query. Their signatures are within "
            f"<tools></tools> tags:\n<tools>\n{self.dumps(self.signature(view))}\n</tools>\n\n"
            f"You may think in words first. Each call is {kind} within {_OPEN}{_CLOSE} "
            f"tags; nothing follows the last:\n{self.reply([self.action(click.name, click.shown)])}"
        )

    def signature(self, view: ScreenView) -> dict[str, Any]:
        """Return the definition of the function, in OpenAI's format."""
        space, actions = self.space(view), self.offered(view)
        about = "\n".join(f"* `{action.name}`: {action.about}." for action in actions)
        names = {"type": "string", "enum": [action.name for action in actions], "description": about}
        properties = {"action": names} | {
            key: {name: rule[name] for name in ("type", "enum") if name in rule} | {"description": self.about_keys[key]}
            for action in actions
            for key, rule in action.keys.items()
        }
        function = {
            "name": self.function,
            "description": f"{self.about}\n* The screen's resolution is {space.width}x{space.height}.",
            "parameters": {"type": "object", "properties": properties, "required": ["action"]},
        }
        return {"type": "function", "function": function}

    def values(self, text: str) -> Found:
        return find_calls(text, self.function, self.xml_value)

    def unwrap(self, value: Any) -> list[Any]:
        name = call_name(value)
        if name != self.function:
            raise AgentError(f"unknown function {truncate_repr(name)}; the only one is {self.function}")
        return [call_arguments(value)]

    def reply(self, actions: Sequence[dict[str, Any]]) -> str:
        return "\n".join(f"{_OPEN}\n{self._call(action)}\n{_CLOSE}" for action in actions)

    def _call(self, action: dict[str, Any]) -> str:
        if not self.writes_xml:
            return self.dumps({"name": self.function, "arguments": action})
        written = {
            key: value if key in _XML_TEXTS else json.dumps(value, ensure_ascii=False) for key, value in action.items()
        }
        if any(_XML_PARAMETER_END in value for value in written.values()):
            raise AgentError(f"{self.name} cannot say a text that holds {_XML_PARAMETER_END}")
        lines = [f"<parameter={key}>\n{value}\n{_XML_PARAMETER_END}" for key, value in written.items()]
        return "\n".join([f"<function={self.function}>", *lines, _XML_END])

    def action_schema(self, name: str, properties: dict[str, Any]) -> dict[str, Any]:
        arguments = super().action_schema(name, properties)
        return json_schema.object_of(name={"const": self.function}, arguments=arguments)

    def xml_value(self, text: str, key: str, start: int, end: int) -> Any:
        """Return the value of the XML argument `key`, which is `text[start:end]`. Raises `ParseError`."""
        if key in _XML_TEXTS:
            written = text[start:end].removesuffix("\n")
            return written if key == "text" else written.strip()
        value, after = value_at(text, skip_whitespace(text, start))
        if skip_whitespace(text, after) < end or after > end:
            raise ParseError((start, end), f"{truncate_repr(key)} must be one JSON value")
        return value


def find_calls(text: str, function: str, xml_value: XmlValue) -> Found:
    """Return the calls of a reply as `{"name": ..., "arguments": {...}}`. Raises `ParseError`.

    `function` marks an object without tags.
    """
    start = text.find(_OPEN, end_of_reasoning(text, NO_REASONING))
    if start < 0:
        return parse_lenient_values(text)
    untagged = re.compile(rf'\{{\s*+"name"\s*+:\s*+"{function}"').search(
        text, end_of_reasoning(text, NO_REASONING), start
    )
    if untagged is not None:
        raise ParseError((untagged.start(), start), f"a call without {_OPEN} in front of one with it")
    found: Found = []
    while start < len(text):
        if not text.startswith(_OPEN, start):
            raise ParseError((start, len(text)), "unexpected text after the action")
        begin = skip_whitespace(text, start + len(_OPEN))
        is_xml = text.startswith("<function=", begin)
        value, end = _xml_call(text, begin, xml_value) if is_xml else value_at(text, begin)
        found.append((value, (begin, end)))
        end = skip_whitespace(text, end)
        if end < len(text) and not text.startswith(_CLOSE, end):
            raise ParseError((end, len(text)), f"expected {_CLOSE} after the call")
        start = skip_whitespace(text, end + len(_CLOSE))
    return found


def call_name(value: Any) -> Any:
    """Return the name of a call, which is an object with `name` and `arguments`. Raises `AgentError`."""
    if not isinstance(value, dict):
        raise AgentError(f"expected an object, not {truncate_repr(value)}")
    keys = ("name", "arguments")
    json_schema.check_keys("a call", value, dict.fromkeys(keys, json_schema.ANYTHING), keys)
    return value["name"]


def call_arguments(call: Mapping[str, Any]) -> Any:
    """Return the arguments of a call, which may be a text of JSON. Raises `AgentError`."""
    arguments = call["arguments"]
    if not isinstance(arguments, str):
        return arguments
    try:
        value, end = value_at(arguments, skip_whitespace(arguments, 0))
    except ParseError as error:
        raise AgentError(f"the arguments, {truncate_repr(arguments)}: {error.reason}") from None
    if skip_whitespace(arguments, end) < len(arguments):
        raise AgentError(f"the arguments, {truncate_repr(arguments)}: more than one JSON value")
    return value


def _xml_call(text: str, start: int, xml_value: XmlValue) -> tuple[Any, int]:
    """Parse `<function=NAME>` with one `<parameter=KEY>` per argument; return the call with its end."""
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
        arguments[tag[1]] = xml_value(text, tag[1], tag.end(), end)
        position = skip_whitespace(text, end + len(_XML_PARAMETER_END))
    return {"name": head[1], "arguments": arguments}, position + len(_XML_END)
