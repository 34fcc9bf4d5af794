"""In every row style each sampled token is in one row and a session's reward counts once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_graph import PAD, graphs
from test_rewards import graph_of

from deskhand.recorder.graph import CallGraph
from deskhand.recorder.rewards import Rewards
from deskhand.recorder.training_rows import build_rows, to_arrays

STYLES: Any = ["merged", "individual", "chain"]


@settings(max_examples=80, deadline=None)
@given(
    graphs().filter(lambda graph: all(call.completion.token_ids for call in graph.calls)),
    st.sampled_from(STYLES),
    st.data(),
)
def test_tokens_are_in_one_row_only_and_the_reward_counts_once(
    graph: CallGraph, style: Any, data: st.DataObject
) -> None:
    rewards = Rewards()
    whole = data.draw(st.booleans())
    if whole:
        rewards.set_episode(0.75)
    else:
        for call in graph.calls:
            rewards.set_call(graph.ids, 0.25, call.id)
    rows = build_rows(graph, rewards, style)
    assert sorted(call_id for row in rows for call_id in row.sequence.call_ids) == sorted(
        call.id for call in graph.calls
    )
    total = sum(row.weight * row.reward for row in rows)
    if whole:
        assert total == pytest.approx(0.75)
    elif style == "merged":
        assert total == pytest.approx(0.25 * len(graph.calls))
    else:
        assert sum(row.weight for row in rows) == pytest.approx(1.0)
    arrays = to_arrays(rows, PAD)
    assert arrays["loss_mask"].sum() == graph.num_sampled_tokens
    for b, row in enumerate(rows):
        length = int(arrays["attention_mask"][b].sum())
        assert arrays["loss_mask"][b, length - 1] == 1, "a reward on the last token must not be lost"
        assert tuple(arrays["input_ids"][b, :length]) == row.sequence.token_ids
    assert (arrays["versions"] >= 0).sum() == graph.num_sampled_tokens
    assert np.array_equal(arrays["mm_token_type_ids"], (arrays["input_ids"] == PAD) & arrays["attention_mask"])


def test_the_reward_of_a_call_in_each_style() -> None:
    graph, rewards = graph_of("", "", "", parents={1: 0}), Rewards()
    rewards.set_call(graph.ids, 1.0, "c0")
    rewards.set_call(graph.ids, 4.0, "c2")
    assert [row.reward for row in build_rows(graph, rewards, "merged")] == [1.0, 4.0]
    assert [row.reward for row in build_rows(graph, rewards, "individual", turn_discount=0.5)] == [2.0, 2.0, 4.0]
    assert [row.reward for row in build_rows(graph, rewards, "chain", turn_discount=0.5)] == [2.0, 4.0]
    graph.untrained["c1"] = "superseded"
    assert [len(row.sequence.token_ids) for row in build_rows(graph, rewards, "merged")] == [4, 4], (
        "cut after the last trained call"
    )
