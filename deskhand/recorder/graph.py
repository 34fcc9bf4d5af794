"""The call graph of an episode. Invariant: every sampled token is in exactly one sequence, however the calls are merged.

A *call* is one model call: a full prompt and the completion that was sampled for it. A call whose prompt starts with an
earlier call's prompt + output, token for token and image for image, *extends* that call; anything else is a fork: edited history,
a retry, one of several calls at once, a sub-agent, a compacted context. A chain of extending calls is one *sequence*: prompt and
observation tokens are context, sampled tokens are trained once. Calls in `untrained` are kept and never trained.

The graph holds of each call what it adds to its parent, so it grows with an episode's tokens; whole prompts are made when they
are asked for.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, overload

from deskhand.errors import RecordError
from deskhand.types import Completion, ImageSpan

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


@dataclass(frozen=True, slots=True)
class _Node:
    """A call without what its parent has."""

    id: str
    parent: str | None
    new_prompt_ids: tuple[int, ...]
    new_spans: tuple[ImageSpan, ...]
    completion: Completion
    """Its `served_ids` are empty where they are those of the prompt."""
    temperature: float
    text: str
    agent: str
    end: int
    """Length of prompt and output."""
    span_count: int
    """Images in the whole prompt."""


class CallGraph:
    """The calls of one episode in the order in which they were made. New calls come in through `add` alone.

    `untrained`: ids of calls that are kept and not trained, with the reason: "orphan" (a retry's), "unsent" (its reply reached
    nobody) or "inexact" (the engine says so).
    """

    def __init__(self, calls: Iterable[Call] = ()) -> None:
        self.untrained: dict[str, str] = {}
        self._nodes: dict[str, _Node] = {}
        self._tips: dict[str, Call] = {}
        for call in calls:
            self.add(call)

    @property
    def calls(self) -> Calls:
        """The calls as a sequence; each is made whole when it is asked for."""
        return Calls(self, self.ids)

    @property
    def ids(self) -> list[str]:
        """The calls' ids, in order."""
        return list(self._nodes)

    def __contains__(self, call_id: object) -> bool:
        return call_id in self._nodes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallGraph) and self._nodes == other._nodes and self.untrained == other.untrained

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"CallGraph({self.ids})"

    def get(self, call_id: str) -> Call:
        """The call of that id. Raises `KeyError`."""
        tip = self._tips.get(call_id)  # one look-up: other threads ask while calls are added
        if tip is not None:
            return tip
        node = self._nodes[call_id]
        line = self._line(node)
        prompt_ids = tuple(
            chain(*(one.new_prompt_ids + one.completion.token_ids for one in line[:-1]), node.new_prompt_ids)
        )
        spans = tuple(chain(*(one.new_spans for one in line)))
        done = node.completion
        done = replace(done, served_ids=done.served_ids or prompt_ids)
        return Call(node.id, node.parent, prompt_ids, spans, done, node.temperature, node.text, node.agent)

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
        node = self._node_of(call)
        if call.parent is not None:
            del self._tips[call.parent]
        self._nodes[call.id] = node
        self._tips[call.id] = call
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
        if call.id in self._nodes:
            raise RecordError("duplicate_call", f"call {call.id} is recorded already")
        if call.parent is None:
            return
        if call.parent not in self._nodes:
            raise RecordError("unknown_parent", f"call {call.id} extends call {call.parent}, which is not recorded")
        parent = self._tips.get(call.parent)
        if parent is None:
            raise RecordError("fork", f"call {call.id} extends call {call.parent}, which another call extends already")
        if parent.temperature != call.temperature or not parent.is_extended_by(call.prompt_ids, call.spans):
            raise RecordError("not_a_prefix", f"call {call.id} does not extend call {call.parent}")

    def sequences(self, merge: bool = True) -> list[Sequence]:
        """Training rows. `merge=False` gives one row per call: the same sampled tokens, more context tokens.

        Untrained calls have no row of their own; in a row that goes on from one, its tokens are context.
        """
        lasts = [call_id for call_id in self._nodes if not merge or call_id in self._tips]
        found = []
        for call_id in lasts:
            line = self._line(self._nodes[call_id])
            trained = {one.id for one in (line if merge else line[-1:]) if one.id not in self.untrained}
            if trained:
                found.append(_row(line, trained))
        return found

    @property
    def num_sampled_tokens(self) -> int:
        return sum(len(node.completion.token_ids) for node in self._nodes.values())

    def to_dict(self) -> dict[str, Any]:
        """A lossless dictionary of JSON types. Of an extending call only what comes after its parent is written."""
        data: dict[str, Any] = {"format": FORMAT, "calls": [self.call_to_dict(call_id) for call_id in self._nodes]}
        return {**data, "untrained": dict(self.untrained)} if self.untrained else data

    def call_to_dict(self, call_id: str) -> dict[str, Any]:
        """One call's part of `to_dict`: what it has beyond its parent."""
        return self._node_to_dict(self._nodes[call_id])

    def dict_of(self, call: Call) -> dict[str, Any]:
        """What `call_to_dict` will give once the call is added. Raises `RecordError` as `check`."""
        self.check(call)
        return self._node_to_dict(self._node_of(call))

    def _node_of(self, call: Call) -> _Node:
        before, shown = (
            (self._nodes[call.parent].end, self._nodes[call.parent].span_count) if call.parent is not None else (0, 0)
        )
        done = call.completion
        kept = replace(done, served_ids=()) if done.served_ids == call.prompt_ids else done
        return _Node(
            call.id,
            call.parent,
            call.prompt_ids[before:],
            call.spans[shown:],
            kept,
            call.temperature,
            call.text,
            call.agent,
            call.end,
            len(call.spans),
        )

    def _node_to_dict(self, node: _Node) -> dict[str, Any]:
        done = node.completion
        data = {
            "id": node.id,
            "parent": node.parent,
            "new_prompt_ids": list(node.new_prompt_ids),
            "new_spans": [[span.start, span.count, span.sha256] for span in node.new_spans],
            "token_ids": list(done.token_ids),
            "logprobs": list(done.logprobs),
            "versions": list(done.versions),
            "finish_reason": done.finish_reason,
            "served_ids": list(done.served_ids) or None,
            "temperature": node.temperature,
            "text": node.text,
        }
        if node.agent:
            data["agent"] = node.agent
        if not done.exact:
            data["exact"] = False
        if done.top_logprobs:
            data["top_logprobs"] = [[list(pair) for pair in one] for one in done.top_logprobs]
        return data

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> CallGraph:
        """The graph that `to_dict` wrote. Raises `RecordError` when the dictionary is of another format or inconsistent."""
        if data.get("format") != FORMAT:
            raise RecordError(
                "format", f"call graph of format {data.get('format')}; this version reads format {FORMAT}"
            )
        graph = CallGraph()
        for entry in data["calls"]:
            graph.add_dict(entry)
        unknown = set(data.get("untrained", ())) - set(graph._nodes)
        if unknown:
            raise RecordError("unknown_call", f"calls {sorted(unknown)} are marked as untrained and not recorded")
        graph.untrained.update(data.get("untrained", {}))
        return graph

    def add_dict(self, entry: Mapping[str, Any]) -> Call:
        """Append the call that `call_to_dict` wrote and return it. Raises `RecordError` as `add`."""
        parent = self._tips.get(entry["parent"]) if entry["parent"] is not None else None
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
            entry["id"],
            entry["parent"],
            prompt_ids,
            spans,
            done,
            entry["temperature"],
            entry["text"],
            entry.get("agent", ""),
        )
        self.add(call)
        return call

    def _line(self, node: _Node) -> list[_Node]:
        """The nodes from the first that this one goes on from to itself."""
        line = [node]
        while (parent := line[-1].parent) is not None:
            line.append(self._nodes[parent])
        return line[::-1]


