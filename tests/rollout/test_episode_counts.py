"""The books of a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deskhand.errors import RecordError
from deskhand.rollout.episode_counts import CAUSES, EpisodeCounts


@given(st.lists(st.integers(0, 99), max_size=200))
def test_whatever_happens_to_episodes_the_books_close(draws):
    ledger = EpisodeCounts()
    for draw in draws:
        kind = draw % 6
        if kind == 0:
            ledger.start()
        elif kind == 1 and ledger.in_flight:
            ledger.mark_scored()
        elif kind == 2 and ledger.in_flight:
            ledger.mark_errored(CAUSES[draw % 3])
        elif kind > 2 and ledger.queued:
            ledger.mark_done(**{("trained", "zero_variance", "stale")[kind - 3]: 1})
        ledger.check()
    assert EpisodeCounts.from_dict(ledger.to_dict()) == ledger
    assert f"started={ledger.started} " in ledger.line()


@pytest.mark.parametrize(
    "spoil", [lambda it: it.mark_scored(), lambda it: it.mark_done(trained=1), lambda it: setattr(it, "started", 5)]
)
def test_books_that_do_not_close_are_an_error(spoil):
    ledger = EpisodeCounts()
    spoil(ledger)
    with pytest.raises(RecordError, match="do not close"):
        ledger.check()


def test_books_that_differ_from_the_stored_episodes_are_an_error():
    ledger = EpisodeCounts()
    ledger.start()
    ledger.start()
    ledger.mark_errored("evaluator")
    ledger.check({("in_flight", None): 1, ("errored", "evaluator"): 1})
    with pytest.raises(RecordError, match="differ"):
        ledger.check({("in_flight", None): 1, ("errored", "infrastructure"): 1})
    with pytest.raises(RecordError, match="differ"):
        ledger.check({("in_flight", None): 2})
    assert ledger.unscored_share == 1.0
