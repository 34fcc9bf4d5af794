"""A step: independent of rows and micro-batches, zero without advantage; rejected episodes are counted."""

from __future__ import annotations

import collections
import contextlib
import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_policy import encoded_images, screenshot

from deskhand import registry
from deskhand.algorithms.base import get_algorithm
from deskhand.algorithms.reinforce_plus_plus import normalize_over_batch
from deskhand.config.trainer import LoraConfig, TrainerConfig
from deskhand.errors import ConfigError
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


def stale(world, shift):
    """Samples whose tokens were `shift` nats less likely when they were sampled."""
    for sample in samples(world):
        row = sample.sequence
        logprobs = tuple(value - shift * mark for value, mark in zip(row.logprobs, row.loss_mask, strict=True))
        yield dataclasses.replace(sample, sequence=dataclasses.replace(sample.sequence, logprobs=logprobs))


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


def test_episodes_without_advantage_count_in_the_mean(make_policy, world):
    alone, _ = after(make_policy, samples(world)[:1], world.images)
    diluted, _ = after(make_policy, samples(world, advantages=(1.5, 0.0, 0.0, 0.0)), world.images)
    torch.testing.assert_close(diluted, alone / 4, atol=1e-7, rtol=1e-3)


def test_the_clip_stops_tokens_with_a_large_ratio(make_policy, world):
    """Behaviour log-probs 1 nat lower make every ratio e: with positive advantage all is clipped, with negative
    nothing is."""
    config = TrainerConfig(decoupled_loss=False, max_grad_norm=1e9)
    up = [dataclasses.replace(row, advantage=1.0) for row in stale(world, 1.0)]
    down = [dataclasses.replace(row, advantage=-1.0) for row in up]
    change, metrics = after(make_policy, up, world.images, config)
    assert (change == 0).all()
    assert metrics.clip_frac == 1.0
    assert metrics.ratio_mean == pytest.approx(np.e, rel=1e-3)
    change, metrics = after(make_policy, down, world.images, config)
    assert change.norm() > 0
    assert metrics.clip_frac == 0.0


def test_the_decoupled_loss_weighs_stale_tokens_and_masks_those_over_the_cap(make_policy, world):
    fresh, _ = after(make_policy, samples(world), world.images)
    weighed, metrics = after(make_policy, list(stale(world, 0.5)), world.images)
    assert (weighed - np.exp(0.5) * fresh).norm() / weighed.norm() < 1e-3
    assert metrics.clip_frac == 0.0
    assert metrics.importance_weight_mean == pytest.approx(np.exp(0.5), rel=1e-3)
    dropped, metrics = after(make_policy, list(stale(world, 2.0)), world.images)
    assert (dropped == 0).all()
    assert metrics.masked_frac == 1.0


def test_several_passes_clip_around_the_weights_at_the_start(make_policy, world):
    policy = make_policy()
    trainer = Trainer(policy, TrainerConfig(learning_rate=1e-3, ppo_epochs=4, num_minibatches=2))
    metrics = trainer.step(samples(world), world.images)
    assert metrics.ratio_max > 1.0
    assert metrics.clip_frac > 0.0
    assert metrics.importance_weight_mean == pytest.approx(1.0, abs=1e-4)


def test_engine_kl_counts_only_tokens_of_the_current_version(make_policy, world):
    """After a rollback new weights have versions of their own (`rollout.weight_versions`)."""
    trainer = Trainer(make_policy())
    assert trainer.step(samples(world), world.images).engine_kl == pytest.approx(0.0, abs=1e-6), "all of version 0"
    undone = Trainer(make_policy())
    undone.versions_ahead = 5
    assert undone.step(samples(world), world.images).engine_kl is None
    assert undone.version == 6


def test_engine_kl_excludes_tokens_scored_after_an_update(make_policy, world):
    """The second minibatch is scored after the first one's update."""
    trainer = Trainer(make_policy(), TrainerConfig(learning_rate=1e-1, num_minibatches=2))
    metrics = trainer.step(samples(world), world.images)
    assert metrics.num_updates == 2
    assert metrics.approx_kl > 1e-2, "the update moved the second minibatch's tokens"
    assert metrics.engine_kl == pytest.approx(0.0, abs=1e-6)
    assert metrics.logprob_diff_max < 1e-3


