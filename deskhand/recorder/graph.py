"""Call graph of an episode and its merge into training sequences.

Used by the recorder, the store and the trainer; start with `CallGraph.add` and `CallGraph.sequences`.

A *call* is one model call: a full prompt and the completion sampled for it. A call whose prompt starts with an earlier
call's prompt + output (same tokens, same images) *extends* that call; anything else is a fork: edited history, a retry,
concurrent calls, a sub-agent, a compacted context. A chain of extending calls is one *sequence*: prompt and observation
tokens are context, sampled tokens are trained on once. Calls in `untrained` are stored and never trained on.

Each node stores only what it adds to its parent, so the graph grows with an episode's tokens; full prompts are built on
access.

Invariant: every sampled token is in exactly one sequence, however the calls are merged.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, overload

from deskhand.errors import RecordError
from deskhand.types import RESTRICTIONS, Completion, ImageSpan

FORMAT = 1
"""Version of the dictionary written by `CallGraph.to_dict`."""
_TAIL = 16
"""Sampled ids at a call's end that are compared first; almost every wrong candidate differs in them."""


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded call. `prompt_ids` have expanded placeholders; `spans` are in prompt positions."""

    id: str
    parent: str | None
    prompt_ids: tuple[int, ...]
    spans: tuple[ImageSpan, ...]
    completion: Completion
    temperature: float = 1.0
    text: str = ""
    agent: str = ""
    """Agent that made the call; empty for the only or first one."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Prompt + output, the required prefix of an extending prompt."""
        return self.prompt_ids + self.completion.token_ids

    @property
    def end(self) -> int:
        """Length of `end_ids`."""
        return len(self.prompt_ids) + len(self.completion.token_ids)

    def is_extended_by(self, prompt_ids: tuple[int, ...], spans: tuple[ImageSpan, ...]) -> bool:
        """Return whether a prompt starts with this call's prompt + output, including its images."""
        start, end, output = len(self.prompt_ids), self.end, self.completion.token_ids
        if end > len(prompt_ids) or prompt_ids[max(start, end - _TAIL) : end] != output[-_TAIL:]:
            return False
        if spans[: len(self.spans)] != self.spans or any(span.start < end for span in spans[len(self.spans) :]):
            return False
        return prompt_ids[start:end] == output and prompt_ids[:start] == self.prompt_ids


@dataclass(frozen=True, slots=True)
class Sequence:
    """One training sequence: int ids[T], bool loss_mask[T] (trained tokens), float logprobs[T], int versions[T] (0.0
    and -1 if not sampled). `call_ids` are its trained calls, in order."""

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    spans: tuple[ImageSpan, ...]
    call_ids: tuple[str, ...]
    temperature: float = 1.0


@dataclass(frozen=True, slots=True)
class _Node:
    """`call` without the prompt and images that its parent has; `served_ids` are empty if equal to the prompt."""

    call: Call
    end: int
    """Length of prompt and output."""
    num_spans: int
    """Number of images in the full prompt."""


