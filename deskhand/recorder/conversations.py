"""Exchanges of one session as conversations for supervised training. Invariant: every recorded reply is a target of one row only.

An exchange with the same tools whose messages begin with an earlier one's messages and reply goes on with that conversation;
anything else begins another. A conversation is one row: its longest messages
with the last reply, and which assistant turns in it were said here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from deskhand.recorder.exchanges import Exchange
from deskhand.recorder.messages import Message
from deskhand.recorder.reply_index import running_digests


@dataclass
class Conversation:
    """Messages, and the indices of those that are targets."""

    messages: tuple[Message, ...]
    tools: str = "[]"
    targets: list[int] = field(default_factory=list)
    exchange_ids: list[str] = field(default_factory=list)


def conversations(exchanges: Iterable[tuple[str, Exchange]]) -> list[Conversation]:
    """The conversations of exchanges (id, exchange) in the order in which they were made.

    Each of several replies to one request is a conversation of its own, unless a later request goes on from it.
    """
    tips: dict[tuple[bytes, str], Conversation] = {}
    found: list[Conversation] = []
    for exchange_id, exchange in exchanges:
        digests = running_digests(exchange.messages)
        going_on = None
        for digest in reversed(digests[1:]):
            going_on = tips.pop((digest, exchange.tools), None)
            if going_on is not None:
                break
        for number, reply in enumerate(exchange.replies):
            row = going_on if number == 0 and going_on is not None else Conversation((), exchange.tools)
            if row is not going_on:
                found.append(row)
            row.messages = (*exchange.messages, reply)
            row.targets.append(len(exchange.messages))
            row.exchange_ids.append(exchange_id)
            tips[running_digests(row.messages)[-1], row.tools] = row
    return found


def to_json(row: Conversation) -> dict[str, Any]:
    """A row as chat messages: pictures are `{"type": "image", "image": SHA-256 of the pixels}`."""
    return {
        "messages": [_message(one) for one in row.messages],
        "tools": json.loads(row.tools),
        "targets": row.targets,
        "images": [sha256 for one in row.messages for sha256 in one.pictures],
        "exchanges": row.exchange_ids,
    }


def _message(one: Message) -> dict[str, Any]:
    content: Any = one.text
    if one.pictures:
        content = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part.sha256}
            for part in one.parts
        ]
    calls = [{"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in one.calls]
    return {"role": one.role, "content": content, **({"tool_calls": calls} if calls else {})}
