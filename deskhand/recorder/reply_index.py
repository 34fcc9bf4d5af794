"""Lookup of recorded calls by conversation or by reply. Used by `recorder.renderer`, one index per session.

Conversations are identified by a running digest over their messages, so finding the longest recorded prefix costs one
lookup per message. Replies are identified by the message returned to the agent, with or without its thinking.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from deskhand.recorder.graph import Call
from deskhand.recorder.messages import Message


def running_digests(messages: tuple[Message, ...]) -> list[bytes]:
    """Return digests of all prefixes: `digests[i]` is of the first i messages."""
    digests = [b""]
    for one in messages:
        digests.append(hashlib.sha256(digests[-1] + one.digest).digest())
    return digests


@dataclass(frozen=True, slots=True)
class RecordedReply:
    """Token ids and text sampled by a call."""

    call_id: str
    token_ids: tuple[int, ...]
    text: str


class ReplyIndex:
    """Calls of one session by conversation and by reply. `find` returns a call by id, such as `CallGraph.get`; without
    it the index stores the calls."""

    def __init__(self, find: Callable[[str], Call] | None = None) -> None:
        self._calls: dict[str, Call] | None = {} if find is None else None
        self._find = find
        self._by_conversation: dict[bytes, str] = {}
        self._by_reply: dict[tuple[bytes, bytes], RecordedReply] = {}
        self._by_content: dict[bytes, RecordedReply] = {}

    def record(self, messages: tuple[Message, ...], call: Call, replies: Iterable[Message]) -> None:
        """Add a call for `messages`; `replies` are the forms in which agents may send its reply back. Of calls with the
        same reply the latest wins."""
        before = running_digests(messages)[-1]
        output = RecordedReply(call.id, call.completion.token_ids, call.text)
        if self._calls is not None:
            self._calls[call.id] = call
        for reply in replies:
            self._by_conversation[hashlib.sha256(before + reply.digest).digest()] = call.id
            self._by_reply[messages[-1].digest, reply.digest] = output
            self._by_content[reply.digest] = output

    def longest_prefix(self, messages: tuple[Message, ...]) -> tuple[int, Call | None]:
        """Return (n, call) for the longest recorded conversation with reply, of n messages; (0, None) if none."""
        digests = running_digests(messages)
        for count in range(len(messages), 0, -1):
            if messages[count - 1].role == "assistant" and (call_id := self._by_conversation.get(digests[count])):
                return count, self._find(call_id) if self._find is not None else (self._calls or {})[call_id]
        return 0, None

    def contains(self, reply: Message) -> bool:
        """Return whether any call gave this reply."""
        return reply.digest in self._by_content

    def reply(self, before: Message | None, reply: Message) -> RecordedReply | None:
        """Return the recorded reply to the message `before`, else the latest with the same contents."""
        found = self._by_reply.get((before.digest, reply.digest)) if before is not None else None
        return found or self._by_content.get(reply.digest)

    def calls_in(self, messages: tuple[Message, ...]) -> set[str]:
        """Return the ids of the calls whose replies are in these messages."""
        found = set()
        for before, one in zip((None, *messages), messages, strict=False):
            if one.role == "assistant" and (output := self.reply(before, one)):
                found.add(output.call_id)
        return found
