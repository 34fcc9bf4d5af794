"""A step: invariant to rows and micro-batches, exactly zero where there is nothing to learn, books of rejected
episodes kept."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest
import torch
from conftest import screenshot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deskhand.config.trainer import LoraConfig, TrainerConfig
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.trainer import Trainer

ADVANTAGES = (1.5, -0.5, 0.75, -1.0)


def samples(world, merge=True, advantages=ADVANTAGES):
    return [
        TrainingSample(sequence, advantage, f"episode-{number}")
        for number, (graph, advantage) in enumerate(zip(world.graphs, advantages, strict=True))
        for sequence in graph.sequences(merge)
    ]


def weights(policy):
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters().values()]).clone()


def after(make_policy, rows, images, config=None, **settings):
    """Change of the weights by one step of plain gradient descent (so that it is proportional to the gradient), and
    metrics."""
    policy = make_policy(**settings)
    trainer = Trainer(policy, config or TrainerConfig(max_grad_norm=1e9))
    trainer.optimizer = torch.optim.SGD(policy.parameters().values(), lr=1.0)
    trainer.config = trainer.config.model_copy(update={"learning_rate": 1e-3})
    before = weights(policy)
    metrics = trainer.step(rows, images)
    return weights(policy) - before, metrics


def test_merged_and_unmerged_rows_make_the_same_step(make_policy, world):
    merged, metrics = after(make_policy, samples(world), world.images)
    single, metrics_single = after(make_policy, samples(world, merge=False), world.images)
    assert torch.nn.functional.cosine_similarity(merged.double(), single.double(), dim=0) > 0.9999
    assert (merged - single).norm() / merged.norm() < 1e-4
    assert metrics.num_tokens == metrics_single.num_tokens == sum(graph.num_sampled_tokens for graph in world.graphs)
    assert metrics.num_sequences < metrics_single.num_sequences
    assert metrics.loss == pytest.approx(metrics_single.loss, abs=1e-5)


def test_the_step_is_the_mean_over_episodes_of_the_mean_over_tokens(make_policy, world):
    """By hand: plain policy gradient (ratio 1) of each episode's mean log-prob."""
    change, metrics = after(make_policy, samples(world), world.images)
    policy = make_policy()
    for graph, advantage in zip(world.graphs, ADVANTAGES, strict=True):
        sequences = graph.sequences()
        scale = advantage / graph.num_sampled_tokens / len(ADVANTAGES)
        policy.accumulate(
            policy.plan(sequences, world.images), lambda batch, scores, scale=scale: -scale * scores.logprobs_W.sum()
        )
    by_hand = -1e-3 * torch.cat([parameter.grad.flatten() for parameter in policy.parameters().values()])
    assert (change - by_hand).norm() / by_hand.norm() < 1e-3
    assert metrics.loss == pytest.approx(-sum(ADVANTAGES) / 4, abs=1e-4)
    assert metrics.logprob_diff_max < 2e-5
    assert abs(metrics.approx_kl) < 1e-6
    assert metrics.ratio_mean == 1.0
    assert metrics.num_images == len(world.images)


def test_micro_batches_change_nothing(make_policy, world):
    whole, _ = after(make_policy, samples(world), world.images)
    parts, _ = after(make_policy, samples(world), world.images, max_tokens_per_mb=1, max_vision_patches_per_mb=1)
    assert (whole - parts).norm() / whole.norm() < 1e-4


def test_a_zero_variance_group_gives_exactly_zero_gradient(make_policy, world):
    policy = make_policy()
    before = weights(policy)
    trainer = Trainer(policy, TrainerConfig(learning_rate=0.1, weight_decay=0.1, ppo_epochs=2))
    metrics = trainer.step(samples(world, advantages=(0.0,) * 4), world.images)
    assert torch.equal(weights(policy), before)
    assert metrics.grad_norm == 0.0
    assert metrics.num_updates == trainer.updates == 0
    assert metrics.num_episodes == 4
    assert metrics.num_sequences == metrics.num_tokens == 0


def test_episodes_without_advantage_weigh_in_the_mean(make_policy, world):
    alone, _ = after(make_policy, samples(world)[:1], world.images)
    diluted, _ = after(make_policy, samples(world, advantages=(1.5, 0.0, 0.0, 0.0)), world.images)
    torch.testing.assert_close(diluted, alone / 4, atol=1e-7, rtol=1e-3)


