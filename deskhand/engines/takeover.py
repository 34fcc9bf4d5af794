"""Engine whose replies a person may write while an episode is taken over: `TakeoverEngine`.

The recorder of training, evaluation and `deskhand try` serves through it (`recipes.assemble`). `rollout.runner` names
the episode whose calls are made inside `answered_by`; `rollout.live_episode` has the person's replies.

Invariant: a person's reply carries the restriction "human", so it is imitated at most, never trained by a policy
gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from deskhand.errors import AgentError, RecordError
from deskhand.types import Completion, Engine, Feature, Prompt, Sampling

Encode = Callable[[str], tuple[int, ...]]
"""Returns the token ids of a reply with its stop id. Raises `AgentError` if it cannot be one."""


class ReplySource(Protocol):
    """Who may answer the calls of one episode in place of the model."""

    async def reply(self, encode: Encode) -> tuple[int, ...] | None:
        """Return a person's reply, encoded by `encode`; None if the model answers. Waits while a person has taken
        over."""
        ...


class TakeoverEngine:
    """Engine that asks the `ReplySource` of the current episode first, then `engine`.

    `encode` returns the token ids of plain text and raises `RecordError` for text that cannot be tokenized.
    """

    def __init__(self, engine: Engine, encode: Callable[[str], Sequence[int]], stop_id: int) -> None:
        self.engine = engine
        self._encode, self._stop_id = encode, stop_id
        self._source: ContextVar[ReplySource | None] = ContextVar("reply_source", default=None)

    @contextmanager
    def answered_by(self, source: ReplySource) -> Iterator[None]:
        """Offer the calls made inside the context to `source`."""
        token = self._source.set(source)
        try:
            yield
        finally:
            self._source.reset(token)

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """Return the reply of the person or of the engine."""
        source = self._source.get()
        token_ids = None if source is None else await source.reply(lambda text: self._encoded(text, sampling))
        if token_ids is None:
            return await self.engine.generate(prompt, sampling)
        count = len(token_ids)
        versions = (self.version,) * count
        return Completion(token_ids, (0.0,) * count, versions, "stop", prompt.token_ids, restriction="human")

    def _encoded(self, text: str, sampling: Sampling) -> tuple[int, ...]:
        try:
            token_ids = (*self._encode(text), self._stop_id)
        except RecordError as error:
            raise AgentError(f"the action cannot be written as a reply ({error}); use another text") from error
        if len(token_ids) > sampling.max_tokens:
            limit = f"agent.max_new_tokens is {sampling.max_tokens}"
            raise AgentError(f"the action has {len(token_ids)} tokens as a reply, but {limit}; type less at once")
        return token_ids

    @property
    def version(self) -> int:
        return self.engine.version

    @property
    def features(self) -> frozenset[Feature]:
        return self.engine.features

    async def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        await self.engine.update_weights(version, weights)

    async def pause(self) -> None:
        await self.engine.pause()

    async def resume(self) -> None:
        await self.engine.resume()

    async def close(self) -> None:
        await self.engine.close()
