"""An engine that plays given texts. Invariant: it goes through the recorder like any other engine, so a scripted policy (an
oracle, a replay) is evaluated, recorded and exported by the same code as a model.

A script belongs to an episode: `playing` sets it for the calls that are made inside its context, in this process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from deskhand.errors import InfrastructureError
from deskhand.types import Completion, Feature, Prompt, Sampling


class ScriptedEngine:
    """`encode(text)` gives the token ids of a reply, `stop_id` ends it. Log-probs are 0: a script is certain of what it says."""

    def __init__(self, encode: Callable[[str], Sequence[int]], stop_id: int) -> None:
        self._encode = encode
        self._stop_id = stop_id
        self._script: ContextVar[AsyncIterator[str] | None] = ContextVar("script", default=None)
        self._version = 0

    @contextmanager
    def playing(self, texts: AsyncIterator[str]) -> Iterator[None]:
        """Calls made inside are answered by `texts`, one after the other."""
        token = self._script.set(texts)
        try:
            yield
        finally:
            self._script.reset(token)

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """The script's next text, cut at `max_tokens`. Raises `InfrastructureError` when no script plays or it is over."""
        script = self._script.get()
        if script is None:
            raise InfrastructureError("no script is playing; call the scripted engine inside `playing`")
        try:
            text = await anext(script)
        except StopAsyncIteration:
            raise InfrastructureError("the script has no more replies; end it with a done") from None
        ids = (*self._encode(text), self._stop_id)
        cut = ids[: sampling.max_tokens]
        count = len(cut)
        finish = "stop" if count == len(ids) else "length"
        return Completion(cut, (0.0,) * count, (self._version,) * count, finish, prompt.token_ids)

    async def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """A script has no weights; the version is kept."""
        self._version = version

    async def pause(self) -> None:
        """Nothing runs between calls."""

    async def resume(self) -> None:
        """Nothing was paused."""

    @property
    def version(self) -> int:
        return self._version

    @property
    def features(self) -> frozenset[Feature]:
        """None: a script says what it says."""
        return frozenset()

    async def close(self) -> None:
        """Nothing is held."""
