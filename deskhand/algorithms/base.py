"""What sets the algorithms apart. Invariant: they share one objective and one weighting; each file here states only its own
choices.

Every algorithm turns the rewards of episodes into advantages of tokens (`baseline`), takes the ratio of new and old probabilities
over a token or over a whole reply (`unit`), and adds the tokens up (`average`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AlgorithmName = Literal["grpo", "dr_grpo", "gspo", "ppo"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm and its defaults."""

    name: AlgorithmName
    baseline: Literal["group_std", "group_mean", "critic"]
    """What a reward is compared with: its group, divided by the group's standard deviation or not, or a critic's values."""
    ratio_level: Literal["token", "reply"]
    """Over what a ratio is taken."""
    loss_norm: Literal["episode", "constant"]
    """Whether an episode's sum over tokens is divided by its own length, or by the same number for all."""
    clip_low: float
    clip_high: float

    @property
    def uses_critic(self) -> bool:
        return self.baseline == "critic"