def test_training_increases_the_probability_of_rewarded_replies(make_policy, world):
    policy = make_policy()
    trainer = Trainer(policy, TrainerConfig(learning_rate=1e-3))
    rows = samples(world, advantages=(1.0, -1.0, 1.0, -1.0))
    for _ in range(6):
        metrics = trainer.step(rows, world.images)
    assert metrics.approx_kl > 0.0
    change = [
        new.mean() - np.array(row.sequence.logprobs)[list(row.sequence.loss_mask)].mean()
        for row, new in zip(rows, policy.logprobs([row.sequence for row in rows], world.images), strict=True)
    ]
    assert all(np.sign(value) == np.sign(row.advantage) for value, row in zip(change, rows, strict=True))


def test_an_invalid_row_removes_its_episode_and_is_counted_by_cause(make_policy, world):
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
                3 if sampled else token for token, sampled in zip(sequence.token_ids, sequence.loss_mask, strict=True)
            ),
        ),
        "lengths": dataclasses.replace(sequence, logprobs=sequence.logprobs[:-1]),
        "logprob": dataclasses.replace(sequence, logprobs=(float("nan"),) * len(sequence.logprobs)),
        "no_prompt": dataclasses.replace(sequence, loss_mask=(True, *sequence.loss_mask[1:])),
    }
    without, _ = after(make_policy, [row for row in good if row.episode_id != "episode-2"], world.images)
    for cause, broken in breaks.items():
        rows = [*good[:victim], dataclasses.replace(good[victim], sequence=broken), *good[victim + 1 :]]
        change, metrics = after(make_policy, rows, world.images)
        assert metrics.rejected == {cause: 1}
        assert metrics.num_episodes == 3
        assert torch.equal(change, without)


def test_an_image_of_another_size_is_rejected(make_policy, world):
    rows = samples(world)
    sha256 = rows[0].sequence.spans[0].sha256
    wrong = {**world.images, sha256: screenshot(5, 8, 8)}
    metrics = Trainer(make_policy()).step(rows, wrong)
    assert metrics.rejected == {"placeholders": 2}, "the first two episodes share their first screenshot"


def test_rows_of_an_episode_with_different_advantages_are_an_error(make_policy, world):
    rows = samples(world)
    with pytest.raises(ValueError, match="sequences differ in advantage"):
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
def test_a_step_encodes_each_image_once_if_the_tower_is_frozen(make_policy, world, monkeypatch, kind):
    settings, mode = STEPS[kind]
    found = []
    for spared in (True, False):
        policy = make_policy(**mode)
        encoded = encoded_images(policy)
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


def test_a_trained_tower_encodes_images_for_every_gradient(make_policy, world):
    policy = make_policy()
    encoded = encoded_images(policy)
    Trainer(policy, TrainerConfig(learning_rate=1e-2, num_minibatches=2)).step(samples(world), world.images)
    assert sum(encoded) >= 2 * len(world.images)


def test_the_learning_rate_warms_up(make_policy, world):
    trainer = Trainer(make_policy(), TrainerConfig(learning_rate=1e-4, warmup_steps=3))
    rates = [trainer.step(samples(world), world.images).lr for _ in range(5)]
    np.testing.assert_allclose(rates, np.array([0.25, 0.5, 0.75, 1.0, 1.0]) * 1e-4)


@pytest.mark.parametrize(
    ("kind", "minimum", "factors"),
    [
        ("constant", 0.0, [1, 1, 1, 1, 1]),
        ("linear", 0.2, [1, 0.8, 0.6, 0.4, 0.2]),
        ("cosine", 0.0, [1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0]),
    ],
)
def test_the_learning_rate_follows_its_schedule(make_policy, world, kind, minimum, factors):
    config = TrainerConfig(learning_rate=1e-4, lr_scheduler_type=kind, min_lr_ratio=minimum, num_minibatches=2)
    trainer = Trainer(make_policy(), config, total_steps=4)
    rates = [trainer.step(samples(world), world.images).lr for _ in range(5)]
    np.testing.assert_allclose(rates, np.array(factors) * 1e-4, atol=1e-12)


def test_a_schedule_without_a_length_is_refused(make_policy):
    with pytest.raises(ConfigError, match=r"trainer\.lr_scheduler_type: a schedule needs the number of steps"):
        Trainer(make_policy(), TrainerConfig(lr_scheduler_type="cosine"))


INERT = {
    "clip_ratio_low": ({"clip_ratio_low": 0.1}, "trainer.clip_ratio_low: cannot act with one update"),
    "dual clip": ({"dual_clip": 3.0}, "trainer.dual_clip: cannot act with one update"),
    "gspo": ({"algorithm": "gspo", "num_minibatches": 1}, "trainer.num_minibatches: gspo with one update"),
    "a mask of nothing": ({"decoupled_loss": False, "importance_weight_min": 0.5}, "acts only with decoupled_loss"),
    "truncated ones": ({"decoupled_loss": False, "importance_weight_mode": "truncate"}, "acts only with decoupled"),
    "products for gspo": ({"algorithm": "gspo", "importance_weight_level": "sequence"}, "by geometric means"),
    "cispo": ({"algorithm": "cispo", "num_minibatches": 2, "dual_clip": 3.0}, "cispo bounds every weight"),
    "minimum": ({"min_lr_ratio": 0.1}, "trainer.min_lr_ratio: needs a schedule"),
}


