"""The call graph of an episode. Invariant: every sampled token is in exactly one sequence, however the calls are merged.

A *call* is one model call: a full prompt and the completion that was sampled for it. A call whose prompt starts with an
earlier call's prompt + output, token for token and image for image, *extends* that call; anything else is a fork. A chain of
extending calls is one *sequence*: prompt and observation tokens are context, sampled tokens are trained once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deskhand.engines.base import Completion, ImageSpan
from deskhand.errors import RecordError

FORMAT = 1
"""Version of the dictionary that `CallGraph.to_dict` writes."""
_TAIL = 16
"""Ids before a call's end that are compared first; they are sampled ids, so almost every wrong candidate differs in them."""


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded call. `prompt_ids` are expanded; `spans` are in prompt coordinates."""

    id: str
    parent: str | None
    prompt_ids: tuple[int, ...]
    spans: tuple[ImageSpan, ...]
    completion: Completion
    temperature: float = 1.0
    text: str = ""

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Prompt and output together: what a later prompt must start with to extend this call."""
        return self.prompt_ids + self.completion.token_ids

    @property
    def end(self) -> int:
        """Length of `end_ids`."""
        return len(self.prompt_ids) + len(self.completion.token_ids)

    def is_extended_by(self, prompt_ids: tuple[int, ...], spans: tuple[ImageSpan, ...]) -> bool:
        """Whether a prompt starts with this call's prompt + output, token for token and image for image."""
        start, end, output = len(self.prompt_ids), self.end, self.completion.token_ids
        if end > len(prompt_ids) or prompt_ids[max(start, end - _TAIL) : end] != output[-_TAIL:]:
            return False
        if spans[: len(self.spans)] != self.spans or any(span.start < end for span in spans[len(self.spans) :]):
            return False
        return prompt_ids[start:end] == output and prompt_ids[:start] == self.prompt_ids


