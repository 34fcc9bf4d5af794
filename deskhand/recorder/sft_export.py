"""What a relay recorded, as data sets. Invariant: every reply that was understood is in each data set once, and every one that is
left out is counted by the reason.

`supervised` gives conversations (`dialogues`) with their rewards. `graphs` gives call graphs of the exchanges that came with token
ids and log-probs: the same form, with the same checks, as what the recorder itself records. It needs the checkpoint's image
processor, as the placeholders of each image are counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from deskhand.errors import RecordError
from deskhand.recorder.conversations import conversations, to_json
from deskhand.recorder.exchanges import Exchange, TokenRecord, read_exchange
from deskhand.recorder.graph import Call, CallGraph
from deskhand.recorder.images import ImageCache
from deskhand.recorder.invariants import check_prompt
from deskhand.recorder.recording_proxy import ExchangeLog, StoredImages
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.recorder.rewards import Rewards
from deskhand.types import Completion, FinishReason, ImageSpan, Prompt

_FINISHED: dict[str, FinishReason] = {"stop": "stop", "tool_calls": "stop", "length": "length"}


@dataclass
class RecordedSession:
    """One session of a relay, read. `left_out` counts what could not be read, by reason."""

    session_id: str
    exchanges: list[tuple[str, Exchange]] = field(default_factory=list)
    plain: set[str] = field(default_factory=set)
    """Exchanges that were sampled at temperature 1 from the whole distribution, which is what vLLM's log-probs are of."""
    rewards: Rewards = field(default_factory=Rewards)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def total_reward(self) -> float | None:
        """The session's reward: that of the whole, or the sum of its exchanges'; None when none was given."""
        if self.rewards.episode is not None or not self.rewards.by_call:
            return self.rewards.episode
        return math.fsum(self.rewards.by_call.values())


def read_session(log: ExchangeLog, images: StoredImages, session_id: str) -> RecordedSession:
    """Read a session's journal."""
    found = RecordedSession(session_id)
    call_ids = list[str]()
    for line in log.read(session_id):
        if "note" in line:
            note = line["note"]
            if note["call_id"] is None:
                found.rewards.give_episode(note["reward"])
            else:
                found.rewards.give(call_ids, note["reward"], note["call_id"])
            continue
        entry = line["exchange"]
        call_ids.append(entry["id"])
        if "reply" not in entry:
            found.left_out[f"reply not understood: {entry['unread']}"] += 1
            continue
        try:
            exchange = read_exchange(entry["api"], entry["request"], entry["reply"], images)
        except InvalidRequestError as error:
            found.left_out[f"{error.param}: {error.message}"] += 1
            continue
        except Exception as error:  # an upstream may have sent anything
            found.left_out[f"malformed: {type(error).__name__}: {str(error)[:100]}"] += 1
            continue
        found.exchanges.append((entry["id"], exchange))
        if _is_plain(entry["request"]):
            found.plain.add(entry["id"])
    return found


def to_sft_rows(recorded: RecordedSession) -> Iterator[dict[str, Any]]:
    """One JSON object per conversation: messages, targets, images, the reward of the session and those of its exchanges."""
    for row in conversations(recorded.exchanges):
        by_exchange = {
            one: recorded.rewards.by_call[one] for one in row.exchange_ids if one in recorded.rewards.by_call
        }
        yield {
            "session": recorded.session_id,
            "session_reward": recorded.total_reward,
            "rewards": by_exchange,
            **to_json(row),
        }


def graph_of(recorded: RecordedSession, images: ImageCache, image_id: int) -> CallGraph:
    """The calls that came with token ids. What cannot be trained on is counted in `left_out`."""
    graph = CallGraph()
    for exchange_id, exchange in recorded.exchanges:
        if len(exchange.tokens) != len(exchange.replies):
            recorded.left_out["no token ids or log-probs"] += 1
            continue
        if exchange_id not in recorded.plain:
            recorded.left_out[
                "not sampled at temperature 1 from the whole distribution, which the log-probs are of"
            ] += 1
            continue
        for number, (tokens, reason) in enumerate(zip(exchange.tokens, exchange.finish_reasons, strict=True)):
            name = exchange_id if len(exchange.tokens) == 1 else f"{exchange_id}.{number}"
            try:
                call = _call(name, graph, exchange, tokens, reason, images, image_id)
                graph.add(replace(call, text=exchange.replies[number].text))
            except RecordError as error:
                recorded.left_out[error.cause] += 1
    return graph


def _is_plain(request: Mapping[str, Any]) -> bool:
    neutral: dict[str, tuple[Any, ...]] = {
        "temperature": (1,),
        "top_p": (1,),
        "top_k": (-1, 0),
        "min_p": (0,),
        "repetition_penalty": (1,),
    }
    neutral |= {
        "frequency_penalty": (0,),
        "presence_penalty": (0,),
        "response_format": ({"type": "text"},),
        "logit_bias": ({},),
    }
    neutral |= {"structured_outputs": (), "tool_choice": ("auto", "none")}
    return all(request.get(name) is None or request[name] in values for name, values in neutral.items())


def _call(
    name: str, graph: CallGraph, exchange: Exchange, tokens: TokenRecord, reason: str, images: ImageCache, image_id: int
) -> Call:
    spans, at = list[ImageSpan](), 0
    shown = {sha256: images[sha256] for one in exchange.messages for sha256 in one.pictures}
    for sha256 in (sha256 for one in exchange.messages for sha256 in one.pictures):
        try:
            start = tokens.prompt_ids.index(image_id, at)
        except ValueError:
            raise RecordError(
                "placeholders", f"the served prompt has no placeholders for image {sha256[:12]}"
            ) from None
        spans.append(ImageSpan(start, shown[sha256].tokens, sha256))
        at = start + shown[sha256].tokens
    check_prompt(Prompt(tokens.prompt_ids, tuple(spans), shown), image_id)
    if reason not in _FINISHED or not tokens.token_ids:
        raise RecordError("finish_reason", f"a reply that ended by {reason!r} is not trained")
    versions = (0,) * len(tokens.token_ids)
    done = Completion(tokens.token_ids, tokens.logprobs, versions, _FINISHED[reason], tokens.prompt_ids)
    parent = graph.parent_of(tokens.prompt_ids, tuple(spans), 1.0)
    return Call(name, parent, tokens.prompt_ids, tuple(spans), done)
