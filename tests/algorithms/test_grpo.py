"""Group-relative advantages and the clipped objective, against numbers worked out by hand and by finite cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from deskhand.algorithms.grpo import group_advantages
from deskhand.algorithms.objective import clipped_loss, kl_estimate, token_weights


def test_advantages_are_centered_and_divided_by_the_population_deviation():
    np.testing.assert_allclose(group_advantages([1.0, 0.0, 0.0, 1.0]), [1, -1, -1, 1], rtol=1e-5)
    expected = np.array([0.75, -0.25, -0.25, -0.25])
    np.testing.assert_allclose(group_advantages([1.0, 0.0, 0.0, 0.0]), expected / np.sqrt(3 / 16), rtol=1e-5)
    np.testing.assert_array_equal(group_advantages([1.0, 0.0, 0.0, 0.0], normalize="none"), expected)


def test_groups_without_variance_are_exactly_zero():
    values = group_advantages([[0.1 + 0.2, 0.3, 0.3], [1.0, 0.0, 0.0]])
    assert (values[0] == 0.0).all()
    assert (values[1] != 0.0).all()
    assert group_advantages([0.7]).tolist() == [0.0]


def test_a_scored_reward_that_is_not_a_number_is_rejected():
    with pytest.raises(ValueError, match="not finite"):
        group_advantages([1.0, float("nan")])


@given(arrays.arrays(np.float64, st.integers(1, 9), elements=st.floats(-5, 5, width=32)))
def test_advantages_sum_to_zero_and_keep_the_order_of_rewards(rewards):
    for normalize in ("std", "none"):
        values = group_advantages(rewards, normalize)
        assert abs(values.sum()) < 1e-6
        assert (values[:, None] >= values[None, :])[rewards[:, None] > rewards[None, :]].all()


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
def test_the_clip_cuts_only_gradients_that_increase_the_deviation(advantage, ratio, loss, cut):
    old = torch.tensor([-1.0], dtype=torch.float64)
    new = (old + np.log(ratio)).requires_grad_()
    result = clipped_loss(new, old, torch.tensor([advantage], dtype=torch.float64), 0.2, 0.3)
    assert result.values.item() == pytest.approx(loss)
    assert result.clipped.item() is cut
    result.values.sum().backward()
    assert new.grad is not None
    assert new.grad.item() == pytest.approx(0.0 if cut else -advantage * ratio)


def test_decoupled_form_weighs_by_proximal_over_behaviour_and_clips_around_proximal():
    new, proximal, old = np.array([0.5, 0.5]), np.array([0.4, 0.4]), np.array([0.0, -2.0])
    result = clipped_loss(new, old, np.ones(2), 0.2, 0.2, proximal, importance_weight_cap=5.0)
    np.testing.assert_allclose(result.ratios, np.exp(0.1))
    np.testing.assert_allclose(result.importance_weights, [np.exp(0.4), 0.0])
    np.testing.assert_allclose(result.values, [-np.exp(0.1) * np.exp(0.4), 0.0])
    truncated = clipped_loss(new, old, np.ones(2), 0.2, 0.2, proximal, 5.0, "truncate")
    np.testing.assert_allclose(truncated.importance_weights, [np.exp(0.4), 5.0])
    free = clipped_loss(new, old, np.ones(2), 0.2, 0.2, proximal, None)
    np.testing.assert_allclose(free.importance_weights, np.exp([0.4, 2.4]))


@given(st.integers(1, 20), st.integers(0, 10_000))
def test_numpy_and_torch_agree(length, seed):
    random = np.random.default_rng(seed)
    new, old, proximal, advantages = random.normal(size=(4, length))
    replies = np.sort(random.integers(0, 3, length)) if length % 2 else None
    settings = {"clip_high": 0.28, "importance_weight_cap": 2.0}
    by_numpy = clipped_loss(new, old, advantages, logprobs_proximal=proximal, replies=replies, **settings)
    tensors = [torch.from_numpy(array) for array in (new, old, advantages)]
    more = {"logprobs_proximal": torch.from_numpy(proximal)}
    more["replies"] = None if replies is None else torch.from_numpy(replies)
    by_torch = clipped_loss(*tensors, **more, **settings)
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
