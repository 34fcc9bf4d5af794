"""A training step with images and forks against the float64 reference, for every algorithm."""

from __future__ import annotations

import dataclasses

import algorithm_reference as reference
import numpy as np
import pytest
import torch
from algorithm_reference import Episode, Settings, Token

from deskhand import registry
from deskhand.algorithms.base import get_algorithm
from deskhand.algorithms.gigpo import step_advantages
from deskhand.algorithms.reinforce_plus_plus import normalize_over_batch
from deskhand.config.trainer import CriticConfig, TrainerConfig
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.trainer import Trainer

REWARDS = (1.0, 0.0, 0.25, 0.75)
WEIGHTS = (1.0, 0.5, 1.0, 0.25)
DISCOUNTS = {"token_discount": 0.99, "token_lambda": 0.9, "turn_discount": 0.95, "turn_lambda": 0.7}
CRITIC = {"token_gamma": 0.99, "token_gae_lambda": 0.9, "turn_gamma": 0.95, "turn_gae_lambda": 0.7}


def disturbed(world):
    """Return sequences whose recorded log-probs are off by up to half a nat, and the values of their episodes."""
    random = np.random.default_rng(0)
    samples, replies = [], []
    for number, graph in enumerate(world.graphs):
        places = {call.id: place for place, call in enumerate(graph.calls)}
        found = []
        for sequence in graph.sequences():
            noise = random.uniform(-0.5, 0.5, len(sequence.logprobs))
            logprobs = tuple(
                value + (shift if sampled else 0.0)
                for value, shift, sampled in zip(sequence.logprobs, noise, sequence.loss_mask, strict=True)
            )
            lengths = [(places[name], len(graph.get(name).completion.token_ids)) for name in sequence.call_ids]
            start = 0
            for place, length in lengths:
                found.append((place, len(samples), start, start + length))
                start += length
            changed = dataclasses.replace(sequence, logprobs=logprobs)
            samples.append(TrainingSample(changed, 0.0, f"e{number}", WEIGHTS[number], REWARDS[number], tuple(lengths)))
        replies.append(sorted(found))
    return samples, replies


def test_replayed_episodes_have_their_recorded_weights_and_metrics_of_their_own(make_policy, world):
    """The loss is that of all episodes; the metrics of the step's own ones do not change with the replayed ones."""
    samples, _ = disturbed(world)
    advantages = get_algorithm("grpo")(np.array(REWARDS))
    samples = [dataclasses.replace(one, advantage=float(advantages[int(one.episode_id[1:])])) for one in samples]
    marked = [dataclasses.replace(one, is_replayed=one.episode_id in ("e1", "e2")) for one in samples]
    own = [one for one in marked if not one.is_replayed]
    config = TrainerConfig(learning_rate=1e-12, importance_weight_cap=1.3)
    plain, mixed, alone = (Trainer(make_policy(), config).step(given, world.images) for given in (samples, marked, own))
    assert (mixed.loss, mixed.grad_norm, mixed.entropy) == (plain.loss, plain.grad_norm, plain.entropy)
    for name in ("approx_kl", "masked_frac", "importance_weight_mean", "ratio_max", "logprob_diff_max"):
        assert getattr(mixed, name) == pytest.approx(getattr(alone, name), rel=1e-5), name
    policy = make_policy()
    rows = [one.sequence for one in marked if one.is_replayed]
    new = np.concatenate(policy.logprobs(rows, world.images)).astype(np.float64)
    old = np.concatenate([np.array(row.logprobs)[list(row.loss_mask)] for row in rows])
    weights, change = np.exp(new - old), old - new
    masked = weights > 1.3
    assert mixed.replay_tokens == len(new) == plain.num_tokens - alone.num_tokens
    assert mixed.replay_masked_frac == pytest.approx(masked.mean())
    assert mixed.replay_importance_weight_mean == pytest.approx(np.where(masked, 0, weights).mean(), rel=1e-4)
    assert mixed.replay_approx_kl == pytest.approx((np.exp(-change) - 1 + change).mean(), rel=1e-4)
    assert plain.replay_tokens == 0
    assert plain.replay_approx_kl is None


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("name", registry.names("algorithm"))
def test_the_loss_of_a_step_is_the_references(make_policy, world, name, decoupled):
    samples, replies = disturbed(world)
    algorithm = get_algorithm(name)
    if not algorithm.uses_critic:
        advantages = algorithm(np.array(REWARDS))
        if algorithm.normalize_batch:
            advantages = normalize_over_batch(advantages)
        samples = [
            dataclasses.replace(sample, advantage=float(advantages[int(sample.episode_id[1:])])) for sample in samples
        ]
    screens = [[f"s{place % 2}" for place in range(len(graph.calls))] for graph in world.graphs]
    if algorithm.step_discount is not None:
        steps = step_advantages(REWARDS, screens, algorithm.step_discount)
        samples = [
            dataclasses.replace(
                one,
                reply_advantages=tuple(one.advantage + steps[int(one.episode_id[1:])][place] for place, _ in one.turns),
            )
            for one in samples
        ]
    dual_clip = None if name == "cispo" else 1.2
    clips = {} if decoupled else {"clip_ratio_low": 0.1, "clip_ratio_high": 0.3, "dual_clip": dual_clip}
    config = TrainerConfig(
        algorithm=name,
        decoupled_loss=decoupled,
        **clips,
        learning_rate=1e-12,  # the minibatches of GSPO see the same weights
        importance_weight_cap=1.3,
        loss_divisor=50,
        kl_loss_coef=0.05,
        critic=CriticConfig(**CRITIC, train_backbone=False),
    )
    trainer = Trainer(make_policy(), config)
    rows = [sample.sequence for sample in samples]
    new = trainer.policy.logprobs(rows, world.images)
    old = [np.array(row.logprobs)[list(row.loss_mask)] for row in rows]
    values = [np.zeros_like(row) for row in new]
    if trainer.critic is not None:
        torch.manual_seed(1)
        torch.nn.init.normal_(trainer.critic.head.weight, std=0.3)
        values = [row + np.average(REWARDS, weights=WEIGHTS) for row in trainer.critic.values(rows, world.images)]
    with torch.no_grad():
        for parameter in trainer.policy._reference.model.parameters():
            parameter.mul_(0.98)
    held = trainer.policy.reference_logprobs(rows, world.images)

    def token(row: int, t: int) -> Token:
        centre = float(new[row][t]) if decoupled else float(old[row][t])
        value = float(values[row][t])
        return Token(float(new[row][t]), centre, float(old[row][t]), float(held[row][t]), value, value)

    episodes = [
        Episode(
            0,
            REWARDS[n],
            WEIGHTS[n],
            [[token(row, t) for t in range(start, end)] for _, row, start, end in found],
            screens[n],
        )
        for n, found in enumerate(replies)
    ]
    settings = Settings(
        clip_low=0.1, clip_high=0.3, dual_clip=dual_clip, cap=1.3, divisor=50, kl_coefficient=0.05, discounts=DISCOUNTS
    )
    metrics = trainer.step(samples, world.images)
    assert metrics.loss == pytest.approx(reference.loss(name, episodes, settings), abs=2e-5)
    assert metrics.masked_frac > 0 or not decoupled or name == "gspo"
    if trainer.critic is not None:
        expected = config.critic.vf_coef * reference.value_loss(episodes, settings)
        assert metrics.value_loss == pytest.approx(expected, abs=2e-5)
