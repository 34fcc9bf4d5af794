"""Rewards are counted once, however rows are merged."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deskhand.recorder.graph import Call, CallGraph
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.recorder.rewards import Rewards
from deskhand.types import Completion

VALUES = st.floats(-4, 4).map(lambda value: round(value, 3))


def graph_of(*agents: str, parents: dict[int, int] | None = None) -> CallGraph:
    """One call per name; `parents` says which extend which."""
    graph = CallGraph()
    for index, agent in enumerate(agents):
        parent = graph.calls[(parents or {})[index]] if parents and index in parents else None
        prompt = (*parent.end_ids, 1) if parent else (index, 1)
        done = Completion((5, 6), (-0.1, -0.2), (0, 0), "stop", prompt)
        graph.add(Call(f"c{index}", parent.id if parent else None, prompt, (), done, agent=agent))
    return graph


def test_the_turn_discount_is_that_of_areal() -> None:
    graph, rewards = graph_of("", "", ""), Rewards()
    rewards.set_call(graph.ids, 1.0)
    returns = rewards.returns(graph, 0.9)
    assert [round(value, 6) for value in returns.values()] == [0.81, 0.9, 1.0]
    assert list(rewards.returns(graph).values()) == [0.0, 0.0, 1.0]
    rewards.set_call(graph.ids, 0.5, "c0")
    assert math.isclose(rewards.returns(graph, 0.9)["c0"], 0.5 + 0.81)


def test_by_agent_concurrent_sub_agents_do_not_share_rewards() -> None:
    graph, rewards = graph_of("", "searcher", "", "searcher"), Rewards()
    rewards.set_call(graph.ids, 1.0, "c3")
    assert list(rewards.returns(graph, 1.0).values()) == [1.0, 1.0, 1.0, 1.0]
    assert list(rewards.returns(graph, 1.0, by_agent=True).values()) == [0.0, 1.0, 0.0, 1.0]


def test_a_reward_of_the_whole_and_of_its_calls_never_both_count() -> None:
    graph, rewards = graph_of("", ""), Rewards()
    rewards.set_episode(1.0)
    rewards.set_episode(0.5)
    with pytest.raises(InvalidRequestError) as caught:
        rewards.set_call(graph.ids, 1.0)
    assert caught.value.code == "rewards_mixed"
    assert list(rewards.returns(graph, 1.0).values()) == [0.5, 0.5]
    assert [rewards.of_row(row) for row in graph.sequences()] == [0.0, 0.0], (
        "the reward of the whole stands once, beside the rows"
    )
    rewards = Rewards()
    rewards.set_call(graph.ids, 1.0)
    with pytest.raises(InvalidRequestError):
        rewards.set_episode(1.0)


@given(
    st.dictionaries(st.integers(0, 5), VALUES, max_size=6),
    st.sampled_from([{}, {1: 0, 2: 1}, {1: 0, 3: 2, 4: 3, 5: 1}]),
    st.booleans(),
)
def test_over_the_rows_rewards_sum_to_what_was_given(
    given_to: dict[int, float], parents: dict[int, int], merge: bool
) -> None:
    graph, rewards = graph_of(*[""] * 6, parents=parents), Rewards()
    for index, value in given_to.items():
        rewards.set_call(graph.ids, 99.0, f"c{index}")
        rewards.set_call(graph.ids, value, f"c{index}")
    total = sum(rewards.of_row(row) for row in graph.sequences(merge))
    assert math.isclose(total, sum(given_to.values()), abs_tol=1e-9)
    assert Rewards.from_dict(rewards.to_dict()) == rewards


@pytest.mark.parametrize("reward", [math.nan, math.inf, True, "1"])
def test_only_finite_numbers_are_rewards(reward: Any) -> None:
    with pytest.raises(InvalidRequestError):
        Rewards().set_call(graph_of("").ids, reward)


def test_an_unknown_call_has_no_reward() -> None:
    with pytest.raises(InvalidRequestError, match="no call"):
        Rewards().set_call(graph_of("").ids, 1.0, "other")
    with pytest.raises(InvalidRequestError, match="no call"):
        Rewards().set_call([], 1.0)
