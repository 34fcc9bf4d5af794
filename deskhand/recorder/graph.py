"""The call graph of an episode. Invariant: every sampled token is in exactly one sequence, however the calls are merged.

A *call* is one model call: a full prompt and the completion that was sampled for it. A call whose prompt starts with an
earlier call's prompt + output, token for token and image for image, *extends* that call; anything else is a fork: edited history,
a retry, one of several calls at once, a sub-agent, a compacted context. A chain of extending calls is one *sequence*: prompt and
observation tokens are context, sampled tokens are trained once. Calls in `untrained` are kept and never trained.
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
    agent: str = ""
    """Which of the episode's agents asked; empty for the only or the first one."""

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
    """One training row: int ids[T], bool sampled[T], float logprobs[T] and int versions[T] (0.0 and -1 where not sampled).

    `call_ids`: the trained calls in it, in order.
    """

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
    untrained: dict[str, str] = field(default_factory=dict)
    """Ids of calls that are kept and not trained, with the reason: "orphan" (a retry's) or "inexact" (the engine says so)."""
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
        """Append a call. Raises `RecordError` as `check`."""
        self.check(call)
        if call.parent is not None:
            del self._tips[call.parent]
        self.calls.append(call)
        self._by_id[call.id] = self._tips[call.id] = call
        if not call.completion.exact:
            self.untrained[call.id] = "inexact"

    def check(self, call: Call) -> None:
        """Raise `RecordError` unless a call can be added.

        It cannot when its completion is inconsistent, its id is taken, its parent is unknown or not a prefix of it, or another call
        extends that parent already.
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

    @property
    def ids(self) -> list[str]:
        """The calls' ids, in order."""
        return list(self._by_id)

    def __contains__(self, call_id: object) -> bool:
        return call_id in self._by_id

    def get(self, call_id: str) -> Call:
        """The call of that id. Raises `KeyError`."""
        return self._by_id[call_id]

    def sequences(self, merge: bool = True) -> list[Sequence]:
        """Training rows. `merge=False` gives one row per call: the same sampled tokens, more context tokens.

        Untrained calls have no row of their own; in a row that goes on from one, its tokens are context.
        """
        chains: dict[str, list[Call]] = {}
        for call in self.calls:
            chain = chains.pop(call.parent) if merge and call.parent is not None else []
            chain.append(call)
            chains[call.id] = chain
        return [_row(chain, self.untrained) for chain in chains.values() if any(call.id not in self.untrained for call in chain)]

    @property
    def sampled_tokens(self) -> int:
        return sum(len(call.completion.token_ids) for call in self.calls)

    def to_dict(self) -> dict[str, Any]:
        """A lossless dictionary of JSON types. Of an extending call only what comes after its parent is written."""
        calls = [call_to_dict(call, self._by_id[call.parent] if call.parent is not None else None) for call in self.calls]
        data: dict[str, Any] = {"format": FORMAT, "calls": calls}
        return {**data, "untrained": dict(self.untrained)} if self.untrained else data

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> CallGraph:
        """The graph that `to_dict` wrote. Raises `RecordError` when the dictionary is of another format or inconsistent."""
        if data.get("format") != FORMAT:
            raise RecordError("format", f"call graph of format {data.get('format')}; this version reads format {FORMAT}")
        graph = CallGraph()
        for entry in data["calls"]:
            graph.add_dict(entry)
        unknown = set(data.get("untrained", ())) - set(graph._by_id)
        if unknown:
            raise RecordError("unknown_call", f"calls {sorted(unknown)} are marked as untrained and not recorded")
        graph.untrained.update(data.get("untrained", {}))
        return graph

    def add_dict(self, entry: Mapping[str, Any]) -> Call:
        """Append the call that `call_to_dict` wrote and return it. Raises `RecordError` as `add`."""
        parent = self._by_id.get(entry["parent"]) if entry["parent"] is not None else None
        if entry["parent"] is not None and parent is None:
            raise RecordError("unknown_parent", f"call {entry['id']} extends call {entry['parent']}, which is not recorded")
        prompt_ids = (parent.end_ids if parent else ()) + tuple(entry["new_prompt_ids"])
        spans = (parent.spans if parent else ()) + tuple(ImageSpan(*span) for span in entry["new_spans"])
        done = Completion(
            tuple(entry["token_ids"]),
            tuple(entry["logprobs"]),
            tuple(entry["versions"]),
            entry["finish_reason"],
            prompt_ids if entry["served_ids"] is None else tuple(entry["served_ids"]),
            tuple(tuple((pair[0], pair[1]) for pair in one) for one in entry.get("top_logprobs", ())),
            entry.get("exact", True),
        )
        call = Call(
            entry["id"], entry["parent"], prompt_ids, spans, done, entry["temperature"], entry["text"], entry.get("agent", "")
        )
        self.add(call)
        return call


def call_to_dict(call: Call, parent: Call | None) -> dict[str, Any]:
    """One call's part of `CallGraph.to_dict`: what it has beyond its parent."""
    done = call.completion
    data = {
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
    if call.agent:
        data["agent"] = call.agent
    if not done.exact:
        data["exact"] = False
    if done.top_logprobs:
        data["top_logprobs"] = [[list(pair) for pair in one] for one in done.top_logprobs]
    return data


def _row(chain: list[Call], untrained: Mapping[str, str]) -> Sequence:
    trained = [call for call in chain if call.id not in untrained]
    last = trained[-1]
    ids = last.end_ids
    sampled, logprobs, versions = [False] * len(ids), [0.0] * len(ids), [-1] * len(ids)
    for call in trained:
        start, end = len(call.prompt_ids), call.end
        if ids[:start] != call.prompt_ids or ids[start:end] != call.completion.token_ids:
            raise RecordError("not_a_prefix", f"call {call.id} is not the beginning of call {last.id}, which its row ends with")
        sampled[start:end] = [True] * (end - start)
        logprobs[start:end] = call.completion.logprobs
        versions[start:end] = call.completion.versions
    if sum(sampled) != sum(len(call.completion.token_ids) for call in trained):
        raise RecordError("overlap", "two calls of one sequence sampled the same position")
    return Sequence(
        ids, tuple(sampled), tuple(logprobs), tuple(versions), last.spans, tuple(call.id for call in trained), last.temperature
    )
