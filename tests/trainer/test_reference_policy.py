"""The divergence from the untrained model: 0 at the start, measured against the model as it began, and held down by
its penalty."""

from __future__ import annotations

import numpy as np
import pytest
from test_trainer import samples

from deskhand.config.trainer import LoraConfig, TrainerConfig
from deskhand.trainer.trainer import Trainer

MODES = {
    "adapters": {"lora": LoraConfig(rank=4, alpha=8)},
    "adapters, of the tower too": {"lora": LoraConfig(rank=4, alpha=8, vision=True)},
    "full": {},
}


def rows(world):
    return [sample.sequence for sample in samples(world)]


@pytest.mark.parametrize("mode", MODES)
def test_the_reference_stays_the_model_as_it_began(make_policy, world, mode):
    began = make_policy().logprobs(rows(world), world.images)
    trainer = Trainer(make_policy(**MODES[mode]), TrainerConfig(learning_rate=1e-2, kl_loss_coef=0.01))
    names = set(trainer.policy.parameters())
    for _ in range(3):
        trainer.step(samples(world), world.images)
    assert set(trainer.policy.parameters()) == names
    moved = trainer.policy.logprobs(rows(world), world.images)
    reference = trainer.policy.reference_logprobs(rows(world), world.images)
    for before, after, held in zip(began, moved, reference, strict=True):
        np.testing.assert_allclose(held, before, atol=2e-5)
        assert np.abs(after - before).max() > 1e-3
    assert all(parameter.requires_grad for parameter in trainer.policy.parameters().values()), "adapters are on again"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_a_penalty_holds_the_policy_near_the_reference(make_policy, world, mode, estimator):
    def divergence(coefficient):
        config = TrainerConfig(learning_rate=3e-3, kl_loss_coef=coefficient, kl_estimator=estimator)
        trainer = Trainer(make_policy(**MODES[mode]), config)
        found = [trainer.step(samples(world), world.images).ref_kl for _ in range(8)]
        assert found[0] == pytest.approx(0.0, abs=1e-6)
        return found[-1]

    assert divergence(10.0) < 0.5 * divergence(1e-6)


def test_rows_without_advantage_are_still_held(make_policy, world):
    trainer = Trainer(make_policy(), TrainerConfig(kl_loss_coef=0.1))
    metrics = trainer.step(samples(world, advantages=(0.0,) * 4), world.images)
    assert metrics.num_sequences == len(samples(world))
    assert metrics.ref_kl == pytest.approx(0.0, abs=1e-6)


def test_without_a_penalty_nothing_is_copied_and_nothing_measured(make_policy, world):
    trainer = Trainer(make_policy())
    assert trainer.step(samples(world), world.images).ref_kl is None
    with pytest.raises(ValueError, match="freeze_reference"):
        trainer.policy.reference_logprobs(rows(world), world.images)
