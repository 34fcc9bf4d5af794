"""Shares and their intervals: what the books say, and what repeating a task is and is not worth."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deskhand.rollout.success_rates import Proportion, effective_sample_size, pass_at, wilson

COUNTS = st.lists(
    st.integers(1, 8).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=1, max_size=30
)


def test_wilson_intervals_equal_published_values():
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.integers(1, 500), st.data())
def test_an_interval_holds_the_rate_and_lies_in_0_to_1(total, data):
    hits = data.draw(st.integers(0, total))
    low, high = wilson(hits, total)
    assert 0 <= low <= hits / total + 1e-12
    assert hits / total - 1e-12 <= high <= 1


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_pass_at_k_is_the_mean_over_all_choices_of_k_tries(tries, data):
    k = data.draw(st.integers(1, len(tries)))
    chosen = list(itertools.combinations(tries, k))
    expected = sum(any(choice) for choice in chosen) / len(chosen)
    assert pass_at(k, [(sum(tries), len(tries))]) == pytest.approx(expected)


def test_pass_at_k_excludes_tasks_with_fewer_tries():
    assert pass_at(2, [(1, 1), (1, 2), (0, 2)]) == pytest.approx(0.5)
    assert math.isnan(pass_at(4, [(1, 2)]))


@given(COUNTS)
def test_tries_are_worth_at_least_their_tasks_and_at_most_themselves(counts):
    tries = sum(n for _, n in counts)
    assert len(counts) <= effective_sample_size(counts) + 1e-9
    assert effective_sample_size(counts) <= tries + 1e-9


def test_repeats_that_always_agree_are_worth_one_try_a_task():
    counts = [(8, 8)] * 5 + [(0, 8)] * 5
    assert effective_sample_size(counts) == 10
    assert Proportion(40, 80, effective_sample_size(counts)).interval == pytest.approx(wilson(5, 10))


def test_an_interval_over_repeated_tasks_covers_the_truth_as_often_as_it_says():
    """2000 evaluations of 40 tasks, each tried 8 times, of very different difficulty.

    Without the correction 6 in 10 cover.
    """
    chance = np.random.default_rng(5)
    truth, covered, naive = 0.4, 0, 0
    for _ in range(2000):
        hits = chance.binomial(8, chance.beta(0.4, 0.6, size=40)).tolist()
        counts = [(hit, 8) for hit in hits]
        low, high = Proportion(sum(hits), 320, effective_sample_size(counts)).interval
        covered += low <= truth <= high
        low, high = Proportion(sum(hits), 320).interval
        naive += low <= truth <= high
    assert covered / 2000 > 0.93
    assert naive / 2000 < 0.75
