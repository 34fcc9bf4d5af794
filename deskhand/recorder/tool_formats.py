"""Tool-call formats of model families, and tool definitions in prompts. Used by the renderer and the reply parser.

| format   | families                        | a call                                                               |
|----------|---------------------------------|----------------------------------------------------------------------|
| `hermes` | Qwen2.5, Qwen2.5-VL, Qwen3(-VL) | `<tool_call>`, JSON with `name` and `arguments`, `</tool_call>`      |
| `coder`  | Qwen3-Coder, Qwen3.5            | `<tool_call>`, `<function=NAME>`, `<parameter=KEY>` ..., `</tool_call>` |

Text that is not exactly a call stays text; calls are never guessed or repaired. `tools` are tool definitions in
OpenAI's format. Chat templates of the supported families put them into the system turn. `ToolPrompt` renders its text
with the template for each set of tools, so the rest of the recorder sees one system message, and detects the format.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from deskhand.recorder.messages import Message, ToolCall, message
from deskhand.recorder.request_errors import InvalidRequestError

Tools = Sequence[Mapping[str, Any]]
_USER = "Do it"
_REMEMBERED = 64
"""Maximum number of cached system texts."""
_BLOCK = re.compile(r"<tool_call>\n?(.*?)\n?</tool_call>", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>\n]+)>\n?(.*?)\n?</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\n?", re.DOTALL)


class ToolFormat(ABC):
    """A format of tool calls."""

    name: str

    def read(self, text: str, tools: Tools) -> tuple[str, tuple[ToolCall, ...]]:
        """Return the text before the first call, and the calls; the whole text and no calls if a block is invalid.
        Calls are at the end of the text, with only white space between and after them."""
        start = text.find("<tool_call>")
        if start < 0:
            return text, ()
        tail = text[start:]
        calls = [call for block in _BLOCK.findall(tail) if (call := self.read_call(block, tools))]
        if not calls or len(calls) < len(_BLOCK.findall(tail)) or _BLOCK.sub("", tail).strip():
            return text, ()
        return text[:start].rstrip("\n"), tuple(calls)

    @abstractmethod
    def read_call(self, block: str, tools: Tools) -> ToolCall | None:
        """Return the call between two tags, or None if it is invalid."""

    @abstractmethod
    def write(self, text: str, calls: Sequence[ToolCall]) -> str:
        """Return text and calls as the family's chat templates write them."""

    @abstractmethod
    def call_regex(self, names: Sequence[str]) -> str:
        """Return a regular expression for replies that are one call of one of these tools."""


class HermesToolFormat(ToolFormat):
    """JSON between tags."""

    name = "hermes"

    def read_call(self, block: str, tools: Tools) -> ToolCall | None:
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


class XmlToolFormat(ToolFormat):
    """One tag per parameter; values are text, or JSON if the tool's schema has another type than string."""

    name = "coder"

    def read_call(self, block: str, tools: Tools) -> ToolCall | None:
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


class ToolPrompt:
    """Tool rendering of one checkpoint's chat template. `source` names the checkpoint in errors."""

    def __init__(self, tokenizer: Any, source: str) -> None:
        self._tokenizer, self._source = tokenizer, source
        self._system_text = lru_cache(_REMEMBERED)(self._read_system_text)
        self.format = self._read_format()
        """Format of tool calls; None if it is unknown."""

    def with_tools(self, messages: tuple[Message, ...], tools: Tools) -> tuple[Message, ...]:
        """Return the messages with the tools in the system message. Raises `InvalidRequestError` if the template does
        not support tools."""
        if not tools:
            return messages
        system = messages[0].text if messages and messages[0].role == "system" else None
        text = self._system_text(system, json.dumps(tools, ensure_ascii=False))
        return (message("system", text), *(messages if system is None else messages[1:]))

    def _read_system_text(self, system: str | None, definitions: str) -> str:
        tools = json.loads(definitions)
        if self.format is None:
            raise self._unsupported("writes tool calls in an unknown format")
        talk: list[dict[str, Any]] = [{"role": "user", "content": _USER}]
        if system is not None:
            talk.insert(0, {"role": "system", "content": system})
        try:
            plain, offered = self._render(talk), self._render(talk, tools=tools)
        except Exception as error:  # a template may raise jinja errors, its own raise_exception or Python errors
            raise self._unsupported(f"raises {type(error).__name__}: {str(error)[:120]}") from None
        head, tail = "<|im_start|>system\n", f"<|im_end|>\n<|im_start|>user\n{_USER}<|im_end|>\n"
        text = offered[len(head) : -len(tail)]
        if offered == plain or not offered.startswith(head) or not offered.endswith(tail):
            raise self._unsupported("does not put tools into its system turn")
        if any(json.dumps(tool["function"]["name"], ensure_ascii=False) not in text for tool in tools):
            raise self._unsupported("does not name every tool in its system turn")
        return text

    def _read_format(self) -> ToolFormat | None:
        """Detect the format of tool calls by rendering one and two calls."""
        calls = (ToolCall("f", '{"a": 1, "b": "x"}'), ToolCall("g", "{}"))
        for form in FORMATS:
            if all(self._writes(form, text, calls[:count]) for text in ("", "ok") for count in (1, 2)):
                return form
        return None

    def _writes(self, form: ToolFormat, text: str, calls: tuple[ToolCall, ...]) -> bool:
        called = [
            {"type": "function", "function": {"name": call.name, "arguments": json.loads(call.arguments)}}
            for call in calls
        ]
        talk = [{"role": "user", "content": _USER}, {"role": "assistant", "content": text, "tool_calls": called}]
        try:
            return self._render([*talk, talk[0]]).count(form.write(text, calls) + "<|im_end|>") == 1
        except Exception:  # as in `_read_system_text`
            return False

    def _render(self, talk: list[dict[str, Any]], **options: Any) -> str:
        return self._tokenizer.apply_chat_template(talk, tokenize=False, **options)

    def _unsupported(self, reason: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self._source}: the chat template {reason}", param="tools", code="template")


def _properties(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = tool.get("function", {}).get("parameters")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def _is_text(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "string"
