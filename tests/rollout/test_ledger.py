"""The books of a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deskhand.errors import RecordError
from deskhand.rollout.ledger import CAUSES, Ledger


@given(st.lists(st.integers(0, 99), max_size=200))
def test_whatever_happens_to_episodes_the_books_close(draws):
    ledger = Ledger()
    for draw in draws:
        kind = draw % 6
        if kind == 0:
            ledger.start()
        elif kind == 1 and ledger.in_flight:
            ledger.score()
        elif kind == 2 and ledger.in_flight:
            ledger.lose(CAUSES[draw % 3])
        elif kind > 2 and ledger.waiting:
            ledger.settle(**{("trained", "zero_variance", "stale")[kind - 3]: 1})
        ledger.check()
    assert Ledger.from_dict(ledger.to_dict()) == ledger
    assert f"started={ledger.started} " in ledger.line()


@pytest.mark.parametrize("spoil", [lambda it: it.score(), lambda it: it.settle(trained=1), lambda it: setattr(it, "started", 5)])
def test_books_that_do_not_close_are_an_error(spoil):
    ledger = Ledger()
    spoil(ledger)
    with pytest.raises(RecordError, match="do not close"):
        ledger.check()


def test_books_that_differ_from_the_stored_episodes_are_an_error():
    ledger = Ledger()
    ledger.start()
    ledger.start()
    ledger.lose("evaluator")
    ledger.check({("in_flight", None): 1, ("unscored", "evaluator"): 1})
    with pytest.raises(RecordError, match="differ"):
        ledger.check({("in_flight", None): 1, ("unscored", "infrastructure"): 1})
    with pytest.raises(RecordError, match="differ"):
        ledger.check({("in_flight", None): 2})
    assert ledger.unscored_share == 1.0
