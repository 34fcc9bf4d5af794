"""Keys and values of finished requests. Invariant: every entry was computed entirely with the weights now in use.

The next turn of an episode repeats the last prompt and output and adds an observation; only what it adds has to be run. An
entry is also shared by prompts that agree with it up to some token (the members of a group see the same first screen).
Ids alone do not tell two screenshots apart, so entries are compared by *keys*: ids, with placeholders replaced by their
image's hash.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from deskhand.types import ImageSpan

_WORTHWHILE = 16
"""Fewer shared tokens than this are recomputed: cheaper than copying."""


def key_of(token_ids: Iterable[int], spans: Iterable[ImageSpan]) -> np.ndarray:
    """int64 keys of a prompt: equal prefixes of keys mean equal ids and equal images."""
    key = np.array(token_ids, dtype=np.int64)
    for span in spans:
        key[span.start : span.start + span.count] = -1 - int(span.sha256[:15], 16)
    return key


@dataclass(frozen=True, slots=True, eq=False)
class CachedPrefix:
    key: np.ndarray
    token_ids: tuple[int, ...]
    keys_values: Tensor
    """[2 * layers, heads, len(key), head size]"""


class PrefixCache:
    """The most recently used entries, at most `max_tokens` positions in all."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._entries: dict[int, CachedPrefix] = {}
        """By identity, least recently used first."""
        self.tokens = 0

    def find(self, key: np.ndarray) -> tuple[CachedPrefix, int] | None:
        """The entry that shares the longest prefix with `key`, and its length; at least one token of `key` is left to run."""
        best, longest = None, _WORTHWHILE - 1
        for entry in self._entries.values():
            width = min(len(entry.key), len(key) - 1)
            if width <= longest:
                continue
            differs = entry.key[:width] != key[:width]
            shared = int(differs.argmax()) if differs.any() else width
            if shared > longest:
                best, longest = entry, shared
        if best is None:
            return None
        self._entries[id(best)] = self._entries.pop(id(best))
        return best, longest

    def add(self, entry: CachedPrefix, extends: CachedPrefix | None) -> None:
        """Keep an entry. `extends`: an earlier entry that it holds completely, which is dropped."""
        if len(entry.key) > self._max_tokens:
            return
        if extends is not None:
            self._drop(extends)
        self._entries[id(entry)] = entry
        self.tokens += len(entry.key)
        while self.tokens > self._max_tokens:
            self._drop(next(iter(self._entries.values())))

    def clear(self) -> None:
        self._entries.clear()
        self.tokens = 0

    def _drop(self, entry: CachedPrefix) -> None:
        if self._entries.pop(id(entry), None) is not None:
            self.tokens -= len(entry.key)
