"""Supervised training: learns its targets and nothing else, equally per token, and reports what it does."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from conftest import IMAGE, screenshot

from deskhand.engines.base import ImageSpan
from deskhand.training.config import SupervisedConfig
from deskhand.training.sft import SupervisedRow, cosine, cross_entropy, gradient, train


def lesson(seed, answer):
    """A row that shows one screenshot and answers two tokens; only they are targets."""
    image = screenshot(seed)
    ids = (1, 3, *(IMAGE,) * image.tokens, 4, 9, 10, 2, *answer)
    target = (False,) * (len(ids) - len(answer)) + (True,) * len(answer)
    return SupervisedRow(ids, target, (ImageSpan(2, image.tokens, image.sha256),)), image


@pytest.fixture(scope="module")
def lessons():
    """The same words, told apart by the picture only."""
    pairs = [lesson(seed, (20 + seed, 30 + seed)) for seed in range(6)]
    return [row for row, _ in pairs], {image.sha256: image for _, image in pairs}


def test_it_learns_answers_that_only_the_pictures_tell(policy, lessons):
    rows, images = lessons
    before = cross_entropy(policy, rows, images)
    config = SupervisedConfig(steps=80, learning_rate=3e-3, warmup_steps=5)
    history = train(policy, itertools.repeat((rows, images)), config)
    assert len(history) == 80
    assert history[0].loss == pytest.approx(before, rel=1e-4)
    assert history[-1].loss < 0.2
    assert history[-1].accuracy == 1.0
    assert cross_entropy(policy, rows, images) < 0.2


def test_tokens_weigh_equally_whatever_the_rows(policy, lessons):
    rows, images = lessons
    longer, image = lesson(9, (21, 22, 23, 24, 25))
    images = {**images, image.sha256: image}
    loss, _, tokens = gradient(policy, [*rows, longer], images)
    scores = policy.logprobs([row.sequence() for row in [*rows, longer]], images)
    assert tokens == 17
    assert loss == pytest.approx(-np.concatenate(scores).mean(), rel=1e-5)


def test_a_rows_weight_scales_its_tokens(policy, lessons):
    rows, images = lessons
    heavy = SupervisedRow(rows[0].token_ids, rows[0].target, rows[0].spans, 3.0)
    loss, _, _ = gradient(policy, [heavy, rows[1]], images)
    first, second = (values.sum() for values in policy.logprobs([heavy.sequence(), rows[1].sequence()], images))
    assert loss == pytest.approx(-(3 * first + second) / 8, rel=1e-5)


def test_tokens_that_are_no_targets_get_no_gradient(policy, lessons):
    rows, images = lessons
    blank = SupervisedRow(rows[0].token_ids, (False,) * len(rows[0].token_ids), rows[0].spans)
    assert gradient(policy, [blank], images) == (0.0, 0.0, 0)
    assert all(parameter.grad is None for parameter in policy.parameters().values())


def test_the_schedule_rises_and_falls():
    config = SupervisedConfig(steps=110, learning_rate=1.0, final_learning_rate=0.1, warmup_steps=10)
    rates = [cosine(step, config) for step in range(111)]
    assert np.argmax(rates) == 10
    assert rates[10] == pytest.approx(1.0)
    assert rates[60] == pytest.approx(0.55)
    assert rates[110] == pytest.approx(0.1)
    assert all(later > earlier for earlier, later in itertools.pairwise(rates[:11]))
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[10:]))


def test_evaluation_is_called_on_time_and_training_ends_with_the_batches(policy, lessons):
    rows, images = lessons
    seen, steps = [], []
    config = SupervisedConfig(steps=100, evaluate_every=2)
    history = train(policy, [(rows, images)] * 5, config, lambda metrics: steps.append(metrics.step), seen.append)
    assert len(history) == 5
    assert steps == [1, 2, 3, 4, 5]
    assert seen == [2, 4]


def test_the_same_lessons_give_the_same_weights(make_policy, lessons):
    rows, images = lessons
    first, second = make_policy(), make_policy()
    for policy in (first, second):
        train(policy, [(rows, images)] * 4, SupervisedConfig(steps=4))
    assert all(torch.equal(first.parameters()[name], second.parameters()[name]) for name in first.parameters())
