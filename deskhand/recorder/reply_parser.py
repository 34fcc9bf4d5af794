"""Parsing of a sampled text into thinking, text and tool calls. Used by `recorder.recorder` for every reply.

Thinking is the text before the last `</think>`, opened by the model or by the generation prompt. Only tags, the line
breaks around them and text after a stop text are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from deskhand.recorder.messages import Message, ToolCall, message
from deskhand.recorder.tool_formats import ToolFormat, Tools

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """Parts of a reply. `thinking` is None if there was none; `text` excludes thinking and tool calls."""

    text: str
    thinking: str | None = None
    calls: tuple[ToolCall, ...] = ()
    stop_text: str | None = None
    """Stop text that ended the reply; excluded from `text`."""

    def as_message(self) -> Message:
        """Return the assistant message as agents send it back, without thinking."""
        return message("assistant", self.text, self.calls)


def parse_reply(
    text: str,
    *,
    thinking: Literal["opened", "unopened"] | None,
    stop_texts: Sequence[str] = (),
    tools: Tools = (),
    tool_format: ToolFormat | None = None,
) -> ParsedReply:
    """Parse a reply.

    Args:
        thinking: Whether the prompt ended with an opened `<think>`; None leaves thinking in the text.
        tool_format: Format of tool calls; without it they stay text.
    """
    found = [(at, stop) for stop in stop_texts if (at := text.find(stop)) >= 0]
    stop_text = None
    if found:
        at, stop_text = min(found)
        text = text[:at]
    thought, text = (None, text) if thinking is None else _thinking(text, thinking == "opened")
    calls: tuple[ToolCall, ...] = ()
    if tool_format is not None:
        text, calls = tool_format.read(text, tools)
    return ParsedReply(text, thought, calls, stop_text)


def without_thinking(text: str) -> str:
    """Return a reply's text as templates write it that strip reasoning."""
    return text.rpartition(CLOSE)[2].lstrip("\n") if CLOSE in text else text


def _thinking(text: str, prompt_thinks: bool) -> tuple[str | None, str]:
    head, closed, rest = text.rpartition(CLOSE)
    opened = text.lstrip().startswith(OPEN)
    if closed and (prompt_thinks or opened):
        thought = head.lstrip().removeprefix(OPEN) if opened else head
        return thought.strip("\n"), rest.lstrip("\n")
    if opened:
        return text.lstrip().removeprefix(OPEN).strip("\n"), ""
    return (text.strip("\n"), "") if prompt_thinks else (None, text)
