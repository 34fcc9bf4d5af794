"""One call in flight: its prompt, settings and the tokens sampled so far. Used by `hf.engine` and `hf.decode_batch`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from deskhand.engines.hf.grammar import GrammarState
from deskhand.engines.hf.prefix_cache import CachedPrefix, key_of
from deskhand.types import Completion, FinishReason, PreparedImage, Prompt, Sampling, UnsupportedGrammar


@dataclass(slots=True, eq=False)
class DecodeRequest:
    """One call in flight, with the tokens sampled so far."""

    prompt: Prompt
    sampling: Sampling
    max_tokens: int
    future: asyncio.Future[Completion]
    generator: random.Random
    progress: GrammarState | None = None
    """State of the reply in its grammar."""
    text_of: Callable[[list[int]], str] | None = None
    """Decodes sampled ids, for `stop_texts`."""
    key: np.ndarray = field(init=False)
    cancelled: bool = False
    failure: Exception | None = None
    """Error of this request alone."""
    served_ids: tuple[int, ...] = ()
    """Prompt ids that were computed, here or for the reused prefix."""
    reused: CachedPrefix | None = None
    """Cache entry that this request continues completely."""
    first_version: int = -1
    """Weights version of the first keys and values."""
    next_position: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    text_ended: bool = False
    """Whether the text contains a stop text."""

    def __post_init__(self) -> None:
        self.key = key_of(self.prompt.token_ids, self.prompt.spans)

    @property
    def images(self) -> Mapping[str, PreparedImage]:
        return self.prompt.images or {}

    def allowed(self) -> np.ndarray | None:
        """Return bool[vocabulary], the ids allowed by the grammar, or None; set `failure` if none is allowed."""
        if self.progress is None:
            return None
        allowed = self.progress.allowed()
        allowed[list(self.sampling.banned_ids)] = False
        if allowed.any():
            return allowed
        self.failure = UnsupportedGrammar(
            "no token can continue the reply: the tokenizer cannot produce what the grammar requires"
        )
        return None

    def take(self, token_id: int, logprob: float, version: int) -> None:
        """Add a sampled token."""
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if self.progress is not None:
            self.progress.take(token_id)
        if self.text_of is not None and token_id not in self.sampling.stop_ids:
            text = self.text_of(self.token_ids)
            self.text_ended = any(stop in text for stop in self.sampling.stop_texts)

    @property
    def finish_reason(self) -> FinishReason | None:
        if self.text_ended or (self.token_ids and self.token_ids[-1] in self.sampling.stop_ids):
            return "stop"
        return "length" if len(self.token_ids) >= self.max_tokens else None