class CallGraph:
    """The calls of one episode in the order in which they were made.

    `untrained` maps ids of calls that are not trained on to the reason: "superseded" (repeated by a later request),
    "undelivered" (the reply was not sent), "inexact" (reported by the engine), or a `Restriction`, such as "top_p" or
    "human": its log-probs are wrong for a policy gradient, and imitation needs none.
    """

    def __init__(self, calls: Iterable[Call] = ()) -> None:
        self.untrained: dict[str, str] = {}
        self._nodes: dict[str, _Node] = {}
        self._tips: dict[str, Call] = {}
        for call in calls:
            self.add(call)

    @property
    def calls(self) -> Calls:
        """The calls as a sequence; each is built on access."""
        return Calls(self, self.ids)

    @property
    def ids(self) -> list[str]:
        """Ids of the calls, in order."""
        return list(self._nodes)

    @property
    def ids_to_train(self) -> set[str]:
        """Ids of the calls that are trained on."""
        return self._nodes.keys() - self.untrained.keys()

    def __contains__(self, call_id: object) -> bool:
        return call_id in self._nodes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallGraph) and self._nodes == other._nodes and self.untrained == other.untrained

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"CallGraph({self.ids})"

    def get(self, call_id: str) -> Call:
        """Return the call with that id. Raises `KeyError`."""
        tip = self._tips.get(call_id)  # one lookup: calls may be added in another thread
        if tip is not None:
            return tip
        path = [node.call for node in self._path(self._nodes[call_id])]
        prompt_ids = tuple(chain(*(one.end_ids for one in path[:-1]), path[-1].prompt_ids))
        done = path[-1].completion
        done = replace(done, served_ids=done.served_ids or prompt_ids)
        return replace(
            path[-1], prompt_ids=prompt_ids, spans=tuple(chain(*(one.spans for one in path))), completion=done
        )

    def sampled(self, call_id: str) -> Completion:
        """Return what a call sampled, without building its prompt (`served_ids` may be empty). Raises `KeyError`."""
        return self._nodes[call_id].call.completion

    def parent_of(self, prompt_ids: tuple[int, ...], spans: tuple[ImageSpan, ...], temperature: float) -> str | None:
        """Return the id of the longest call that this prompt extends and that no other call extends yet."""
        best: Call | None = None
        for call in self._tips.values():
            if call.temperature != temperature or (best is not None and call.end <= best.end):
                continue
            if call.is_extended_by(prompt_ids, spans):
                best = call
        return best.id if best else None

    def add(self, call: Call) -> None:
        """Append a call. Raises `RecordError` like `check`."""
        self.check(call)
        node = self._node_of(call)
        if call.parent is not None:
            del self._tips[call.parent]
        self._nodes[call.id] = node
        self._tips[call.id] = call
        done = call.completion
        if not done.exact or done.restriction:
            self.untrained[call.id] = done.restriction if done.exact and done.restriction else "inexact"

    def check(self, call: Call) -> None:
        """Raise `RecordError` if a call cannot be added. Causes are an inconsistent completion, a duplicate id, and a
        parent that is unknown, already extended or not a prefix."""
        done = call.completion
        if not len(done.token_ids) == len(done.logprobs) == len(done.versions):
            raise RecordError(
                "lengths",
                f"call {call.id} has {len(done.token_ids)} ids, {len(done.logprobs)} log-probs and "
                f"{len(done.versions)} versions",
            )
        if call.id in self._nodes:
            raise RecordError("duplicate_call", f"call {call.id} is already recorded")
        if call.parent is None:
            return
        if call.parent not in self._nodes:
            raise RecordError("unknown_parent", f"call {call.id} extends call {call.parent}, which is not recorded")
        parent = self._tips.get(call.parent)
        if parent is None:
            raise RecordError("fork", f"call {call.id} extends call {call.parent}, which is already extended")
        if parent.temperature != call.temperature or not parent.is_extended_by(call.prompt_ids, call.spans):
            raise RecordError("not_a_prefix", f"call {call.id} does not extend call {call.parent}")

    def sequences(self, merge: bool = True, *, imitation: bool = False) -> list[Sequence]:
        """Return the training sequences: one per chain, or one per call with `merge=False`. Untrained calls have no
        sequence of their own; in a chain their tokens are context. `imitation`: for supervised training, which uses ids
        and no log-probs, so calls with a restriction are trained, too; if a person took over, only the person's."""
        untrained = {name for name, why in self.untrained.items() if not imitation or why not in RESTRICTIONS}
        if imitation and "human" in self.untrained.values():
            untrained = {name for name in self._nodes if self.untrained.get(name) != "human"}
        found = []
        for call_id in self._nodes:
            if merge and call_id not in self._tips:
                continue
            path = self._path(self._nodes[call_id])
            trained = {node.call.id for node in (path if merge else path[-1:])} - untrained
            if trained:
                found.append(_sequence(path, trained))
        return found

    @property
    def image_hashes(self) -> set[str]:
        """Names of the images in all prompts."""
        return {span.sha256 for node in self._nodes.values() for span in node.call.spans}

    @property
    def num_sampled_tokens(self) -> int:
        return sum(len(node.call.completion.token_ids) for node in self._nodes.values())

    def to_dict(self) -> dict[str, Any]:
        """Return a lossless dictionary of JSON types; an extending call is written without its parent's part."""
        data: dict[str, Any] = {"format": FORMAT, "calls": [self.call_to_dict(call_id) for call_id in self._nodes]}
        return {**data, "untrained": dict(self.untrained)} if self.untrained else data

    def call_to_dict(self, call_id: str) -> dict[str, Any]:
        """Return one call's entry of `to_dict`."""
        return self._node_to_dict(self._nodes[call_id])

    def dict_of(self, call: Call) -> dict[str, Any]:
        """Return the entry that a call will have once added. Raises `RecordError` like `check`."""
        self.check(call)
        return self._node_to_dict(self._node_of(call))

    def _node_of(self, call: Call) -> _Node:
        parent = self._nodes[call.parent] if call.parent is not None else None
        start, num_spans = (parent.end, parent.num_spans) if parent is not None else (0, 0)
        done = call.completion
        done = replace(done, served_ids=()) if done.served_ids == call.prompt_ids else done
        delta = replace(call, prompt_ids=call.prompt_ids[start:], spans=call.spans[num_spans:], completion=done)
        return _Node(delta, call.end, len(call.spans))

    def _node_to_dict(self, node: _Node) -> dict[str, Any]:
        call, done = node.call, node.call.completion
        data = {
            "id": call.id,
            "parent": call.parent,
            "new_prompt_ids": list(call.prompt_ids),
            "new_spans": [[span.start, span.count, span.sha256] for span in call.spans],
            "token_ids": list(done.token_ids),
            "logprobs": list(done.logprobs),
            "versions": list(done.versions),
            "finish_reason": done.finish_reason,
            "served_ids": list(done.served_ids) or None,
            "temperature": call.temperature,
            "text": call.text,
        }
        if call.agent:
            data["agent"] = call.agent
        if not done.exact:
            data["exact"] = False
        if done.restriction:
            data["restriction"] = done.restriction
        if done.top_logprobs:
            data["top_logprobs"] = [[list(pair) for pair in one] for one in done.top_logprobs]
        return data

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> CallGraph:
        """Read what `to_dict` wrote. Raises `RecordError` for another format or inconsistent calls."""
        if data.get("format") != FORMAT:
            raise RecordError(
                "format", f"call graph of format {data.get('format')}; this version reads format {FORMAT}"
            )
        graph = CallGraph()
        for entry in data["calls"]:
            graph.add_dict(entry)
        unknown = set(data.get("untrained", ())) - set(graph._nodes)
        if unknown:
            raise RecordError("unknown_call", f"untrained calls {sorted(unknown)} are not recorded")
        graph.untrained.update(data.get("untrained", {}))
        return graph

    def add_dict(self, entry: Mapping[str, Any]) -> Call:
        """Append a call written by `call_to_dict` and return it. Raises `RecordError` like `add`."""
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
            entry.get("restriction"),
        )
        call_id, temperature, text = entry["id"], entry["temperature"], entry["text"]
        call = Call(call_id, entry["parent"], prompt_ids, spans, done, temperature, text, entry.get("agent", ""))
        self.add(call)
        return call

    def _path(self, node: _Node) -> list[_Node]:
        """Return the nodes from the root of the chain to this one."""
        path = [node]
        while (parent := path[-1].call.parent) is not None:
            path.append(self._nodes[parent])
        return path[::-1]


