"""Conversations for supervised training, built from the exchanges of one session. Used by `recorder.sft_export`.

An exchange continues a conversation if it has the same tools and its messages start with the conversation; otherwise it
starts a new one. A conversation is one row: its messages with the last reply, and the indices of the recorded replies.

Invariant: every recorded reply is a target of exactly one row.
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
    """Messages, and the indices of the targets."""

    messages: tuple[Message, ...]
    tools: str = "[]"
    targets: list[int] = field(default_factory=list)
    exchange_ids: list[str] = field(default_factory=list)


def conversations(exchanges: Iterable[tuple[str, Exchange]]) -> list[Conversation]:
    """Return the conversations of (id, exchange) pairs in chronological order.

    Of several replies to one request the first continues the conversation; the others start new ones.
    """
    tips: dict[tuple[bytes, str], Conversation] = {}
    found: list[Conversation] = []
    for exchange_id, exchange in exchanges:
        digests = running_digests(exchange.messages)
        continued = None
        for digest in reversed(digests[1:]):
            continued = tips.pop((digest, exchange.tools), None)
            if continued is not None:
                break
        for number, reply in enumerate(exchange.replies):
            row = continued if number == 0 and continued is not None else Conversation((), exchange.tools)
            if row is not continued:
                found.append(row)
            row.messages = (*exchange.messages, reply)
            row.targets.append(len(exchange.messages))
            row.exchange_ids.append(exchange_id)
            tips[running_digests(row.messages)[-1], row.tools] = row
    return found


def to_json(row: Conversation) -> dict[str, Any]:
    """Return a row as chat messages; images are `{"type": "image", "image": SHA-256 of the pixels}`."""
    return {
        "messages": [_message(one) for one in row.messages],
        "tools": json.loads(row.tools),
        "targets": row.targets,
        "images": [sha256 for one in row.messages for sha256 in one.image_hashes],
        "exchanges": row.exchange_ids,
    }


def _message(one: Message) -> dict[str, Any]:
    content: Any = one.text
    if one.image_hashes:
        content = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part.sha256}
            for part in one.parts
        ]
    calls = [{"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in one.calls]
    return {"role": one.role, "content": content, **({"tool_calls": calls} if calls else {})}