@dataclass(frozen=True, slots=True)
class Sequence:
    """One training row: int ids[T], bool sampled[T], float logprobs[T] and int versions[T] (0.0 and -1 where not sampled)."""

    token_ids: tuple[int, ...]
    sampled: tuple[bool, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    spans: tuple[ImageSpan, ...]
    call_ids: tuple[str, ...]
    temperature: float = 1.0


@dataclass
class CallGraph:
    """The calls of one episode in the order in which they were made. New calls come in through `add` alone."""

    calls: list[Call] = field(default_factory=list)
    _by_id: dict[str, Call] = field(default_factory=dict, init=False, repr=False, compare=False)
    _tips: dict[str, Call] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            self.add(call)

    def parent_of(self, prompt_ids: tuple[int, ...], spans: tuple[ImageSpan, ...], temperature: float) -> str | None:
        """Id of the call with the longest prompt + output that this prompt starts with and that nothing extends yet.

        Costs a few comparisons per unextended call and one comparison of the prompt's length.
        """
        best: Call | None = None
        for call in self._tips.values():
            if call.temperature != temperature or (best is not None and call.end <= best.end):
                continue
            if call.is_extended_by(prompt_ids, spans):
                best = call
        return best.id if best else None

    def add(self, call: Call) -> None:
        """Append a call.

        Raises `RecordError` when its completion is inconsistent, its id is taken, its parent is unknown or not a prefix of
        it, or another call extends that parent already.
        """
        done = call.completion
        if not len(done.token_ids) == len(done.logprobs) == len(done.versions):
            raise RecordError(
                "lengths",
                f"call {call.id} has {len(done.token_ids)} ids, {len(done.logprobs)} log-probs, {len(done.versions)} versions",
            )
        if call.id in self._by_id:
            raise RecordError("duplicate_call", f"call {call.id} is recorded already")
        if call.parent is not None:
            parent = self._by_id.get(call.parent)
            if parent is None:
                raise RecordError("unknown_parent", f"call {call.id} extends call {call.parent}, which is not recorded")
            if call.parent not in self._tips:
                raise RecordError("fork", f"call {call.id} extends call {call.parent}, which another call extends already")
            if parent.temperature != call.temperature or not parent.is_extended_by(call.prompt_ids, call.spans):
                raise RecordError("not_a_prefix", f"call {call.id} does not extend call {call.parent}")
            del self._tips[call.parent]
        self.calls.append(call)
        self._by_id[call.id] = self._tips[call.id] = call

    def get(self, call_id: str) -> Call:
        """The call of that id. Raises `KeyError`."""
        return self._by_id[call_id]

    def without(self, call_ids: set[str]) -> CallGraph:
        """A graph that lacks these calls; a call that extended one of them becomes a fork with the same tokens."""
        kept = CallGraph()
        for call in self.calls:
            if call.id not in call_ids:
                parent = None if call.parent in call_ids else call.parent
                kept.add(Call(call.id, parent, call.prompt_ids, call.spans, call.completion, call.temperature, call.text))
        return kept

    def sequences(self, merge: bool = True) -> list[Sequence]:
        """Training rows. `merge=False` gives one row per call: the same sampled tokens, more context tokens."""
        chains: dict[str, list[Call]] = {}
        for call in self.calls:
            chain = chains.pop(call.parent) if merge and call.parent is not None else []
            chain.append(call)
            chains[call.id] = chain
        return [_row(chain) for chain in chains.values()]

    @property
    def sampled_tokens(self) -> int:
        return sum(len(call.completion.token_ids) for call in self.calls)

    def to_dict(self) -> dict[str, Any]:
        """A lossless dictionary of JSON types. Of an extending call only what comes after its parent is written."""
        return {"format": FORMAT, "calls": [self._call_to_dict(call) for call in self.calls]}

    def _call_to_dict(self, call: Call) -> dict[str, Any]:
        parent = self._by_id[call.parent] if call.parent is not None else None
        done = call.completion
        return {
            "id": call.id,
            "parent": call.parent,
            "new_prompt_ids": list(call.prompt_ids[parent.end if parent else 0 :]),
            "new_spans": [[span.start, span.count, span.sha256] for span in call.spans[len(parent.spans) if parent else 0 :]],
            "token_ids": list(done.token_ids),
            "logprobs": list(done.logprobs),
            "versions": list(done.versions),
            "finish_reason": done.finish_reason,
            "served_ids": None if done.served_ids == call.prompt_ids else list(done.served_ids),
            "temperature": call.temperature,
            "text": call.text,
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> CallGraph:
        """The graph that `to_dict` wrote. Raises `RecordError` when the dictionary is of another format or inconsistent."""
        if data.get("format") != FORMAT:
            raise RecordError("format", f"call graph of format {data.get('format')}; this version reads format {FORMAT}")
        graph = CallGraph()
        for entry in data["calls"]:
            if entry["parent"] is not None and entry["parent"] not in graph._by_id:
                raise RecordError("unknown_parent", f"call {entry['id']} extends call {entry['parent']}, which is not recorded")
            parent = graph._by_id[entry["parent"]] if entry["parent"] is not None else None
            prompt_ids = (parent.end_ids if parent else ()) + tuple(entry["new_prompt_ids"])
            spans = (parent.spans if parent else ()) + tuple(ImageSpan(*span) for span in entry["new_spans"])
            served = prompt_ids if entry["served_ids"] is None else tuple(entry["served_ids"])
            done = Completion(
                tuple(entry["token_ids"]), tuple(entry["logprobs"]), tuple(entry["versions"]), entry["finish_reason"], served
            )
            graph.add(Call(entry["id"], entry["parent"], prompt_ids, spans, done, entry["temperature"], entry["text"]))
        return graph


def _row(chain: list[Call]) -> Sequence:
    last = chain[-1]
    ids = last.end_ids
    sampled, logprobs, versions = [False] * len(ids), [0.0] * len(ids), [-1] * len(ids)
    for call in chain:
        start, end = len(call.prompt_ids), call.end
        sampled[start:end] = [True] * (end - start)
        logprobs[start:end] = call.completion.logprobs
        versions[start:end] = call.completion.versions
    if sum(sampled) != sum(len(call.completion.token_ids) for call in chain):
        raise RecordError("overlap", "two calls of one sequence sampled the same position")
    return Sequence(
        ids, tuple(sampled), tuple(logprobs), tuple(versions), last.spans, tuple(call.id for call in chain), last.temperature
    )
