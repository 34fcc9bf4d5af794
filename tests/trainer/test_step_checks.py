"""What is recorded is what is trained: each violated invariant is named, and drops the episode or stops the run."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from test_critic import samples as critic_samples
from test_trainer import samples

from deskhand.algorithms.base import get_algorithm
from deskhand.algorithms.objective import clipped_loss
from deskhand.config.trainer import TrainerConfig
from deskhand.errors import HealthError, RecordError
from deskhand.recorder.graph import Sequence
from deskhand.recorder.invariants import check_rows
from deskhand.trainer import trainer as trainer_module
from deskhand.trainer.advantages import AdvantageEstimate
from deskhand.trainer.batch import TrainingSample, check_sequence, plan_microbatches
from deskhand.trainer.step_checks import check_estimate, check_groups, check_loss
from deskhand.trainer.trainer import Trainer

ROW = Sequence((15, 16, 17, 18), (False, False, True, True), (0.0, 0.0, -1.0, -2.0), (-1, -1, 0, 0), (), ("call",))
BROKEN = {
    "the mask is one token early": ({"loss_mask": (False, True, True, False)}, "last_token"),
    "a trained token has no version": ({"versions": (-1, -1, -1, 0)}, "versions"),
    "an observation has a version": ({"versions": (-1, 0, 0, 0)}, "versions"),
    "an observation has a log-prob": ({"logprobs": (0.0, -1.0, -1.0, -2.0)}, "logprob"),
    "a log-prob is above 0": ({"logprobs": (0.0, 0.0, 1.0, -2.0)}, "logprob"),
    "a log-prob is not a number": ({"logprobs": (0.0, 0.0, float("nan"), -2.0)}, "logprob"),
    "nothing precedes the reply": ({"loss_mask": (True,) * 4, "versions": (0,) * 4}, "no_prompt"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_token_is_trained_if_and_only_if_it_was_sampled(name):
    change, cause = BROKEN[name]
    check_sequence(ROW, {}, image_token_id=1)
    with pytest.raises(RecordError) as caught:
        check_sequence(dataclasses.replace(ROW, **change), {}, image_token_id=1)
    assert caught.value.cause == cause


def test_a_call_that_is_trained_twice_rejects_its_episode(policy):
    sample = TrainingSample(ROW, advantage=1.0, episode_id="episode", reward=1.0)
    other = dataclasses.replace(sample, episode_id="other")
    metrics = Trainer(policy).step([sample, sample, other], {})
    assert metrics.rejected == {"trained_twice": 1}
    assert metrics.num_tokens == 2


def test_sequences_train_exactly_what_their_calls_sampled(world):
    graph = max(world.graphs, key=lambda graph: len(graph.sequences()))
    rows = graph.sequences()
    assert len(rows) > 1
    check_rows(rows, graph)
    check_rows(graph.sequences(merge=False), graph)
    where = np.flatnonzero(rows[0].loss_mask)
    swapped = list(rows[0].logprobs)
    swapped[where[0]], swapped[where[1]] = swapped[where[1]], swapped[where[0]]
    for wrong, cause in (
        ([*rows, rows[0]], "trained_twice"),
        (rows[1:], "not_trained"),
        ([dataclasses.replace(rows[0], logprobs=tuple(swapped)), *rows[1:]], "misaligned"),
        (
            [dataclasses.replace(rows[0], versions=tuple(v + (v >= 0) for v in rows[0].versions)), *rows[1:]],
            "misaligned",
        ),
        ([dataclasses.replace(rows[0], token_ids=(9, *rows[0].token_ids[1:])), *rows[1:]], "not_as_served"),
        ([dataclasses.replace(rows[0], spans=()), *rows[1:]], "not_as_served"),
    ):
        with pytest.raises(RecordError) as caught:
            check_rows(wrong, graph)
        assert caught.value.cause == cause
    graph.untrained[rows[0].call_ids[0]] = "superseded"
    try:
        with pytest.raises(RecordError, match="untrained_call"):
            check_rows(rows, graph)
    finally:
        graph.untrained.clear()


def grouped(advantages, rewards, size=None):
    return [
        TrainingSample(ROW, advantage, f"e{n}", reward=reward, group_id="g", group_size=size or len(rewards))
        for n, (advantage, reward) in enumerate(zip(advantages, rewards, strict=True))
    ]


def test_advantages_of_a_complete_group_sum_to_zero_in_the_order_of_its_rewards():
    rewards = np.array([0.0, 1.0, 1.0, 0.4])
    for name in ("grpo", "dr_grpo", "gspo"):
        algorithm = get_algorithm(name)
        assert algorithm.is_centered
        advantages = algorithm(rewards)
        check_groups(grouped(advantages, rewards), algorithm)
        for wrong, invariant in (
            (advantages + 0.1, "advantages_sum"),
            (-advantages, "advantages_order"),
            (advantages[::-1], "advantages_order"),
            (advantages + np.array([0.0, 0.01, -0.01, 0.0]), "advantages_order"),
        ):
            with pytest.raises(HealthError, match=f"invariant {invariant}"):
                check_groups(grouped(wrong, rewards), algorithm)
        check_groups(grouped(advantages[:3], rewards[:3], size=4), algorithm)  # a member is stale
        check_groups(grouped(-advantages, rewards), dataclasses.replace(algorithm, is_centered=False))


def test_every_token_has_the_advantage_of_its_episode():
    given = grouped([-1.0, 1.0, 0.0], [0.0, 1.0, 0.5])
    right = [np.full(2, sample.advantage, np.float32) for sample in given]
    check_estimate(given, AdvantageEstimate(right), has_critic=False)
    for wrong in (right[::-1], [right[0][:1], *right[1:]], [np.array([-1.0, 1.0], np.float32), *right[1:]]):
        with pytest.raises(HealthError, match="invariant advantages_aligned"):
            check_estimate(given, AdvantageEstimate(wrong), has_critic=False)


LOSSES = {
    "values": lambda found: -found.values,
    "every second token": lambda found: found.values * torch.tensor([1.0, 0.0, 1.0, 0.0]),
    "no gradient": lambda found: found.values * 0.0,
}


@pytest.mark.parametrize(
    ("name", "replies"),
    [
        *((name, None) for name in LOSSES),
        # A reply's ratio is the mean over its tokens, so each of them has a gradient.
        *((name, torch.tensor([0, 0, 1, 1])) for name in LOSSES if name != "every second token"),
    ],
)
def test_the_gradient_of_the_loss_has_the_sign_of_the_advantage(name, replies):
    new = torch.tensor([-1.0, -2.0, -0.5, -0.1], requires_grad=True)
    old, weights = torch.tensor([-1.1, -2.0, -0.4, -0.1]), torch.full((4,), 0.25)
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])
    found = clipped_loss(new, old, advantages, 0.5, 0.5, new.detach(), replies=replies)
    check_loss((found.values * weights).sum(), new, advantages, weights, found)
    with pytest.raises(HealthError, match="invariant loss_"):
        check_loss((LOSSES[name](found) * weights).sum(), new, advantages, weights, found)


def test_a_gradient_too_small_for_float32_stops_no_run():
    new = torch.tensor([-1.0], requires_grad=True)
    advantages, weights = torch.tensor([1.0]), torch.tensor([1e-36])
    found = clipped_loss(new, new.detach() + 30, advantages, 0.5, 0.5, new.detach())
    assert found.importance_weights * weights == 0
    check_loss((found.values * weights).sum(), new, advantages, weights, found)


@pytest.mark.parametrize("norm", ["episode", "token", "constant", "sum"])
def test_token_weights_of_another_denominator_stop_the_run(make_policy, world, monkeypatch, norm):
    config = TrainerConfig(loss_norm=norm)
    Trainer(make_policy(), config).step(samples(world), world.images)
    weights = trainer_module.token_weights
    monkeypatch.setattr(trainer_module, "token_weights", lambda *given: weights(*given) * 2)
    with pytest.raises(HealthError, match="invariant loss_weights"):
        Trainer(make_policy(), config).step(samples(world), world.images)


def test_returns_of_the_critic_end_in_the_reward(make_policy, world, monkeypatch):
    given = critic_samples(world)
    Trainer(make_policy(), TrainerConfig(algorithm="ppo")).step(given, world.images)
    gae = trainer_module.gae_advantages_of

    def negative(*arguments):
        found = gae(*arguments)
        return dataclasses.replace(found, advantages=[-row for row in found.advantages])

    monkeypatch.setattr(trainer_module, "gae_advantages_of", negative)
    with pytest.raises(HealthError, match="invariant advantages_aligned"):
        Trainer(make_policy(), TrainerConfig(algorithm="ppo")).step(given, world.images)


def test_only_replies_of_one_version_compare_engine_and_trainer(make_policy, world):
    """Later tokens of a reply into which new weights came were sampled from old keys and values."""
    policy = make_policy()
    rows = [sample.sequence for sample in samples(world)]
    (first,) = plan_microbatches(rows[:1], world.images, policy.model, 10**6).batches
    assert first.same_version_W.all()
    where = np.flatnonzero(rows[0].loss_mask)
    runs = np.split(where, np.flatnonzero(np.diff(where) != 1) + 1)
    assert len(runs) > 1
    assert len(runs[0]) > 1
    versions = [version + (place >= runs[0][-1]) * (version >= 0) for place, version in enumerate(rows[0].versions)]
    mixed = dataclasses.replace(rows[0], versions=tuple(versions))
    (batch,) = plan_microbatches([mixed], world.images, policy.model, 10**6).batches
    assert batch.same_version_W.tolist() == [False] * len(runs[0]) + [True] * (len(where) - len(runs[0]))
