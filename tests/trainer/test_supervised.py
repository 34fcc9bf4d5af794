"""Supervised training: learns its targets and nothing else, equally per token, and goes by its schedule."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from small_policy import IMAGE, screenshot

from deskhand.trainer.optimizer import make_optimizer
from deskhand.trainer.supervised import PolicySftLearner, Schedule, SupervisedRow, cross_entropy, gradient, run_sft
from deskhand.types import ImageSpan


def demonstration(seed, answer):
    """A row that shows one screenshot and answers two tokens; only they are targets."""
    image = screenshot(seed)
    ids = (1, 3, *(IMAGE,) * image.tokens, 4, 9, 10, 2, *answer)
    target = (False,) * (len(ids) - len(answer)) + (True,) * len(answer)
    return SupervisedRow(ids, target, (ImageSpan(2, image.tokens, image.sha256),)), image


@pytest.fixture(scope="module")
def demonstrations():
    """The same words, different only in the image."""
    pairs = [demonstration(seed, (20 + seed, 30 + seed)) for seed in range(6)]
    return [row for row, _ in pairs], {image.sha256: image for _, image in pairs}


def learner_of(policy, learning_rate=3e-3):
    return PolicySftLearner(
        policy, make_optimizer(policy.parameters(), learning_rate, (0.9, 0.95), 0.01), learning_rate
    )


def test_it_learns_answers_that_only_the_images_tell(policy, demonstrations):
    rows, images = demonstrations
    before, reports = cross_entropy(policy, rows, images), []
    schedule = Schedule(80, warmup=5)
    batches = itertools.repeat((rows, images))
    run_sft(learner_of(policy), batches, schedule, report=lambda *values: reports.append(values), every=1)
    assert [step for step, _, _ in reports] == list(range(1, 81))
    assert reports[0][1] == pytest.approx(before, rel=1e-4)
    assert reports[-1][1] < 0.2
    assert cross_entropy(policy, rows, images) < 0.2


def test_tokens_weigh_equally_whatever_the_rows(policy, demonstrations):
    rows, images = demonstrations
    longer, image = demonstration(9, (21, 22, 23, 24, 25))
    images = {**images, image.sha256: image}
    loss = gradient(policy, [*rows, longer], images)
    scores = policy.logprobs([row.sequence() for row in [*rows, longer]], images)
    assert loss == pytest.approx(-np.concatenate(scores).mean(), rel=1e-5)


def test_a_rows_weight_scales_its_tokens(policy, demonstrations):
    rows, images = demonstrations
    heavy = SupervisedRow(rows[0].token_ids, rows[0].target, rows[0].spans, 3.0)
    loss = gradient(policy, [heavy, rows[1]], images)
    first, second = (values.sum() for values in policy.logprobs([heavy.sequence(), rows[1].sequence()], images))
    assert loss == pytest.approx(-(3 * first + second) / 8, rel=1e-5)


def test_tokens_that_are_not_targets_get_no_gradient(policy, demonstrations):
    rows, images = demonstrations
    blank = SupervisedRow(rows[0].token_ids, (False,) * len(rows[0].token_ids), rows[0].spans)
    assert gradient(policy, [blank], images) == 0.0
    assert all(parameter.grad is None for parameter in policy.parameters().values())


def test_the_targets_of_a_recorded_sequence_are_its_sampled_tokens(world):
    for sequence in (sequence for graph in world.graphs for sequence in graph.sequences()):
        row = SupervisedRow.of(sequence)
        assert (row.token_ids, row.target, row.spans) == (sequence.token_ids, sequence.loss_mask, sequence.spans)


def test_the_schedule_rises_stays_and_falls():
    schedule = Schedule(100, warmup=10, decay=0.4)
    factors = [schedule.factor(step, schedule.progress(step, 0.0)) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert all(later > earlier for earlier, later in itertools.pairwise(factors[:10]))
    assert set(factors[10:60]) == {1.0}
    assert all(later < earlier for earlier, later in itertools.pairwise(factors[60:]))
    assert factors[80] == pytest.approx(0.5)


class Counting:
    """Counts what `run_sft` calls; a batch is its own loss."""

    def __init__(self):
        self.batches, self.factors = [], []

    def gradient(self, batch):
        self.batches.append(batch)
        return float(batch)

    def update(self, factor):
        self.factors.append(factor)


def test_training_ends_with_steps_seconds_or_batches_whichever_is_first():
    by_steps, by_seconds, by_batches = Counting(), Counting(), Counting()
    run_sft(by_steps, itertools.count(), Schedule(7))
    ticks = itertools.count()
    run_sft(by_seconds, itertools.count(), Schedule(seconds=5.0, warmup=0, decay=0.4), clock=lambda: float(next(ticks)))
    run_sft(by_batches, iter(range(3)), Schedule(7))
    assert (len(by_steps.batches), len(by_batches.batches)) == (7, 3)
    assert by_seconds.factors == pytest.approx([1.0, 1.0, 1.0, 0.5])


def test_it_resumes_at_a_step_with_the_same_factors_and_reports_means():
    whole, rest, reports, updates = Counting(), Counting(), [], []
    run_sft(whole, itertools.count(), Schedule(20, warmup=5))
    run_sft(
        rest,
        itertools.count(12),
        Schedule(20, warmup=5),
        start=12,
        report=lambda step, loss, _: reports.append((step, loss)),
        every=4,
        keep=updates.append,
    )
    assert rest.factors == whole.factors[12:]
    assert reports == [(16, (12 + 13 + 14 + 15) / 4), (20, (16 + 17 + 18 + 19) / 4)]
    assert updates == list(range(13, 21))


def test_the_same_demonstrations_give_the_same_weights(make_policy, demonstrations):
    rows, images = demonstrations
    first, second = make_policy(), make_policy()
    for policy in (first, second):
        run_sft(learner_of(policy), itertools.repeat((rows, images)), Schedule(4))
    assert all(torch.equal(first.parameters()[name], second.parameters()[name]) for name in first.parameters())
