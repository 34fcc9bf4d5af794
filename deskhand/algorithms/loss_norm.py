"""Normalization of token losses.

Invariant: episodes have equal weight, whatever their length and their split into sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def token_weights(
    episodes: Sequence[str], token_counts: Sequence[int], weights: Sequence[float], divisor: float | None = None
) -> np.ndarray:
    """Return factors on the token losses of sequences, so that they sum to the mean over episodes of token means.

    The factor is `weight / (tokens of the episode * number of episodes)`, 0 without trained tokens. `divisor` replaces
    the tokens of the episode (Dr.GRPO).

    Args:
        episodes: Episode of each sequence.
        token_counts: Number of trained tokens of each sequence.
        weights: Weight of each sequence's episode.
    """
    tokens: dict[str, int] = {}
    for episode, count in zip(episodes, token_counts, strict=True):
        tokens[episode] = tokens.get(episode, 0) + count
    total = len(tokens)
    return np.array(
        [
            weight / ((divisor or tokens[episode]) * total) if tokens[episode] else 0.0
            for episode, weight in zip(episodes, weights, strict=True)
        ]
    )
