"""Edge batches: empty, one token, equal rewards, all rejected, non-finite numbers."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from test_critic import samples
from test_trainer import weights

from deskhand import registry
from deskhand.config.trainer import CriticConfig, TrainerConfig
from deskhand.recorder.graph import Sequence
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.trainer import Trainer

KINDS = [*registry.names("algorithm"), "ppo, own trunk"]


def made(make_policy, kind, **settings):
    critic = CriticConfig(backbone="separate" if "own" in kind else "shared")
    settings = {"learning_rate": 1e-3, "ppo_epochs": 2, "num_minibatches": 2, "kl_loss_coef": 0.1, **settings}
    return Trainer(make_policy(), TrainerConfig(algorithm=kind.split(",")[0], critic=critic, **settings))


def everything(trainer):
    """All that is trained, the critic included."""
    return torch.cat(
        [tensor.detach().flatten() for _, tensors, _ in trainer.parts() for tensor in tensors.values()]
    ).clone()


def sound(metrics):
    """The step's record is JSON without infinities, as reports want it."""
    json.dumps(dataclasses.asdict(metrics), allow_nan=False)
    return metrics


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_on_nothing_changes_nothing(make_policy, world, kind):
    trainer = made(make_policy, kind)
    before = everything(trainer)
    metrics = sound(trainer.step([], {}))
    assert (metrics.num_updates, metrics.num_tokens, metrics.num_episodes, trainer.steps) == (0, 0, 0, 1)
    rejected = [
        dataclasses.replace(
            sample, sequence=dataclasses.replace(sample.sequence, logprobs=sample.sequence.logprobs[1:])
        )
        for sample in samples(world)
    ]
    metrics = sound(trainer.step(rejected, world.images))
    assert metrics.rejected == {"lengths": 4}
    assert metrics.num_updates == 0
    assert torch.equal(before, everything(trainer))


@pytest.mark.parametrize("kind", KINDS)
def test_episodes_of_one_token_are_trained(make_policy, kind):
    trainer = made(make_policy, kind)
    rows = [
        TrainingSample(
            Sequence((1, 8, token), (False, False, True), (0.0, 0.0, -3.0), (-1, -1, 0), (), ("a",)),
            advantage,
            str(token),
            1.0,
            reward,
            ((0, 1),),
        )
        for token, advantage, reward in ((20, 1.0, 1.0), (21, -1.0, 0.0))
    ]
    before = everything(trainer)
    metrics = sound(trainer.step(rows, {}))
    assert metrics.num_tokens == 2
    assert metrics.num_updates > 0
    after = everything(trainer)
    assert torch.isfinite(after).all()
    assert not torch.equal(before, after)
    sound(trainer.step(rows[:1], {}))
    assert torch.isfinite(everything(trainer)).all()


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_equal_rewards_teach_the_critic_and_not_the_policy(make_policy, world, reward):
    trainer = made(make_policy, "ppo, own trunk", kl_loss_coef=0.0)
    before, head = weights(trainer.policy), trainer.critic.head.bias.clone()
    metrics = sound(trainer.step(samples(world, rewards=(reward,) * 4), world.images))
    assert torch.equal(before, weights(trainer.policy))
    assert metrics.grad_norm == 0
    assert torch.equal(head, trainer.critic.head.bias) == (reward == 0), (
        "a head that says 0 is right about rewards of 0"
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", ["advantage", "reward", "weight"])
def test_a_reward_that_is_not_finite_is_rejected_before_anything_changes(make_policy, world, kind, field):
    trainer = made(make_policy, kind)
    before = everything(trainer)
    for value in (math.nan, math.inf):
        rows = [dataclasses.replace(sample, **{field: value}) for sample in samples(world)]
        with pytest.raises(ValueError, match="episode-0: "):
            trainer.step(rows, world.images)
    assert torch.equal(before, everything(trainer))


def test_a_value_loss_that_is_not_finite_leaves_policy_and_critic_alone(make_policy, world):
    trainer = made(make_policy, "ppo", ppo_epochs=1, num_minibatches=1, kl_loss_coef=0.0)
    trainer.steps = 1  # the first sets the values to the mean return
    before = everything(trainer)
    trainer.critic.loss = lambda hidden_WH, targets: (trainer.critic.head(hidden_WH) * math.nan).sum()
    metrics = trainer.step(samples(world), world.images)
    assert metrics.num_updates == 0
    assert torch.equal(before, everything(trainer))
