"""What a session remembers of its calls, by message. Invariant: a reply that comes back as history is its recorded tokens.

A conversation is known by a running digest over its messages, so finding the longest call that a new conversation continues
costs one look-up per message. A reply is known by the message that the agent was given: its text and tool calls, with or without
its thinking.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from deskhand.recorder.graph import Call
from deskhand.recorder.messages import Message


def running_digests(messages: tuple[Message, ...]) -> list[bytes]:
    """`digests[i]` stands for the first i messages; length `len(messages) + 1`."""
    digests = [b""]
    for one in messages:
        digests.append(hashlib.sha256(digests[-1] + one.digest).digest())
    return digests


@dataclass(frozen=True, slots=True)
class RecordedReply:
    """What a call sampled."""

    call_id: str
    token_ids: tuple[int, ...]
    text: str


class ReplyIndex:
    """The calls of one session, found by the conversation that they end or by the reply that they gave.

    `find` gives a call by its id (a graph's `get`); without it the calls are kept here.
    """

    def __init__(self, find: Callable[[str], Call] | None = None) -> None:
        self._calls: dict[str, Call] | None = {} if find is None else None
        self._find = find
        self._by_conversation: dict[bytes, str] = {}
        self._by_reply: dict[tuple[bytes, bytes], RecordedReply] = {}
        self._by_content: dict[bytes, RecordedReply] = {}

    def record(self, messages: tuple[Message, ...], call: Call, replies: Iterable[Message]) -> None:
        """Remember that `call` answered `messages`; `replies` are the forms in which its reply may come back.

        Of calls with the same reply the latest counts.
        """
        before = running_digests(messages)[-1]
        output = RecordedReply(call.id, call.completion.token_ids, call.text)
        if self._calls is not None:
            self._calls[call.id] = call
        for reply in replies:
            self._by_conversation[hashlib.sha256(before + reply.digest).digest()] = call.id
            self._by_reply[messages[-1].digest, reply.digest] = output
            self._by_content[reply.digest] = output

    def longest_prefix(self, messages: tuple[Message, ...]) -> tuple[int, Call | None]:
        """(n, call): the first n messages are `call`'s conversation and its reply, n as large as possible; (0, None) if none."""
        digests = running_digests(messages)
        for count in range(len(messages), 0, -1):
            if messages[count - 1].role == "assistant" and (call_id := self._by_conversation.get(digests[count])):
                return count, self._find(call_id) if self._find is not None else (self._calls or {})[call_id]
        return 0, None

    def contains(self, reply: Message) -> bool:
        """Whether a call gave this reply, wherever."""
        return reply.digest in self._by_content

    def reply(self, before: Message | None, reply: Message) -> RecordedReply | None:
        """What was sampled for this reply: to the message `before` if there is one, else the latest with that reply."""
        found = self._by_reply.get((before.digest, reply.digest)) if before is not None else None
        return found or self._by_content.get(reply.digest)

    def calls_in(self, messages: tuple[Message, ...]) -> set[str]:
        """Ids of the calls whose replies stand in these messages."""
        found = set()
        for before, one in zip((None, *messages), messages, strict=False):
            if one.role == "assistant" and (output := self.reply(before, one)):
                found.add(output.call_id)
        return found
