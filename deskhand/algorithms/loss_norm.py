"""How the losses of tokens are added up. Invariant: an episode counts once, whatever its length and however it is cut into rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def token_weights(
    episodes: Sequence[str], token_counts: Sequence[int], weights: Sequence[float], divisor: float | None = None
) -> np.ndarray:
    """What to multiply each row's token losses with, so that their sum is the mean over episodes of the mean over tokens.

    One entry a row: its episode, how many of its tokens are trained, and the weight of its episode. Returns float64[rows]:
    `weight / (tokens of the episode in all its rows * number of episodes)`; with `divisor`, that number stands in place of the
    episode's tokens (Dr.GRPO). Rows without trained tokens get 0.
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