def test_the_clip_stops_the_tokens_that_ran_away(make_policy, world):
    """Behaviour log-probs 1 nat lower make every ratio e: with positive advantage all is clipped, with negative
    nothing is."""
    rows = [
        dataclasses.replace(
            sample,
            sequence=dataclasses.replace(
                sample.sequence, logprobs=tuple(value - 1.0 for value in sample.sequence.logprobs)
            ),
        )
        for sample in samples(world)
    ]
    config = TrainerConfig(decoupled_loss=False, max_grad_norm=1e9)
    up = [dataclasses.replace(row, advantage=1.0) for row in rows]
    down = [dataclasses.replace(row, advantage=-1.0) for row in rows]
    change, metrics = after(make_policy, up, world.images, config)
    assert (change == 0).all()
    assert metrics.clip_frac == 1.0
    assert metrics.ratio_mean == pytest.approx(np.e, rel=1e-3)
    change, metrics = after(make_policy, down, world.images, config)
    assert change.norm() > 0
    assert metrics.clip_frac == 0.0


def test_the_decoupled_form_weighs_stale_tokens_and_drops_those_over_the_cap(make_policy, world):
    def stale(shift):
        return [
            dataclasses.replace(
                sample,
                sequence=dataclasses.replace(
                    sample.sequence, logprobs=tuple(value - shift for value in sample.sequence.logprobs)
                ),
            )
            for sample in samples(world)
        ]

    fresh, _ = after(make_policy, samples(world), world.images)
    weighed, metrics = after(make_policy, stale(0.5), world.images)
    assert (weighed - np.exp(0.5) * fresh).norm() / weighed.norm() < 1e-3
    assert metrics.clip_frac == 0.0
    assert metrics.importance_weight_mean == pytest.approx(np.exp(0.5), rel=1e-3)
    dropped, metrics = after(make_policy, stale(2.0), world.images)
    assert (dropped == 0).all()
    assert metrics.masked_frac == 1.0


def test_several_passes_clip_around_the_weights_at_the_start(make_policy, world):
    policy = make_policy()
    trainer = Trainer(policy, TrainerConfig(learning_rate=1e-3, ppo_epochs=4, num_minibatches=2))
    metrics = trainer.step(samples(world), world.images)
    assert metrics.ratio_max > 1.0
    assert metrics.clip_frac > 0.0
    assert metrics.importance_weight_mean == pytest.approx(1.0, abs=1e-4)


def test_only_tokens_of_the_weights_of_now_say_how_far_engine_and_trainer_disagree(make_policy, world):
    """After a rollback new weights have versions of their own (`rollout.weight_versions`)."""
    trainer = Trainer(make_policy())
    assert trainer.step(samples(world), world.images).engine_kl == pytest.approx(0.0, abs=1e-6), "all of version 0"
    undone = Trainer(make_policy())
    undone.versions_ahead = 5
    assert undone.step(samples(world), world.images).engine_kl is None
    assert undone.version == 6


def test_what_an_update_has_moved_is_no_disagreement_of_engine_and_trainer(make_policy, world):
    """The second minibatch is scored after the first one's update."""
    trainer = Trainer(make_policy(), TrainerConfig(learning_rate=1e-1, num_minibatches=2))
    metrics = trainer.step(samples(world), world.images)
    assert metrics.num_updates == 2
    assert metrics.approx_kl > 1e-2, "the update moved the second minibatch's tokens"
    assert metrics.engine_kl == pytest.approx(0.0, abs=1e-6)
    assert metrics.logprob_diff_max < 1e-3


def test_training_raises_what_was_rewarded(make_policy, world):
    policy = make_policy()
    trainer = Trainer(policy, TrainerConfig(learning_rate=1e-3))
    rows = samples(world, advantages=(1.0, -1.0, 1.0, -1.0))
    for _ in range(6):
        metrics = trainer.step(rows, world.images)
    assert metrics.approx_kl > 0.0
    change = [
        new.mean() - np.array(row.sequence.logprobs)[list(row.sequence.sampled)].mean()
        for row, new in zip(rows, policy.logprobs([row.sequence for row in rows], world.images), strict=True)
    ]
    assert all(np.sign(value) == np.sign(row.advantage) for value, row in zip(change, rows, strict=True))


def test_an_unsound_row_takes_its_episode_out_and_is_counted_by_cause(make_policy, world):
    good = samples(world)
    victim = next(index for index, row in enumerate(good) if row.episode_id == "episode-2")
    sequence = good[victim].sequence
    where = sequence.spans[0].start
    breaks = {
        "placeholders": dataclasses.replace(
            sequence, token_ids=(*sequence.token_ids[:where], 9, *sequence.token_ids[where + 1 :])
        ),
        "banned_token": dataclasses.replace(
            sequence,
            token_ids=tuple(
                3 if sampled else token for token, sampled in zip(sequence.token_ids, sequence.sampled, strict=True)
            ),
        ),
        "lengths": dataclasses.replace(sequence, logprobs=sequence.logprobs[:-1]),
        "logprob": dataclasses.replace(sequence, logprobs=(float("nan"),) * len(sequence.logprobs)),
        "no_prompt": dataclasses.replace(sequence, sampled=(True, *sequence.sampled[1:])),
    }
    without, _ = after(make_policy, [row for row in good if row.episode_id != "episode-2"], world.images)
    for cause, broken in breaks.items():
        rows = [*good[:victim], dataclasses.replace(good[victim], sequence=broken), *good[victim + 1 :]]
        change, metrics = after(make_policy, rows, world.images)
        assert metrics.rejected == {cause: 1}
        assert metrics.num_episodes == 3
        assert torch.equal(change, without)


