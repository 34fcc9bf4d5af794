"""The call graph of an episode. Invariant: every sampled token is in exactly one sequence, however the calls are merged.

A *call* is one model call: a full prompt and the completion that was sampled for it. A call whose prompt starts with an
earlier call's prompt + output, token for token and image for image, *extends* that call; anything else is a fork. A chain of
extending calls is one *sequence*: prompt and observation tokens are context, sampled tokens are trained once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from deskhand.engines.base import Completion, ImageSpan
from deskhand.errors import RecordError


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
    """The calls of one episode in the order in which they were made."""

    calls: list[Call] = field(default_factory=list)

    def parent_of(self, prompt_ids: tuple[int, ...], spans: tuple[ImageSpan, ...], temperature: float) -> str | None:
        """Id of the call with the longest prompt + output that this prompt starts with and that nothing extends yet."""
        extended = {call.parent for call in self.calls}
        best: Call | None = None
        for call in self.calls:
            end = call.end_ids
            if call.id in extended or call.temperature != temperature or len(end) > len(prompt_ids):
                continue
            if best is not None and len(end) <= len(best.end_ids):
                continue
            if prompt_ids[: len(end)] == end and spans[: len(call.spans)] == call.spans:
                best = call
        return best.id if best else None

    def add(self, call: Call) -> None:
        """Append a call. Raises `RecordError` when its completion is inconsistent or its parent is not a prefix."""
        done = call.completion
        if not len(done.token_ids) == len(done.logprobs) == len(done.versions):
            raise RecordError("lengths", f"call {call.id} has {len(done.token_ids)} ids, {len(done.logprobs)} log-probs")
        if call.parent is not None:
            end = self.get(call.parent).end_ids
            if call.prompt_ids[: len(end)] != end:
                raise RecordError("not_a_prefix", f"call {call.id} does not extend call {call.parent}")
        self.calls.append(call)

    def get(self, call_id: str) -> Call:
        for call in self.calls:
            if call.id == call_id:
                return call
        raise KeyError(call_id)

    def sequences(self, merge: bool = True) -> list[Sequence]:
        """Training rows. `merge=False` gives one row per call: the same sampled tokens, more context tokens."""
        chains: dict[str, list[Call]] = {}
        for call in self.calls:
            if merge and call.parent is not None:
                chain = chains.pop(call.parent)
                chain.append(call)
            else:
                chain = [call]
            chains[call.id] = chain
        return [_row(chain) for chain in chains.values()]

    @property
    def sampled_tokens(self) -> int:
        return sum(len(call.completion.token_ids) for call in self.calls)


def _row(chain: list[Call]) -> Sequence:
    last = chain[-1]
    ids = last.end_ids
    sampled, logprobs, versions = [False] * len(ids), [0.0] * len(ids), [-1] * len(ids)
    for call in chain:
        start = len(call.prompt_ids)
        for offset, (logprob, version) in enumerate(zip(call.completion.logprobs, call.completion.versions, strict=True)):
            sampled[start + offset], logprobs[start + offset], versions[start + offset] = True, logprob, version
    if sum(sampled) != sum(len(call.completion.token_ids) for call in chain):
        raise RecordError("overlap", "two calls of one sequence sampled the same position")
    return Sequence(
        ids, tuple(sampled), tuple(logprobs), tuple(versions), last.spans, tuple(call.id for call in chain), last.temperature
    )
