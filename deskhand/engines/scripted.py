"""Engine that replies with scripted texts, so that oracles and replays use the same recorder as models.

Used by `rollout.runner`; `ScriptedEngine.playing` sets the script for the calls made inside its context.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from deskhand.errors import InfrastructureError
from deskhand.types import Completion, Feature, Prompt, Sampling


class ScriptedEngine:
    """Engine whose replies are `encode(text)` followed by `stop_id`. Log-probs are 0."""

    features: frozenset[Feature] = frozenset()

    def __init__(self, encode: Callable[[str], Sequence[int]], stop_id: int) -> None:
        self._encode = encode
        self._stop_id = stop_id
        self._script: ContextVar[AsyncIterator[str] | None] = ContextVar("script", default=None)
        self.version = 0

    @contextmanager
    def playing(self, texts: AsyncIterator[str]) -> Iterator[None]:
        """Answer the calls made inside the context with `texts`, in order."""
        token = self._script.set(texts)
        try:
            yield
        finally:
            self._script.reset(token)

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """Return the script's next text, truncated at `max_tokens`. Raises `InfrastructureError` without a script or
        after its end."""
        script = self._script.get()
        if script is None:
            raise InfrastructureError("no script is playing; call the scripted engine inside `playing`")
        try:
            text = await anext(script)
        except StopAsyncIteration:
            raise InfrastructureError("the script has no more replies; end it with a done action") from None
        ids = (*self._encode(text), self._stop_id)
        cut = ids[: sampling.max_tokens]
        count = len(cut)
        finish = "stop" if count == len(ids) else "length"
        return Completion(cut, (0.0,) * count, (self.version,) * count, finish, prompt.token_ids)

    async def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Set the version; a script has no weights."""
        self.version = version

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def close(self) -> None: ...
