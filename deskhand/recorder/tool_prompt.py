"""Tool definitions in prompts, exactly as the checkpoint's chat template writes them. Used by `recorder.renderer`.

Templates of the supported families put the definitions into the system turn. Its text is rendered with the template for
each set of tools, so the rest of the recorder sees one system message. The format of tool calls is detected at
construction.
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
"""Maximum number of cached system texts."""


class ToolPrompt:
    """Tool rendering of one checkpoint's chat template. `source` names the checkpoint in errors."""

    def __init__(self, tokenizer: Any, source: str) -> None:
        self._tokenizer, self._source = tokenizer, source
        self._known: OrderedDict[tuple[str | None, str], str] = OrderedDict()
        self.format = self._read_format()
        """Format of tool calls; None if it is unknown."""

    def with_tools(self, messages: tuple[Message, ...], tools: Tools) -> tuple[Message, ...]:
        """Return the messages with the tools in the system message.

        Raises `InvalidRequestError` if the template does not support tools.
        """
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
            raise self._unsupported("writes tool calls in an unknown format")
        talk: list[dict[str, Any]] = [{"role": "user", "content": _USER}]
        if system is not None:
            talk.insert(0, {"role": "system", "content": system})
        try:
            plain, offered = self._render(talk), self._render(talk, tools=list(tools))
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
