"""Our plain agent on real embedded desktops behind AReaL's own proxy, and our judges and clients in its executor:
rewards arrive, failures are rejected and never scored."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def proxied(found):
    return found["proxied"].result()


def test_each_call_is_a_row_in_the_individual_style(proxied):
    assert all(one is not None for one in proxied["individual"])
    assert all(one["input_ids"][0] >= 2 for one in proxied["individual"])
    assert len(proxied["rewards"]) >= 2
    assert all(isinstance(reward, float) and 0.0 <= reward <= 1.0 for reward in proxied["rewards"])


def test_a_chain_is_a_row_in_the_concat_style(proxied):
    (one,) = proxied["concat"]
    assert one is not None
    assert one["input_ids"][0] < proxied["individual"][0]["input_ids"][0] + proxied["individual"][1]["input_ids"][0]


def test_images_are_in_what_the_proxy_exports_exactly_where_they_are_detected(proxied):
    """Where the proxy exports them, rows recompute to what was sampled; elsewhere the validator refuses an agent that
    looks at screenshots."""
    keys = {"multi_modal_input", "mm_token_type_ids"}
    assert keys & set(proxied["individual"][0]) == (keys if proxied["exports_images"] else set())
    if proxied["exports_images"]:
        with_images, with_noise = proxied["gaps"]
        assert with_images < 1e-4
        assert with_noise > 1e-3


def test_a_group_is_the_rows_of_its_episodes(proxied):
    assert proxied["group"][0] is not None


def test_a_failure_is_rejected_and_loses_the_whole_group_there(proxied):
    assert proxied["failing"] == [None]
    assert proxied["failing_group"] == [None]


def test_an_agent_that_is_late_is_rejected(proxied):
    assert proxied["late"] == [None]


def test_an_agent_in_another_process_finds_the_model_by_its_environment(proxied):
    assert isinstance(proxied["subproc"], float)


def test_sessions_that_others_play_are_taken_and_one_without_a_score_is_no_zero(proxied):
    online = proxied["online"]
    assert len(online["scored"]) == online["taken"] == 2
    (why,) = online["unscored"]
    assert "told to fail" in why
    assert {round(reward, 5) for reward in online["rewards"]} == {round(reward, 5) for reward in online["scored"]}


def test_clients_in_an_episode_are_areal_s_own_and_stay_open(proxied):
    assert proxied["habits"]["shared"] == [True] * 4


def test_a_late_reward_is_repeated_and_becomes_zero_there_and_not_here(proxied):
    habits = proxied["habits"]
    assert habits["theirs late"] == [0, 2]
    said, asked = habits["outside late"]
    assert "timed out after 1.5 s" in said
    assert asked == 1
    assert habits["outside"] == [0.0, 1]


def test_areal_s_wrapper_is_used_for_pure_rewards_without_its_zero(proxied):
    said, asked = proxied["habits"]["pure late"]
    assert "timed out after 1.5 s, 2 times" in said
    assert asked == 2
    assert proxied["habits"]["pure"] == [0.0, 1]
