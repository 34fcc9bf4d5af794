"""Training rows of a recorded session, as arrays. Used by `integrations.areal.tensors`; start with `build_rows`.

| style        | rows                                   | reward of a row                            |
|--------------|----------------------------------------|--------------------------------------------|
| `merged`     | one per chain of extending calls       | sum of the rewards of its calls            |
| `individual` | one per call (AReaL's `individual`)    | discounted return of the call              |
| `chain`      | one per chain (AReaL's `concat`)       | discounted return of the chain's last call |

AReaL's `concat` trains a call shared by two chains twice; here the second chain has it as context. If a session was
rewarded as a whole, every row of `merged` has that reward.

Invariant: every sampled token of a trained call is in exactly one row; `weight` makes a session's reward count once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from deskhand.recorder.graph import CallGraph, Sequence
from deskhand.recorder.rewards import Rewards

RowStyle = Literal["merged", "individual", "chain"]


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One training row. `weight` is its share of the session if rows repeat a reward, and 1 if their rewards add up."""

    sequence: Sequence
    reward: float
    weight: float = 1.0


def build_rows(
    graph: CallGraph,
    rewards: Rewards,
    style: RowStyle = "merged",
    *,
    turn_discount: float = 1.0,
    by_agent: bool = False,
) -> list[TrainingRow]:
    """Return the rows of a session; `turn_discount` and `by_agent` are those of `Rewards.returns`."""
    rows = graph.sequences(merge=style != "individual")
    share = 1.0 / len(rows) if rows else 1.0
    if style == "merged" and rewards.episode is None:
        return [TrainingRow(row, rewards.of_row(row)) for row in rows]
    if style == "merged":
        return [TrainingRow(row, rewards.episode or 0.0, share) for row in rows]
    returns = rewards.returns(graph, turn_discount, by_agent=by_agent)
    return [TrainingRow(row, returns[row.call_ids[-1]], share) for row in rows]


def to_arrays(rows: list[TrainingRow], image_id: int) -> dict[str, np.ndarray]:
    """Return rows as arrays with AReaL's names, padded on the right: B rows of T tokens.

    int64[B, T] input_ids and mm_token_type_ids, bool[B, T] attention_mask, int32[B, T] loss_mask and versions (-1 if
    not sampled), float32[B, T] logprobs (0 if not sampled), float32[B] rewards and weights.
    """
    longest = max((len(row.sequence.token_ids) for row in rows), default=0)
    shape = (len(rows), longest)
    arrays: dict[str, np.ndarray] = {
        "input_ids": np.zeros(shape, np.int64),
        "attention_mask": np.zeros(shape, np.bool_),
        "loss_mask": np.zeros(shape, np.int32),
        "logprobs": np.zeros(shape, np.float32),
        "versions": np.full(shape, -1, np.int32),
    }
    for b, row in enumerate(rows):
        length = len(row.sequence.token_ids)
        arrays["input_ids"][b, :length] = row.sequence.token_ids
        arrays["attention_mask"][b, :length] = True
        arrays["loss_mask"][b, :length] = row.sequence.loss_mask
        arrays["logprobs"][b, :length] = row.sequence.logprobs
        arrays["versions"][b, :length] = row.sequence.versions
    arrays["mm_token_type_ids"] = (arrays["input_ids"] == image_id).astype(np.int64) * arrays["attention_mask"]
    arrays["rewards"] = np.array([row.reward for row in rows], np.float32)
    arrays["weights"] = np.array([row.weight for row in rows], np.float32)
    return arrays
