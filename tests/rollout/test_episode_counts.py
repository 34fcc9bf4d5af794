"""Counts of the episodes of a run."""

import episode_results
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deskhand.errors import RecordError
from deskhand.recipes.step_report import StepAccumulator
from deskhand.rollout.episode_counts import CAUSES, EpisodeCounts


@given(st.lists(st.integers(0, 99), max_size=200))
def test_counts_add_up_whatever_happens(draws):
    counts = EpisodeCounts()
    for draw in draws:
        kind = draw % 6
        if kind == 0:
            counts.start()
        elif kind == 1 and counts.in_flight:
            counts.mark_scored()
        elif kind == 2 and counts.in_flight:
            counts.mark_errored(CAUSES[draw % 3])
        elif kind > 2 and counts.queued:
            counts.mark_done(**{("trained", "zero_variance", "stale")[kind - 3]: 1})
        counts.check()
    assert EpisodeCounts.from_dict(counts.to_dict()) == counts
    flat = counts.flat()
    assert flat.pop("started") == sum(flat.values()) == counts.started


@pytest.mark.parametrize(
    "spoil", [lambda it: it.mark_scored(), lambda it: it.mark_done(trained=1), lambda it: setattr(it, "started", 5)]
)
def test_counts_that_do_not_add_up_are_an_error(spoil):
    counts = EpisodeCounts()
    spoil(counts)
    with pytest.raises(RecordError, match="do not add up"):
        counts.check()


def test_counts_that_differ_from_the_stored_episodes_are_an_error():
    counts = EpisodeCounts()
    counts.start()
    counts.start()
    counts.mark_errored("evaluator")
    counts.check({("in_flight", None): 1, ("errored", "evaluator"): 1})
    with pytest.raises(RecordError, match="differ"):
        counts.check({("in_flight", None): 1, ("errored", "infrastructure"): 1})
    with pytest.raises(RecordError, match="differ"):
        counts.check({("in_flight", None): 2})
    assert (counts.ended, counts.errored_fraction) == (1, 1.0)


def test_episodes_that_a_stopped_run_cancelled_are_no_failures():
    counts = EpisodeCounts()
    for _ in range(4):
        counts.start()
    for cause in ("cancelled", "cancelled", "evaluator"):
        counts.mark_errored(cause)
    assert (counts.ended, counts.errored_fraction) == (3, 1.0)


def test_a_step_counts_what_failed_and_not_what_a_stopped_run_cancelled():
    since = StepAccumulator()
    for result in [episode_results.result(1.0)] * 4 + [episode_results.result(None, cause="cancelled")] * 12:
        since.add(result, None)
    assert (since.metrics()["episodes/errored_frac"], since.metrics()["episodes/completed"]) == (0, 4)
    for _ in range(12):
        since.add(episode_results.result(None, cause="evaluator"), None)
    assert (since.metrics()["episodes/errored_frac"], since.metrics()["episodes/completed"]) == (0.75, 16)
