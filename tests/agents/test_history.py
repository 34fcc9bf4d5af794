"""Window policies as pure functions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deskhand.agents.history import HistoryWindow, build_history, drop_older_half, summarize_dropped
from deskhand.config.schema import AgentConfig
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
    window = HistoryWindow(grow_to, drop_to)
    assert window.start_index(turns) == by_hand(turns, grow_to, drop_to)
    assert 1 <= turns - window.start_index(turns) <= grow_to


def test_grow_and_drop_forks_seldom_and_sliding_always():
    def forks(window):
        return sum(window.start_index(turns) != window.start_index(turns - 1) for turns in range(2, 41))

    assert forks(build_history(AgentConfig(history="full"))) == 0
    assert forks(build_history(AgentConfig(history="chunked", history_max_turns=8, history_keep_turns=4))) == 7
    assert forks(build_history(AgentConfig(history="sliding", sliding_turns=4))) == 36


def test_a_summary_tells_of_what_is_not_shown_as_far_as_it_is_asked_to():
    replies, errors = ["click", "type", "key"], [None, "off the screen", None]
    assert summarize_dropped("nothing", replies, errors, 9) == summarize_dropped("steps", [], [], 9) == []
    assert summarize_dropped("replies", replies, errors, 9) == ["1. click", "2. type", "3. key"]
    assert summarize_dropped("steps", replies, errors, 2) == [
        "(1 earlier)",
        "2. type (not performed: off the screen)",
        "3. key",
    ]


@given(st.integers(0, 50), st.integers(1, 60))
def test_dropping_for_the_budget_ends_with_the_turn_that_is_asked(first, turns):
    asked = 0
    while (later := drop_older_half(first, first + turns)) is not None:
        assert first < later < first + turns
        turns, first = first + turns - later, later
        asked += 1
    assert turns == 1
    assert asked <= 7


@pytest.mark.parametrize("sizes", [(2, 3), (3, 0), (0, 0)])
def test_wrong_windows_are_refused(sizes):
    with pytest.raises(ConfigError):
        HistoryWindow(*sizes)
