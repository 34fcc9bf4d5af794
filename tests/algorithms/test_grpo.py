"""Group-relative advantages and the clipped objective, against numbers worked out by hand and by finite cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from deskhand.algorithms.grpo import group_advantages
from deskhand.algorithms.kl import kl_estimate
from deskhand.algorithms.loss_norm import token_weights
from deskhand.algorithms.objective import clipped_loss


def test_advantages_are_centred_and_divided_by_the_population_deviation():
    result = group_advantages([1.0, 0.0, 0.0, 1.0], [True] * 4)
    np.testing.assert_allclose(result.values, [1, -1, -1, 1], rtol=1e-5)
    result = group_advantages([1.0, 0.0, 0.0, 0.0], [True] * 4)
    np.testing.assert_allclose(result.values, np.array([0.75, -0.25, -0.25, -0.25]) / np.sqrt(3 / 16), rtol=1e-5)


def test_dr_grpo_only_centres():
    result = group_advantages([1.0, 0.0, 0.0, 0.0], [True] * 4, normalize="none")
    np.testing.assert_array_equal(result.values, [0.75, -0.25, -0.25, -0.25])


def test_unscored_members_neither_shift_the_mean_nor_get_an_advantage():
    result = group_advantages([1.0, float("nan"), 0.0], [True, False, True], normalize="none")
    np.testing.assert_array_equal(result.values, [0.5, 0.0, -0.5])


def test_groups_without_variance_are_flagged_and_exactly_zero():
    rewards = [[0.1 + 0.2, 0.3, 0.3], [1.0, 0.0, 0.0], [0.7, 0.0, 0.0], [0.0, 0.0, 0.0]]
    mask = [[True] * 3, [True] * 3, [True, False, False], [False] * 3]
    result = group_advantages(rewards, mask)
    assert result.zero_variance.tolist() == [True, False, True, True]
    assert (result.values[[0, 2, 3]] == 0.0).all()
    assert (result.values[1] != 0.0).all()


def test_a_scored_reward_that_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match="not finite"):
        group_advantages([1.0, float("nan")], [True, True])


@given(arrays.arrays(np.float64, st.integers(1, 9), elements=st.floats(-5, 5, width=32)), st.data())
def test_advantages_sum_to_zero_and_keep_the_order_of_rewards(rewards, data):
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(rewards), max_size=len(rewards))))
    for normalize in ("std", "none"):
        values = group_advantages(rewards, mask, normalize).values
        assert abs(values.sum()) < 1e-6
        assert (values[~mask] == 0).all()
        scored, gained = rewards[mask], values[mask]
        higher = scored[:, None] > scored[None, :]
        assert (gained[:, None] >= gained[None, :])[higher].all()


CASES = [
    # advantage, ratio, loss with bounds 0.8 and 1.3, whether the gradient is cut
    (1.0, 1.0, -1.0, False),
    (1.0, 1.5, -1.3, True),
    (1.0, 0.5, -0.5, False),
    (-1.0, 1.5, 1.5, False),
    (-1.0, 0.5, 0.8, True),
    (0.0, 9.0, 0.0, False),
]


@pytest.mark.parametrize(("advantage", "ratio", "loss", "cut"), CASES)
def test_the_clip_cuts_only_what_runs_away(advantage, ratio, loss, cut):
    old = torch.tensor([-1.0], dtype=torch.float64)
    new = (old + np.log(ratio)).requires_grad_()
    result = clipped_loss(new, old, torch.tensor([advantage], dtype=torch.float64), torch.tensor([True]), 0.2, 0.3)
    assert result.values.item() == pytest.approx(loss)
    assert result.clipped.item() is cut
    result.values.sum().backward()
    assert new.grad is not None
    assert new.grad.item() == pytest.approx(0.0 if cut else -advantage * ratio)


def test_decoupled_form_weighs_by_proximal_over_behaviour_and_clips_around_proximal():
    new, proximal, old = np.array([0.5, 0.5]), np.array([0.4, 0.4]), np.array([0.0, -2.0])
    ones, mask = np.array([1.0, 1.0]), np.array([True, True])
    result = clipped_loss(new, old, ones, mask, 0.2, 0.2, proximal, importance_weight_cap=5.0)
    np.testing.assert_allclose(result.ratios, np.exp(0.1))
    np.testing.assert_allclose(result.importance_weights, [np.exp(0.4), 0.0])
    np.testing.assert_allclose(result.values, [-np.exp(0.1) * np.exp(0.4), 0.0])
    truncated = clipped_loss(new, old, np.ones(2), np.ones(2, dtype=bool), 0.2, 0.2, proximal, 5.0, "truncate")
    np.testing.assert_allclose(truncated.importance_weights, [np.exp(0.4), 5.0])
    free = clipped_loss(new, old, np.ones(2), np.ones(2, dtype=bool), 0.2, 0.2, proximal, None)
    np.testing.assert_allclose(free.importance_weights, np.exp([0.4, 2.4]))


def test_masked_tokens_cost_nothing_whatever_they_hold():
    new = torch.tensor([0.0, float("inf")], requires_grad=True)
    result = clipped_loss(new, torch.tensor([0.0, -float("inf")]), torch.ones(2), torch.tensor([True, False]))
    assert result.values.tolist() == [-1.0, 0.0]
    result.values.sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == [-1.0, 0.0]


@given(st.integers(1, 20), st.integers(0, 10_000))
def test_numpy_and_torch_agree(length, seed):
    random = np.random.default_rng(seed)
    new, old, proximal, advantages = random.normal(size=(4, length))
    mask = random.random(length) < 0.8
    by_numpy = clipped_loss(new, old, advantages, mask, 0.2, 0.28, proximal, 2.0)
    tensors = [torch.from_numpy(array) for array in (new, old, advantages, mask)]
    by_torch = clipped_loss(*tensors, 0.2, 0.28, torch.from_numpy(proximal), 2.0)
    for name in ("values", "ratios", "clipped", "importance_weights"):
        np.testing.assert_allclose(getattr(by_numpy, name), getattr(by_torch, name).numpy(), rtol=1e-12)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=12), st.randoms())
def test_an_episode_weighs_the_same_however_it_is_cut(rows, random):
    """Any per-token losses, summed with the coefficients, give the mean over episodes of the mean over tokens."""
    losses = [[random.uniform(-1, 1) for _ in range(count)] for _, count in rows]
    coefficients = token_weights([str(episode) for episode, _ in rows], [count for _, count in rows], [1.0] * len(rows))
    total = sum(coefficient * sum(row) for coefficient, row in zip(coefficients, losses, strict=True))
    by_episode: dict[int, list[float]] = {}
    for (episode, _), row in zip(rows, losses, strict=True):
        by_episode.setdefault(episode, []).extend(row)
    means = [sum(values) / len(values) if values else 0.0 for values in by_episode.values()]
    assert total == pytest.approx(sum(means) / len(means), abs=1e-9)


def test_the_weight_of_an_episode_scales_it():
    coefficients = token_weights(["a", "b", "b"], [4, 1, 3], [1.0, 0.5, 0.5])
    np.testing.assert_allclose(coefficients, [1 / 8, 0.5 / 8, 0.5 / 8])


def test_the_kl_estimate_is_never_negative_and_near_the_true_divergence():
    random = np.random.default_rng(0)
    old = np.log([0.4, 0.3, 0.1, 0.1, 0.05, 0.05])
    new = np.log(0.8 * np.exp(old) + 0.2 / 6)
    drawn = random.choice(6, 200_000, p=np.exp(old))
    estimates = kl_estimate(new[drawn], old[drawn])
    assert (estimates >= 0).all()
    assert estimates.mean() == pytest.approx((np.exp(old) * (old - new)).sum(), rel=0.03)
