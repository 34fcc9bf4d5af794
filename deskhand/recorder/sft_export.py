"""Datasets from the sessions of a recording proxy. Used by `recipes.record`.

`to_sft_rows` yields conversations with their rewards. `graph_of` builds the call graph of exchanges with token ids and
log-probs, with the recorder's own checks; it needs the checkpoint's image processor to count placeholders. Skipped
replies are counted by reason in `RecordedSession.skipped`.

An exchange continues a conversation if it has the same tools and its messages start with the conversation; otherwise it
starts a new one. A conversation is one row: its messages with the last reply, and the indices of the recorded replies.

Invariant: every recorded reply is a target of exactly one row.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from deskhand.errors import RecordError
from deskhand.recorder.exchanges import Exchange, TokenRecord, read_exchange
from deskhand.recorder.graph import Call, CallGraph
from deskhand.recorder.images import ImageCache, ImageStore
from deskhand.recorder.invariants import check_prompt
from deskhand.recorder.messages import Message
from deskhand.recorder.recording_proxy import ExchangeLog
from deskhand.recorder.reply_index import running_digests
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.recorder.rewards import Rewards
from deskhand.types import Completion, FinishReason, ImageSpan, Prompt

_FINISHED: dict[str, FinishReason] = {"stop": "stop", "tool_calls": "stop", "length": "length"}


@dataclass
class RecordedSession:
    """One session of a recording proxy. `skipped` counts unusable replies by reason."""

    session_id: str
    exchanges: list[tuple[str, Exchange]] = field(default_factory=list)
    untruncated: set[str] = field(default_factory=set)
    """Exchanges sampled at temperature 1 from the full distribution, to which vLLM's log-probs refer."""
    rewards: Rewards = field(default_factory=Rewards)
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def total_reward(self) -> float | None:
        """Reward of the session, or the sum over its exchanges; None if there is none."""
        if self.rewards.episode is not None or not self.rewards.by_call:
            return self.rewards.episode
        return math.fsum(self.rewards.by_call.values())


def read_session(log: ExchangeLog, images: ImageStore, session_id: str) -> RecordedSession:
    """Read a recorded session."""
    session = RecordedSession(session_id)
    call_ids = list[str]()
    for line in log.read(session_id):
        if "reward" in line:
            session.rewards.replay(call_ids, line["reward"])
            continue
        entry = line["exchange"]
        call_ids.append(entry["id"])
        if "reply" not in entry:
            session.skipped[f"unreadable reply: {entry['error']}"] += 1
            continue
        try:
            exchange = read_exchange(entry["api"], entry["request"], entry["reply"], images)
        except InvalidRequestError as error:
            session.skipped[f"{error.param}: {error.message}"] += 1
            continue
        except Exception as error:  # an upstream may send anything
            session.skipped[f"malformed: {type(error).__name__}: {str(error)[:100]}"] += 1
            continue
        session.exchanges.append((entry["id"], exchange))
        if _is_untruncated(entry["request"]):
            session.untruncated.add(entry["id"])
    return session


def to_sft_rows(recorded: RecordedSession) -> Iterator[dict[str, Any]]:
    """Yield one JSON object per conversation: messages, targets, images, and rewards of session and exchanges. Images
    are `{"type": "image", "image": SHA-256 of the pixels}`."""
    for row in conversations(recorded.exchanges):
        yield {
            "session": recorded.session_id,
            "session_reward": recorded.total_reward,
            "rewards": recorded.rewards.of_calls(row.exchange_ids).by_call,
            "messages": [_message(one) for one in row.messages],
            "tools": json.loads(row.tools),
            "targets": row.targets,
            "images": [sha256 for one in row.messages for sha256 in one.image_hashes],
            "exchanges": row.exchange_ids,
        }


@dataclass
class Conversation:
    """Messages, and the indices of the targets."""

    messages: tuple[Message, ...]
    tools: str = "[]"
    targets: list[int] = field(default_factory=list)
    exchange_ids: list[str] = field(default_factory=list)


def conversations(exchanges: Iterable[tuple[str, Exchange]]) -> list[Conversation]:
    """Return the conversations of (id, exchange) pairs in chronological order. Of several replies to one request the
    first continues the conversation; the others start new ones."""
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


def _message(one: Message) -> dict[str, Any]:
    content: Any = one.text
    if one.image_hashes:
        content = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part.sha256}
            for part in one.parts
        ]
    calls = [{"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in one.calls]
    return {"role": one.role, "content": content, **({"tool_calls": calls} if calls else {})}


def graph_of(recorded: RecordedSession, images: ImageCache, image_id: int) -> CallGraph:
    """Return the graph of the calls with token ids; count the others in `skipped`."""
    graph = CallGraph()
    for exchange_id, exchange in recorded.exchanges:
        if len(exchange.tokens) != len(exchange.replies):
            recorded.skipped["no token ids or log-probs"] += 1
            continue
        if exchange_id not in recorded.untruncated:
            recorded.skipped["not sampled at temperature 1 from the full distribution"] += 1
            continue
        for number, (tokens, reason) in enumerate(zip(exchange.tokens, exchange.finish_reasons, strict=True)):
            name = exchange_id if len(exchange.tokens) == 1 else f"{exchange_id}.{number}"
            try:
                call = _call(name, graph, exchange, tokens, reason, images, image_id)
                graph.add(replace(call, text=exchange.replies[number].text))
            except RecordError as error:
                recorded.skipped[error.cause] += 1
    return graph


def _is_untruncated(request: Mapping[str, Any]) -> bool:
    neutral: dict[str, tuple[Any, ...]] = {
        "temperature": (1,),
        "top_p": (1,),
        "top_k": (-1, 0),
        "min_p": (0,),
        "repetition_penalty": (1,),
        "frequency_penalty": (0,),
        "presence_penalty": (0,),
        "response_format": ({"type": "text"},),
        "logit_bias": ({},),
        "structured_outputs": (),
        "tool_choice": ("auto", "none"),
    }
    return all(request.get(name) is None or request[name] in values for name, values in neutral.items())


def _call(
    name: str, graph: CallGraph, exchange: Exchange, tokens: TokenRecord, reason: str, images: ImageCache, image_id: int
) -> Call:
    spans, at = list[ImageSpan](), 0
    hashes = [sha256 for one in exchange.messages for sha256 in one.image_hashes]
    prepared = {sha256: images[sha256] for sha256 in hashes}
    for sha256 in hashes:
        try:
            start = tokens.prompt_ids.index(image_id, at)
        except ValueError:
            raise RecordError(
                "placeholders", f"the served prompt has no placeholders for image {sha256[:12]}"
            ) from None
        spans.append(ImageSpan(start, prepared[sha256].tokens, sha256))
        at = start + prepared[sha256].tokens
    check_prompt(Prompt(tokens.prompt_ids, tuple(spans), prepared), image_id)
    if reason not in _FINISHED or not tokens.token_ids:
        raise RecordError("finish_reason", f"a reply with finish reason {reason!r} cannot be trained on")
    versions = (0,) * len(tokens.token_ids)
    done = Completion(tokens.token_ids, tokens.logprobs, versions, _FINISHED[reason], tokens.prompt_ids)
    parent = graph.parent_of(tokens.prompt_ids, tuple(spans), 1.0)
    return Call(name, parent, tokens.prompt_ids, tuple(spans), done)
