"""Tools offered to a model. Invariant: they stand in the prompt exactly as the checkpoint's own chat template writes them, or the
request is refused.

Templates of these families put the definitions into the system turn. The text of that turn is read off the template for each set
of tools, so the rest of the recorder sees one system message and needs to know nothing of tools. How the family writes calls is
read off at construction.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

from deskhand.recorder.messages import Message, ToolCall, message
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.recorder.tool_formats import FORMATS, ToolFormat, Tools

_USER = "Do it"
_REMEMBERED = 64
"""Sets of tools with their system texts."""


class ToolPrompt:
    """What one checkpoint's chat template does with tools. `tokenizer` has the template, `source` names the checkpoint."""

    def __init__(self, tokenizer: Any, source: str) -> None:
        self._tokenizer, self._source = tokenizer, source
        self._known: OrderedDict[tuple[str | None, str], str] = OrderedDict()
        self.format = self._read_format()
        """How calls are written; None when the template writes them in a way that is not known."""

    def with_tools(self, messages: tuple[Message, ...], tools: Tools) -> tuple[Message, ...]:
        """The messages with the tools in their system message. Raises `RequestRefused` when the template has no place for them."""
        if not tools:
            return messages
        system = messages[0].text if messages and messages[0].role == "system" else None
        text = self._system_text(system, tools)
        return (message("system", text), *(messages if system is None else messages[1:]))

    def _system_text(self, system: str | None, tools: Tools) -> str:
        key = (system, json.dumps(tools, ensure_ascii=False))
        if key not in self._known:
            self._known[key] = self._read_system_text(system, tools)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return self._known[key]

    def _read_system_text(self, system: str | None, tools: Tools) -> str:
        if self.format is None:
            raise self._refusal("writes tool calls in a way that is not known")
        talk: list[dict[str, Any]] = [{"role": "user", "content": _USER}]
        if system is not None:
            talk.insert(0, {"role": "system", "content": system})
        try:
            plain, offered = self._render(talk), self._render(talk, tools=list(tools))
        except (
            Exception
        ) as error:  # a template may raise anything: jinja errors, its own raise_exception, Python errors
            raise self._refusal(f"raises {type(error).__name__}: {str(error)[:120]}") from None
        head, tail = "<|im_start|>system\n", f"<|im_end|>\n<|im_start|>user\n{_USER}<|im_end|>\n"
        text = offered[len(head) : -len(tail)]
        if offered == plain or not offered.startswith(head) or not offered.endswith(tail):
            raise self._refusal("has no place for tools in its system turn")
        if any(json.dumps(tool["function"]["name"], ensure_ascii=False) not in text for tool in tools):
            raise self._refusal("does not name every tool in its system turn")
        return text

    def _read_format(self) -> ToolFormat | None:
        """The format in which the template writes a call, told by probes with one and with two calls."""
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
        except Exception:  # as above: such a template does not write this format
            return False

    def _render(self, talk: list[dict[str, Any]], **options: Any) -> str:
        return self._tokenizer.apply_chat_template(talk, tokenize=False, **options)

    def _refusal(self, reason: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self._source}: the chat template {reason}", param="tools", code="template")
