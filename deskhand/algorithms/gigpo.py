"""GiGPO: GRPO with a second advantage for each step, among the steps that saw the same state.

    A(i, t)   = A_E(i) + weight * A_S(i, t)                       every token of reply t of episode i has A(i, t)
    A_E(i)    = (r_i - mean(r)) / (std(r) + epsilon)              over the episodes of the group, as in GRPO
    R(i, t)   = discount ** (T_i - 1 - t) * r_i                   return of step t of T_i; the reward is at the end
    A_S(i, t) = (R(i, t) - mean(R)) / (std(R) + epsilon)          over all steps of the group in the same anchor state

The episodes of a group have the same task and start state, so the same screen occurs in several of them, and several
times in one. What was done there is compared by how the episodes ended, and how soon. A state that occurs once has no
step advantage. Groups with equal rewards are not trained, as in GRPO. The anchor state is the screenshot before the
reply, as exact pixels.

Source: Feng et al., group-in-group policy optimization (arXiv:2505.10978, equations 3 and 6 to 8), with the discount
0.95 and the weight 1 of its experiments.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from deskhand.algorithms.base import algorithm
from deskhand.algorithms.grpo import group_advantages


@algorithm("gigpo", clip_ratio_low=0.2, clip_ratio_high=0.28, is_centered=True, step_discount=0.95)
def gigpo(rewards: np.ndarray) -> np.ndarray:
    """Return the advantages of GRPO; `step_advantages` follows."""
    return group_advantages(rewards)


def step_advantages(
    rewards: Sequence[float], states: Sequence[Sequence[Hashable]], discount: float
) -> list[np.ndarray]:
    """Return A_S by episode, float64[steps each]. `states`: the anchor state of each step of each episode."""
    members: defaultdict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for i, visited in enumerate(states):
        for t, state in enumerate(visited):
            members[state].append((i, t))
    found = [np.zeros(len(visited)) for visited in states]
    for places in members.values():
        returns = np.array([discount ** (len(states[i]) - 1 - t) * rewards[i] for i, t in places])
        for (i, t), advantage in zip(places, group_advantages(returns), strict=True):
            found[i][t] = advantage
    return found
