"""Window policies as pure functions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deskhand.agents.context import Full, GrowDrop, Sliding
from deskhand.errors import ConfigError


def by_hand(turns: int, grow_to: int, drop_to: int) -> int:
    """Grow-to-N drop-to-M by playing it turn after turn."""
    first = 0
    for count in range(1, turns + 1):
        if count - first > grow_to:
            first = count - drop_to
    return first


@given(st.integers(1, 200), st.integers(1, 12), st.data())
def test_grow_and_drop_is_what_playing_it_turn_by_turn_gives(turns, grow_to, data):
    drop_to = data.draw(st.integers(1, grow_to))
    window = GrowDrop(grow_to, drop_to)
    assert window.first(turns) == by_hand(turns, grow_to, drop_to)
    assert 1 <= turns - window.first(turns) <= grow_to


def test_grow_and_drop_forks_seldom_and_sliding_always():
    def forks(window):
        return sum(window.first(turns) != window.first(turns - 1) for turns in range(2, 41))

    assert forks(Full()) == 0
    assert forks(GrowDrop(8, 4)) == 7
    assert forks(Sliding(4)) == 36


def test_wrong_windows_are_refused():
    for make in (lambda: GrowDrop(2, 3), lambda: GrowDrop(3, 0), lambda: Sliding(0)):
        with pytest.raises(ConfigError):
            make()