class Calls(collections.abc.Sequence[Call]):
    """Calls of a graph, made whole one at a time. Equal to any sequence of equal calls."""

    def __init__(self, graph: CallGraph, ids: list[str]) -> None:
        self._graph, self._ids = graph, ids

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> Call: ...
    @overload
    def __getitem__(self, index: slice) -> Calls: ...
    def __getitem__(self, index: int | slice) -> Call | Calls:
        found = self._ids[index]
        return Calls(self._graph, found) if isinstance(found, list) else self._graph.get(found)

    def __iter__(self) -> Iterator[Call]:
        return (self._graph.get(call_id) for call_id in self._ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, collections.abc.Sequence) or len(self) != len(other):
            return False
        return all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Calls({self._ids})"


def _row(line: list[_Node], trained: Container[str]) -> Sequence:
    """The row of nodes that each go on from the one before, up to the last that is trained."""
    ids, sampled, logprobs, versions = list[int](), list[bool](), list[float](), list[int]()
    spans, call_ids, length = list[ImageSpan](), list[str](), 0
    for node in line:
        done, known = node.completion, len(node.new_prompt_ids)
        count, is_trained = len(done.token_ids), node.id in trained
        ids += node.new_prompt_ids + done.token_ids
        sampled += [False] * known + [is_trained] * count
        logprobs += [0.0] * known + (list(done.logprobs) if is_trained else [0.0] * count)
        versions += [-1] * known + (list(done.versions) if is_trained else [-1] * count)
        spans += node.new_spans
        if is_trained:
            call_ids.append(node.id)
            length = len(ids)
            if length != node.end:
                raise RecordError("overlap", f"call {node.id} ends at {node.end}, in its row at {length}")
    shown = sum(span.start < length for span in spans)
    kept = slice(length)
    return Sequence(
        tuple(ids[kept]),
        tuple(sampled[kept]),
        tuple(logprobs[kept]),
        tuple(versions[kept]),
        tuple(spans[:shown]),
        tuple(call_ids),
        line[-1].temperature,
    )
