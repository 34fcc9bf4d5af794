"""Cache of keys and values of finished requests. Used by `hf.decode_batch`.

The next turn of an episode repeats the last prompt and output and adds an observation, so only the observation has to
be computed. Prompts that share a prefix share entries too, such as the first turns of a group. The states of linear
attention exist for a whole entry only, so there a prompt must begin with the whole entry. Entries are compared by
*keys*: ids, with placeholders replaced by their image's hash.

Invariant: every entry was computed entirely with the current weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from deskhand.engines.hf.kv_cache import SlotContent
from deskhand.types import ImageSpan

_MIN_SHARED = 16
"""Minimum shared tokens; fewer are recomputed, which is cheaper than copying."""


def key_of(token_ids: Iterable[int], spans: Iterable[ImageSpan]) -> np.ndarray:
    """Return the int64 keys of a prompt; equal prefixes of keys mean equal ids and images."""
    key = np.array(token_ids, dtype=np.int64)
    for span in spans:
        key[span.start : span.start + span.count] = -1 - int(span.sha256[:15], 16)
    return key


@dataclass(frozen=True, slots=True, eq=False)
class CachedPrefix:
    key: np.ndarray
    token_ids: tuple[int, ...]
    content: SlotContent

    @property
    def size(self) -> int:
        """Its memory in tokens: states count as many as have keys and values of that size."""
        bytes_per_token = self.content.keys_values.nbytes / len(self.key)
        return len(self.key) + math.ceil(sum(state.nbytes for state in self.content.states) / bytes_per_token)

    def first(self, length: int) -> SlotContent:
        """Return the content of the first `length` tokens; with states, all of them."""
        return self.content._replace(keys_values=self.content.keys_values[:, :, :length])


class PrefixCache:
    """The most recently used entries, of at most `max_tokens` tokens in all."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._entries: dict[int, CachedPrefix] = {}
        """Entries by identity, least recently used first."""
        self.tokens = 0

    def find(self, key: np.ndarray) -> tuple[CachedPrefix, int] | None:
        """Return the entry with the longest prefix in common with `key`, and its length, below that of `key`."""
        best, longest = None, _MIN_SHARED - 1
        for entry in self._entries.values():
            width = min(len(entry.key), len(key) - 1)
            if width <= longest:
                continue
            differs = entry.key[:width] != key[:width]
            shared = int(differs.argmax()) if differs.any() else width
            if shared > longest and (shared == len(entry.key) or not entry.content.states):
                best, longest = entry, shared
        if best is None:
            return None
        self._entries[id(best)] = self._entries.pop(id(best))
        return best, longest

    def add(self, entry: CachedPrefix, extends: CachedPrefix | None) -> None:
        """Add an entry and drop `extends`, an earlier entry that it contains."""
        if entry.size > self._max_tokens:
            return
        if extends is not None:
            self._drop(extends)
        self._entries[id(entry)] = entry
        self.tokens += entry.size
        while self.tokens > self._max_tokens:
            self._drop(next(iter(self._entries.values())))

    def clear(self) -> None:
        self._entries.clear()
        self.tokens = 0

    def _drop(self, entry: CachedPrefix) -> None:
        if self._entries.pop(id(entry), None) is not None:
            self.tokens -= entry.size
