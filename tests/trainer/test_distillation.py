"""On-policy distillation: the formula in float64, the gradient of the reverse KL divergence, and what is refused."""

from __future__ import annotations

import dataclasses

import algorithm_reference as reference
import numpy as np
import pytest
import torch
from algorithm_reference import Episode, Settings, Token
from small_policy import BANNED, build
from test_step_against_reference import REWARDS, WEIGHTS, disturbed
from test_trainer import samples, weights

from deskhand.algorithms.base import get_algorithm
from deskhand.config.load import load_config
from deskhand.config.trainer import DistillationConfig, TrainerConfig
from deskhand.errors import ConfigError, HealthError
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer


@pytest.fixture(scope="module")
def teacher() -> Policy:
    """Another random model."""
    return Policy(build(seed=5).requires_grad_(False), banned_ids=BANNED)


@pytest.mark.parametrize("name", ["grpo", "dapo", "rloo", "cispo"])
def test_the_loss_of_a_step_with_a_teacher_is_the_references(make_policy, world, teacher, name):
    given, replies = disturbed(world)
    found = get_algorithm(name)(np.array(REWARDS))
    given = [dataclasses.replace(one, advantage=float(found[int(one.episode_id[1:])])) for one in given]
    distillation = DistillationConfig(teacher="x", distill_loss_weight=0.3, rl_loss_weight=0.6)
    config = TrainerConfig(algorithm=name, learning_rate=1e-12, importance_weight_cap=1.3, distillation=distillation)
    trainer = Trainer(make_policy(), config, teacher=teacher.logprobs)
    rows = [one.sequence for one in given]
    new, scored = trainer.policy.logprobs(rows, world.images), teacher.logprobs(rows, world.images)
    old = [np.array(row.logprobs)[list(row.loss_mask)] for row in rows]

    def token(row: int, t: int) -> Token:
        centre = float(new[row][t])
        return Token(centre, centre, float(old[row][t]), centre, 0.0, 0.0, float(scored[row][t]))

    episodes = [
        Episode(0, REWARDS[n], WEIGHTS[n], [[token(row, t) for t in range(a, b)] for _, row, a, b in spans])
        for n, spans in enumerate(replies)
    ]
    metrics = trainer.step(given, world.images)
    settings = Settings(cap=1.3, rl_weight=0.6, distill_weight=0.3)
    assert metrics.loss == pytest.approx(reference.loss(name, episodes, settings), abs=2e-5)
    assert metrics.teacher_kl == pytest.approx((np.concatenate(old) - np.concatenate(scored)).mean(), abs=1e-5)


def test_the_expected_gradient_is_that_of_the_reverse_kl_divergence():
    """The mean over the student's own samples of advantage times score, exactly, in float64."""
    from deskhand.algorithms.distillation import distillation_advantages

    torch.manual_seed(0)
    logits, theirs = torch.randn(7, dtype=torch.float64, requires_grad=True), torch.randn(7, dtype=torch.float64)
    ours, other = logits.log_softmax(0), theirs.log_softmax(0)
    (expected,) = torch.autograd.grad((ours.exp() * (ours - other)).sum(), logits, retain_graph=True)
    advantages = distillation_advantages(np.zeros(7), ours.detach().numpy(), other.numpy())
    surrogate = -(ours.exp().detach() * torch.from_numpy(advantages) * ours).sum()
    (found,) = torch.autograd.grad(surrogate, logits)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_without_rewards_the_policy_moves_towards_the_teacher_also_in_equal_groups(make_policy, world, teacher):
    distillation = DistillationConfig(teacher="x", rl_loss_weight=0.0)
    trainer = Trainer(
        make_policy(), TrainerConfig(learning_rate=1e-3, distillation=distillation), None, teacher.logprobs
    )
    assert trainer.objective.trains_equal_rewards
    rows = [one.sequence for one in samples(world)]

    def likelihood() -> float:
        values = [teacher.logprobs(rows, world.images), trainer.policy.logprobs(rows, world.images)]
        good = np.concatenate(values[0]) > np.concatenate(values[1])
        return float(np.concatenate(values[1])[good].mean())

    before = likelihood()
    trainer.step(samples(world, advantages=(0.0,) * 4), world.images)
    assert likelihood() > before


def test_a_teacher_equal_to_the_student_changes_nothing_but_rounding(make_policy, world):
    """Its log-probs are the recorded ones, so the step is that of rewards alone, bit for bit; and off is off."""
    moved = []
    for distillation in (None, DistillationConfig(teacher="x")):

        def recorded(rows, images):
            return [np.array(row.logprobs)[list(row.loss_mask)] for row in rows]

        teacher = recorded if distillation else None
        trainer = Trainer(make_policy(), TrainerConfig(distillation=distillation), teacher=teacher)
        metrics = trainer.step(samples(world), world.images)
        assert metrics.teacher_kl == (None if distillation is None else 0.0)
        moved.append(weights(trainer.policy))
    assert moved[0].equal(moved[1])


def test_what_cannot_be_distilled_is_refused(make_policy, world):
    on = DistillationConfig(teacher="x")
    with pytest.raises(ConfigError, match="gspo has one ratio for a whole reply"):
        Trainer(make_policy(), TrainerConfig(algorithm="gspo", distillation=on), teacher=lambda rows, images: [])
    with pytest.raises(ConfigError, match="needs its teacher"):
        Trainer(make_policy(), TrainerConfig(distillation=on))
    broken = Trainer(
        make_policy(), TrainerConfig(distillation=on), teacher=lambda rows, images: [np.zeros(1) for _ in rows]
    )
    with pytest.raises(HealthError, match="invariant teacher_logprobs"):
        broken.step(samples(world), world.images)
    served = ["trainer.distillation.teacher=http://localhost:1", "agent.temperature=0.8"]
    assert "are those of temperature 1" in (load_config(None, served).training_error or "")
    assert load_config(None, served[:1]).training_error is None
    assert load_config(None, served).trainer.supervised.distillation is None