class Calls(collections.abc.Sequence[Call]):
    """Calls of a graph, built on access. Equal to any sequence of equal calls."""

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

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, collections.abc.Sequence) or len(self) != len(other):
            return False
        return all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Calls({self._ids})"


def _sequence(path: list[_Node], trained: Container[str]) -> Sequence:
    """Return the sequence of a chain, up to its last trained node."""
    ids, loss_mask, logprobs, versions = list[int](), list[bool](), list[float](), list[int]()
    spans, call_ids, length = list[ImageSpan](), list[str](), 0
    for node in path:
        call, done, known = node.call, node.call.completion, len(node.call.prompt_ids)
        count, is_trained = len(done.token_ids), call.id in trained
        ids += call.end_ids
        loss_mask += [False] * known + [is_trained] * count
        logprobs += [0.0] * known + (list(done.logprobs) if is_trained else [0.0] * count)
        versions += [-1] * known + (list(done.versions) if is_trained else [-1] * count)
        spans += call.spans
        if is_trained:
            call_ids.append(call.id)
            length = len(ids)
            if length != node.end:
                raise RecordError("overlap", f"call {call.id} ends at {node.end}, but at {length} in its sequence")
    return Sequence(
        tuple(ids[:length]),
        tuple(loss_mask[:length]),
        tuple(logprobs[:length]),
        tuple(versions[:length]),
        tuple(span for span in spans if span.start < length),
        tuple(call_ids),
        path[-1].call.temperature,
    )
