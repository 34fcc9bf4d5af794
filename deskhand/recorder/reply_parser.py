"""A sampled text taken apart for the agent. Invariant: nothing is lost: thinking, text and tool calls together hold every word that
was sampled, but for the tags and line breaks around them and what a stop text cut off.

Thinking stands before the last `</think>`; it was opened by the model or, where the family's template does that, by the prompt.
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
    """`thinking` is None when there was none; `text` is what came after it, without tool calls."""

    text: str
    thinking: str | None = None
    calls: tuple[ToolCall, ...] = ()
    stop_text: str | None = None
    """The stop text that ended the reply; it and what follows is left out of `text`."""

    def as_message(self) -> Message:
        """The assistant's turn as an agent sends it back. Thinking is not part of it."""
        return message("assistant", self.text, self.calls)


def parse_reply(
    text: str,
    *,
    thinking: Literal["opened", "unopened"] | None,
    stop_texts: Sequence[str] = (),
    tools: Tools = (),
    tool_format: ToolFormat | None = None,
) -> ParsedReply:
    """Read a reply. `thinking` says whether the prompt ended with an opened `<think>`; None leaves thinking in the text.

    Without `tool_format` tool calls stay text.
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
    """What is left of a reply in templates that remove earlier thoughts."""
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