@pytest.mark.parametrize("case", INERT)
def test_settings_that_cannot_act_are_refused(make_policy, case):
    settings, message = INERT[case]
    with pytest.raises(ConfigError, match=message):
        Trainer(make_policy(), TrainerConfig(**settings))


# GiGPO differs by the advantages of its replies (`test_step_against_reference`).
@pytest.mark.parametrize("name", sorted({*registry.names("algorithm")} - {"grpo", "ppo", "gigpo"}))
def test_what_distinguishes_an_algorithm_changes_the_step_at_its_defaults(make_policy, world, name):
    """Rewards of unequal groups, log-probs of another policy: each algorithm updates differently from GRPO."""
    rewards = np.array([1.0, 0.0, 0.2, 0.6])

    def change_by(algorithm):
        advantages = get_algorithm(algorithm)(rewards)
        if get_algorithm(algorithm).normalize_batch:
            advantages = normalize_over_batch(advantages)
        rows = [
            dataclasses.replace(row, advantage=float(advantages[int(row.episode_id.rpartition("-")[2])]))
            for row in stale(world, 0.3)
        ]
        change, _ = after(make_policy, rows, world.images, TrainerConfig(algorithm=algorithm, max_grad_norm=1e9))
        return change / change.norm()

    assert (change_by("grpo") - change_by(name)).norm() > 1e-3


def test_the_entropy_bonus_is_the_gradient_of_the_mean_entropy(make_policy, world):
    """Against the loss of the same rows by automatic differentiation of a plain softmax."""
    rows = [dataclasses.replace(row, advantage=0.0) for row in samples(world)]
    policy = make_policy()
    trainer = Trainer(policy, TrainerConfig(entropy_coeff=0.5, max_grad_norm=1e9))
    plan = policy.plan([row.sequence for row in rows], world.images)
    counts = collections.Counter()
    for row in rows:
        counts[row.episode_id] += sum(row.sequence.loss_mask)
    losses = []

    def entropy(batch, hidden_WH):
        logits_WV = policy.model.lm_head(hidden_WH) / batch.temperature
        logits_WV = logits_WV.index_fill(1, torch.tensor(policy.banned_ids), -1e9)
        entropies_W = torch.distributions.Categorical(logits=logits_WV.double()).entropy()
        weights = [1 / counts[rows[index].episode_id] / len(counts) for index in batch.rows]
        value = -0.5 * (entropies_W * torch.tensor(weights).double()[batch.rows_W]).sum()
        losses.append(value.item())
        return value

    policy.accumulate_hidden(plan, entropy)
    expected = {name: value.grad.clone() for name, value in policy.parameters().items() if value.grad is not None}
    for value in policy.parameters().values():
        value.grad = None
    seen = {}
    trainer.optimizer.register_step_pre_hook(
        lambda *_: seen.update({name: value.grad.clone() for name, value in policy.parameters().items()})
    )
    metrics = trainer.step(rows, world.images)
    assert metrics.loss == pytest.approx(sum(losses), rel=1e-5)
    largest = max(float(value.abs().max()) for value in expected.values())
    for name, value in expected.items():
        assert (seen[name] - value).abs().max() < 1e-4 * largest, name


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_cut_of_episodes_into_rows_gives_the_same_step(make_policy, world, data):
    """Each episode merged, or one row a call, and the rows in any order."""
    rows = [
        TrainingSample(sequence, advantage, f"episode-{number}")
        for number, (graph, advantage) in enumerate(zip(world.graphs, ADVANTAGES, strict=True))
        for sequence in graph.sequences(data.draw(st.booleans()))
    ]
    limits = {
        "max_tokens_per_mb": data.draw(st.integers(1, 200)),
        "max_vision_patches_per_mb": data.draw(st.sampled_from((1, 16384))),
    }
    change, metrics = after(make_policy, data.draw(st.permutations(rows)), world.images, **limits)
    expected, merged = after(make_policy, samples(world), world.images)
    assert (change - expected).norm() / expected.norm() < 1e-4
    assert metrics.num_tokens == merged.num_tokens == sum(graph.num_sampled_tokens for graph in world.graphs)
    assert metrics.num_sequences == len(rows)
    assert metrics.loss == pytest.approx(merged.loss, abs=1e-5)
