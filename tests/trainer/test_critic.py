"""The critic: independent of rows, read before the token, and separate from the policy where configured."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from small_policy import BANNED
from test_trainer import weights

from deskhand.algorithms.ppo import gae
from deskhand.config.trainer import CriticConfig, TrainerConfig
from deskhand.trainer.advantages import gae_advantages_of
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.trainer import Trainer

REWARDS = (1.0, 0.0, 0.25, 0.5)


def samples(world, merge=True, rewards=REWARDS):
    """Rows with the place of each reply in the time of its episode."""
    found = []
    for number, (graph, reward) in enumerate(zip(world.graphs, rewards, strict=True)):
        places = {call.id: place for place, call in enumerate(graph.calls)}
        for sequence in graph.sequences(merge):
            replies = tuple((places[name], len(graph.get(name).completion.token_ids)) for name in sequence.call_ids)
            found.append(TrainingSample(sequence, 0.0, f"episode-{number}", 1.0, reward, replies))
    return found


def trainer(make_policy, **critic):
    made = Trainer(make_policy(), TrainerConfig(algorithm="ppo", learning_rate=1e-3, critic=CriticConfig(**critic)))
    assert made.critic is not None
    torch.manual_seed(3)
    torch.nn.init.normal_(made.critic.head.weight)
    return made


def by_place(samples, arrays):
    """Per-token numbers by (episode, call, token), whatever rows they are in."""
    found = {}
    for sample, array in zip(samples, arrays, strict=True):
        start = 0
        for (place, length), _ in zip(sample.turns, sample.reply_lengths(), strict=True):
            found |= {(sample.episode_id, place, t): array[start + t] for t in range(length)}
            start += length
    return found


def test_the_first_values_are_the_mean_return_and_later_steps_keep_what_was_learned(make_policy, world):
    """From 0 the tokens would rise to it at different speeds, and be for or against each other by that alone."""
    made = Trainer(make_policy(), TrainerConfig(algorithm="ppo", learning_rate=1e-3))
    assert made.critic is not None
    rows = samples(world)
    worth = {sample.episode_id: sample.reward for sample in rows}
    first = made.step(rows, world.images)
    assert first.explained_variance == pytest.approx(0.0, abs=1e-6)
    assert first.value_loss == pytest.approx(made.config.critic.vf_coef * np.var(list(worth.values())) / 2, rel=1e-4)
    learned = made.critic.head.bias.item()
    assert learned == pytest.approx(np.mean(list(worth.values())), abs=5e-3)
    better = [dataclasses.replace(sample, reward=sample.reward + 5) for sample in rows]
    made.step(better, world.images)
    assert made.critic.head.bias.item() == pytest.approx(learned, abs=5e-3)


def test_values_and_advantages_do_not_depend_on_the_cut_into_rows(make_policy, world):
    made = trainer(make_policy)
    rows, single = samples(world), samples(world, merge=False)
    values = made.critic.values([sample.sequence for sample in rows], world.images)
    values_single = made.critic.values([sample.sequence for sample in single], world.images)
    merged, unmerged = by_place(rows, values), by_place(single, values_single)
    assert merged.keys() == unmerged.keys()
    assert len(merged) == sum(graph.num_sampled_tokens for graph in world.graphs)
    np.testing.assert_allclose([merged[key] for key in merged], [unmerged[key] for key in merged], atol=2e-4)
    config = made.config.critic
    shuffled = list(reversed(rows))
    credit, other = gae_advantages_of(rows, values, config), gae_advantages_of(shuffled, list(reversed(values)), config)
    one, two = by_place(rows, credit.advantages), by_place(shuffled, other.advantages)
    np.testing.assert_allclose([one[key] for key in one], [two[key] for key in one], atol=1e-6)


def test_the_tokens_of_a_forked_episode_are_put_in_the_order_of_time(make_policy, world):
    """By hand for the longest episode: its rows, turned round, still give the advantages of its calls one after the
    other."""
    graph = max(world.graphs, key=lambda graph: len(graph.calls))
    number = world.graphs.index(graph)
    rows = [sample for sample in samples(world) if sample.episode_id == f"episode-{number}"][::-1]
    assert len(rows) > 1
    values = trainer(make_policy).critic.values([sample.sequence for sample in rows], world.images)
    where = by_place(rows, values)
    order = sorted(where)
    rewards = np.zeros(len(order))
    rewards[-1] = REWARDS[number]
    expected = gae(
        rewards, np.array([where[key] for key in order], dtype=np.float64), np.array([place for _, place, _ in order])
    )
    found = by_place(rows, gae_advantages_of(rows, values, CriticConfig()).returns)
    np.testing.assert_allclose([found[key] for key in order], expected.returns, atol=1e-5)


def test_replies_that_do_not_match_the_row_are_rejected_and_counted(make_policy, world):
    rows = samples(world)
    rows[0] = dataclasses.replace(rows[0], turns=((0, 1),))
    metrics = trainer(make_policy).step(rows, world.images)
    assert metrics.rejected == {"replies": 1}


def test_a_value_is_read_before_its_token_is_seen(make_policy, world):
    made = trainer(make_policy)
    sequence = samples(world)[0].sequence
    first = sequence.loss_mask.index(True)
    other = next(token for token in range(8, 40) if token != sequence.token_ids[first] and token not in BANNED)
    changed = dataclasses.replace(
        sequence, token_ids=(*sequence.token_ids[:first], other, *sequence.token_ids[first + 1 :])
    )
    before, after = made.critic.values([sequence, changed], world.images)
    assert before[0] == pytest.approx(after[0], abs=1e-5)
    assert abs(before[1] - after[1]) > 1e-3


@pytest.mark.parametrize(
    ("settings", "moves"), [({"backbone": "separate"}, False), ({"train_backbone": False}, False), ({}, True)]
)
def test_the_value_loss_reaches_the_policy_only_through_a_shared_backbone(make_policy, world, settings, moves):
    """With equal rewards, zero values and no discount, the policy loss has no gradient, but the critic still learns."""
    config = TrainerConfig(
        algorithm="ppo", learning_rate=1e-3, ppo_epochs=2, critic=CriticConfig(turn_gae_lambda=1, **settings)
    )
    made = Trainer(make_policy(), config)
    made.steps = 1  # the first would set the values to the mean return, which leaves nothing to learn here
    before, own = weights(made.policy), weights(made.critic.own) if made.critic.own else None
    metrics = made.step(samples(world, rewards=(0.5,) * 4), world.images)
    assert metrics.num_sequences == len(samples(world)), "a critic learns from episodes of equal rewards, too"
    assert metrics.value_loss > 0
    assert made.critic.head.weight.any()
    change = (weights(made.policy) - before).abs().max()
    assert (change > 1e-6) == moves
    assert moves or change == 0
    if own is not None:
        assert (weights(made.critic.own) - own).abs().max() > 1e-6


def test_the_value_loss_falls_and_its_variance_is_explained(make_policy, world):
    made = trainer(make_policy, learning_rate=1e-2, cliprange_value=None)
    losses = [made.step(samples(world), world.images) for _ in range(30)]
    assert losses[-1].value_loss < losses[0].value_loss / 2
    assert losses[-1].explained_variance > max(0.0, losses[0].explained_variance)


def test_published_weights_exclude_the_critic(make_policy, world):
    made = trainer(make_policy)
    made.step(samples(world), world.images)
    assert made.policy.snapshot().keys() == make_policy().snapshot().keys()
