"""Rewards of one session, per call or for the session as a whole.

Used by `recorder.recorder` and `recorder.training_rows`. Setting a reward again replaces it.

The turn discount is AReaL's (`apply_reward_discount` of its OpenAI client): backwards over the calls,
`R_i = r_i + discount * R_{i+1}`, with r = 0 for calls without a reward. It runs over all calls of the session;
`by_agent` keeps it within the calls of each agent, so that concurrent sub-agents do not share rewards.

Invariant: over the rows of an export, rewards sum to the rewards of the trained calls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deskhand.recorder.graph import CallGraph, Sequence
from deskhand.recorder.request_errors import InvalidRequestError


@dataclass
class Rewards:
    """Rewards by call id, or `episode` for the whole session; never both."""

    by_call: dict[str, float] = field(default_factory=dict)
    episode: float | None = None

    def set_call(self, call_ids: list[str], reward: float, call_id: str | None = None) -> str:
        """Reward one of the session's calls (None: the last) and return its id. Raises `InvalidRequestError`."""
        _check(reward)
        if self.episode is not None:
            raise _mixed("the session has a reward as a whole, so its calls cannot be rewarded")
        if not call_ids:
            raise InvalidRequestError(
                "the session has no calls to reward", param="call_id", code="call_unknown", status=409
            )
        call_id = call_ids[-1] if call_id is None else call_id
        if call_id not in call_ids:
            raise InvalidRequestError(
                f"the session has no call {call_id[:80]}", param="call_id", code="call_unknown", status=404
            )
        self.by_call[call_id] = reward
        return call_id

    def set_episode(self, reward: float) -> None:
        """Reward the session as a whole. Raises `InvalidRequestError`."""
        _check(reward)
        if self.by_call:
            raise _mixed("calls of the session are rewarded, so it cannot be rewarded as a whole")
        self.episode = reward

    def replay(self, call_ids: list[str], entry: Mapping[str, Any]) -> None:
        """Apply a stored `{"reward", "call_id"}`."""
        if entry["call_id"] is None:
            self.set_episode(entry["reward"])
        else:
            self.set_call(call_ids, entry["reward"], entry["call_id"])

    def returns(self, graph: CallGraph, turn_discount: float = 0.0, *, by_agent: bool = False) -> dict[str, float]:
        """Return the discounted return of each call, by id.

        A reward of the whole session counts for its last call. With `turn_discount` 0 each call has its own reward.
        Raises `InvalidRequestError` for a discount outside 0..1.
        """
        if not 0 <= turn_discount <= 1:
            raise InvalidRequestError(f"turn_discount must be in 0..1, got {turn_discount}", param="turn_discount")
        own = dict(self.by_call)
        if self.episode is not None and graph.calls:
            own[graph.calls[-1].id] = self.episode
        found, following = dict[str, float](), dict[str, float]()
        for call in reversed(graph.calls):
            lane = call.agent if by_agent else ""
            following[lane] = own.get(call.id, 0.0) + turn_discount * following.get(lane, 0.0)
            found[call.id] = following[lane]
        return {call.id: found[call.id] for call in graph.calls}

    def of_row(self, row: Sequence) -> float:
        """Return the sum of the rewards of a merged row's calls."""
        return math.fsum(self.by_call.get(call_id, 0.0) for call_id in row.call_ids)

    def of_calls(self, call_ids: list[str]) -> Rewards:
        """Return the rewards restricted to these calls; a reward of the whole session stays."""
        return Rewards(
            {call_id: self.by_call[call_id] for call_id in call_ids if call_id in self.by_call}, self.episode
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return {"by_call": dict(self.by_call), "episode": self.episode}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Rewards:
        """Read what `to_dict` wrote."""
        return Rewards(dict(data["by_call"]), data["episode"])


def _mixed(reason: str) -> InvalidRequestError:
    return InvalidRequestError(reason, param="reward", code="rewards_mixed", status=409)


def _check(reward: float) -> None:
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
        raise InvalidRequestError(f"reward must be a finite number, got {str(reward)[:40]}", param="reward")
