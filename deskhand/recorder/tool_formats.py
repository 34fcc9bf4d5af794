"""Tool-call formats of model families. Used by `recorder.tool_prompt` and `recorder.reply_parser`.

| format   | families                        | a call                                                               |
|----------|---------------------------------|----------------------------------------------------------------------|
| `hermes` | Qwen2.5, Qwen2.5-VL, Qwen3(-VL) | `<tool_call>`, JSON with `name` and `arguments`, `</tool_call>`      |
| `coder`  | Qwen3-Coder, Qwen3.5            | `<tool_call>`, `<function=NAME>`, `<parameter=KEY>` ..., `</tool_call>` |

Text that is not exactly a call stays text; calls are never guessed or repaired. `tools` are tool definitions in
OpenAI's format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from deskhand.recorder.messages import ToolCall

Tools = Sequence[Mapping[str, Any]]
_BLOCK = re.compile(r"<tool_call>\n?(.*?)\n?</tool_call>", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>\n]+)>\n?(.*?)\n?</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\n?", re.DOTALL)


class ToolFormat(Protocol):
    """A format of tool calls."""

    name: str

    def read(self, text: str, tools: Tools) -> tuple[str, tuple[ToolCall, ...]]:
        """Return the text before the first call, and the calls; the whole text and no calls if a block is invalid."""
        ...

    def write(self, text: str, calls: Sequence[ToolCall]) -> str:
        """Return text and calls as the family's chat templates write them."""
        ...

    def call_regex(self, names: Sequence[str]) -> str:
        """Return a regular expression for replies that are one call of one of these tools."""
        ...


class HermesToolFormat:
    """JSON between tags."""

    name = "hermes"

    def read(self, text: str, tools: Tools) -> tuple[str, tuple[ToolCall, ...]]:
        return _read_blocks(text, self._call)

    @staticmethod
    def _call(block: str) -> ToolCall | None:
        try:
            found = json.loads(block)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict) or set(found) - {"name", "arguments"} or not isinstance(found.get("name"), str):
            return None
        arguments = found.get("arguments", {})
        return (
            ToolCall(found["name"], json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None
        )

    def write(self, text: str, calls: Sequence[ToolCall]) -> str:
        blocks = []
        for call in calls:
            arguments = json.dumps(json.loads(call.arguments), ensure_ascii=False)
            blocks.append(f'<tool_call>\n{{"name": "{call.name}", "arguments": {arguments}}}\n</tool_call>')
        return "\n".join([*([text] if text else []), *blocks])

    def call_regex(self, names: Sequence[str]) -> str:
        one_of = "|".join(re.escape(name) for name in names)
        return rf'<tool_call>\n\{{"name": "(?:{one_of})", "arguments": \{{[^\n]*\}}\}}\n</tool_call>'


class XmlToolFormat:
    """One tag per parameter; values are text, or JSON if the tool's schema has another type than string."""

    name = "coder"

    def read(self, text: str, tools: Tools) -> tuple[str, tuple[ToolCall, ...]]:
        return _read_blocks(text, lambda block: self._call(block, tools))

    @staticmethod
    def _call(block: str, tools: Tools) -> ToolCall | None:
        found = _FUNCTION.fullmatch(block.strip("\n"))
        if found is None or _PARAMETER.sub("", found[2]).strip():
            return None
        properties = next((_properties(tool) for tool in tools if tool.get("function", {}).get("name") == found[1]), {})
        arguments: dict[str, Any] = {}
        for key, value in _PARAMETER.findall(found[2]):
            if _is_text(properties.get(key)):
                arguments[key] = value
                continue
            try:
                arguments[key] = json.loads(value)
            except (ValueError, RecursionError):
                arguments[key] = value
        return ToolCall(found[1], json.dumps(arguments, ensure_ascii=False))

    def write(self, text: str, calls: Sequence[ToolCall]) -> str:
        blocks = []
        for call in calls:
            lines = [f"<tool_call>\n<function={call.name}>"]
            for key, value in json.loads(call.arguments).items():
                shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                lines.append(f"<parameter={key}>\n{shown}\n</parameter>")
            blocks.append("\n".join([*lines, "</function>\n</tool_call>"]))
        return (text + "\n\n" if text else "") + "\n".join(blocks)

    def call_regex(self, names: Sequence[str]) -> str:
        one_of = "|".join(re.escape(name) for name in names)
        parameters = r"(?:<parameter=\w+>\n[^<]*\n</parameter>\n)*"
        return rf"<tool_call>\n<function=(?:{one_of})>\n{parameters}</function>\n</tool_call>"


FORMATS: tuple[ToolFormat, ...] = (HermesToolFormat(), XmlToolFormat())


def _read_blocks(text: str, call_of: Any) -> tuple[str, tuple[ToolCall, ...]]:
    """Read calls at the end of a text, with only white space between and after them."""
    start = text.find("<tool_call>")
    if start < 0:
        return text, ()
    tail = text[start:]
    calls = [call_of(block) for block in _BLOCK.findall(tail)]
    if not calls or None in calls or _BLOCK.sub("", tail).strip():
        return text, ()
    return text[:start].rstrip("\n"), tuple(calls)


def _properties(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = tool.get("function", {}).get("parameters")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def _is_text(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "string"