def test_an_image_of_another_size_is_refused(make_policy, world):
    rows = samples(world)
    sha256 = rows[0].sequence.spans[0].sha256
    wrong = {**world.images, sha256: screenshot(5, 8, 8)}
    metrics = Trainer(make_policy()).step(rows, wrong)
    assert metrics.rejected == {"placeholders": 2}, "the first two episodes share their first screenshot"


def test_rows_of_an_episode_that_disagree_on_its_worth_are_an_error(make_policy, world):
    rows = samples(world)
    with pytest.raises(ValueError, match="different advantages"):
        Trainer(make_policy()).step([rows[0], dataclasses.replace(rows[0], advantage=9.0)], world.images)


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone(make_policy, world):
    policy = make_policy()
    before = weights(policy)
    rows = [dataclasses.replace(row, advantage=row.advantage * 1e38, weight=1e30) for row in samples(world)]
    trainer = Trainer(policy)
    metrics = trainer.step(rows, world.images)
    assert not np.isfinite(metrics.grad_norm)
    assert metrics.num_updates == 0
    assert torch.equal(weights(policy), before)
    assert Trainer(policy).step(samples(world), world.images).num_updates == 1


STEPS = {
    "a penalty": ({"kl_loss_coef": 0.1}, {"lora": LoraConfig(rank=2)}),
    "a critic": ({"algorithm": "ppo"}, {"train_vision": False}),
    "several updates": ({"num_minibatches": 2, "ppo_epochs": 2}, {"train_vision": False}),
}


@pytest.mark.parametrize("kind", STEPS)
def test_a_step_encodes_each_picture_once_where_the_tower_does_not_learn(make_policy, world, monkeypatch, kind):
    settings, mode = STEPS[kind]
    found = []
    for spared in (True, False):
        policy, encoded = make_policy(**mode), []
        policy.model.model.visual.register_forward_hook(
            lambda module, args, kwargs, output, encoded=encoded: encoded.append(kwargs["grid_thw"].shape[0]),
            with_kwargs=True,
        )
        if not spared:
            monkeypatch.setattr(policy, "cached_vision", lambda images: contextlib.nullcontext())
        trainer = Trainer(policy, TrainerConfig(learning_rate=1e-2, **settings))
        trainer.optimizer = torch.optim.SGD(
            policy.parameters().values(), lr=1.0
        )  # Adam makes much of gradients that are almost 0
        trainer.step(samples(world), world.images)
        found.append((sum(encoded), weights(policy)))
    (once, ours), (often, theirs) = found
    assert once == len(world.images)
    assert often >= 2 * once
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_a_tower_that_learns_is_asked_anew_for_every_gradient(make_policy, world):
    policy, encoded = make_policy(), []
    policy.model.model.visual.register_forward_hook(
        lambda module, args, kwargs, output: encoded.append(kwargs["grid_thw"].shape[0]), with_kwargs=True
    )
    Trainer(policy, TrainerConfig(learning_rate=1e-2, num_minibatches=2)).step(samples(world), world.images)
    assert sum(encoded) >= 2 * len(world.images)


def test_the_learning_rate_warms_up(make_policy, world):
    trainer = Trainer(make_policy(), TrainerConfig(learning_rate=1e-4, warmup_steps=3))
    rates = [trainer.step(samples(world), world.images).lr for _ in range(5)]
    np.testing.assert_allclose(rates, np.array([0.25, 0.5, 0.75, 1.0, 1.0]) * 1e-4)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_cut_of_episodes_into_rows_gives_the_same_step(make_policy, world, data):
    """Each episode merged, or one row a call, and the rows in any order."""
    rows = [
        TrainingSample(sequence, advantage, f"episode-{number}")
        for number, (graph, advantage) in enumerate(zip(world.graphs, ADVANTAGES, strict=True))
        for sequence in graph.sequences(data.draw(st.booleans()))
    ]
    change, _ = after(
        make_policy, data.draw(st.permutations(rows)), world.images, max_tokens_per_mb=data.draw(st.integers(1, 200))
    )
    expected, _ = after(make_policy, samples(world), world.images)
    assert (change - expected).norm() / expected.norm() < 1e-4
