"""Every dialect of the registry: nothing is lost or moved without a word, and no reply is anything but ops or a `ParseError`.

`DESKHAND_TEST_CASES=10000` asks more of every property.
"""

import os
import random

import action_cases as cases
import pytest
from hypothesis import HealthCheck, given, settings

from deskhand.actions import formats
from deskhand.actions.ops import TERMINAL_OPS
from deskhand.errors import AgentError, ConfigError

CASES = int(os.environ.get("DESKHAND_TEST_CASES", "60"))
everyone = pytest.mark.parametrize("name", formats.available_formats())
quick = settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), database=None)


@everyone
def test_an_op_that_is_said_is_read_back_equal(name):
    dialect = formats.get(name)

    @quick
    @given(cases.in_any_view(cases.one_op, dialect))
    def check(case):
        cases.round_trip(dialect, *case)

    check()


@everyone
def test_ops_that_are_said_together_are_read_back_as_the_same_acts(name):
    dialect = formats.get(name)

    @quick
    @given(cases.in_any_view(cases.some_ops, dialect))
    def check(case):
        cases.round_trip(dialect, *case)

    check()


@everyone
@pytest.mark.parametrize("view", cases.VIEWS, ids=str)
def test_every_kind_of_op_is_carried_as_the_dialect_says(name, view):
    dialect = formats.get(name)
    assert set(dialect.supported_ops) == set(cases.KINDS)
    for kind, carriage in dialect.supported_ops.items():
        op = cases.plain_op(kind, view)
        if carriage.kind == "absent":
            with pytest.raises(AgentError):
                dialect.emit([op], view)
        else:
            assert carriage.kind in ("lossless", "lossy")
            assert carriage.how or carriage.kind == "lossless"
            assert cases.round_trip(dialect, view, [op]) is not None, f"{kind.__name__} is refused"


@everyone
def test_the_share_of_ops_that_is_refused_is_small(name):
    """So that the round trips above are not round trips of nothing. The examples are the same in every run: a share of random ones
    is now and then below any bound."""
    dialect, view = formats.get(name), cases.VIEWS[1]
    said: list[bool] = []

    @settings(quick, max_examples=200, derandomize=True)
    @given(cases.one_op(dialect, view))
    def count(op):
        said.append(cases.round_trip(dialect, view, [op]) is not None)

    count()
    assert sum(said) > 0.4 * len(said)


@everyone
def test_a_reply_is_ops_or_a_parse_error_and_nothing_else(name):
    dialect, chance = formats.get(name), random.Random(name)
    texts = [
        dialect.emit([op], view)
        for view in cases.VIEWS[:2]
        for op in map(cases.plain_op, cases.carried(dialect), [view] * 99)
    ]
    for text in texts:
        cases.read_or_refused(dialect, text, cases.VIEWS[0])  # what a first reading imports
    outcomes = set()
    for number in range(CASES * 10):
        view = cases.VIEWS[number % len(cases.VIEWS)]
        text = cases.spoiled(chance.choice(texts), texts, chance)
        with cases.audited() as executed:
            found = cases.read_or_refused(dialect, text, view)
        assert not executed, text
        assert isinstance(found, Exception) or found
        outcomes.add(isinstance(found, Exception))
    assert outcomes == {True, False}


@everyone
def test_nothing_follows_an_end(name):
    dialect, view = formats.get(name), cases.VIEWS[0]
    for kind in cases.carried(dialect):
        if kind in TERMINAL_OPS:
            with pytest.raises(AgentError):
                dialect.emit([cases.plain_op(kind, view), cases.plain_op(cases.carried(dialect)[0], view)], view)


@everyone
@pytest.mark.parametrize(
    "text", ["", " \n", "I do not know.", "{", "[]", "null", "```", "<think>", "<think>hm</think>", "{}" * 50]
)
def test_what_says_no_action_is_a_parse_error(name, text):
    assert isinstance(cases.read_or_refused(formats.get(name), text, cases.VIEWS[0]), Exception)


@everyone
@pytest.mark.parametrize("view", cases.VIEWS, ids=str)
def test_a_point_off_the_screen_is_never_said(name, view):
    dialect = formats.get(name)
    for kind in cases.carried(dialect):
        op = cases.plain_op(kind, view)
        for shift in (view.screen_width, -view.screen_width):
            moved = cases.shifted(op, shift)
            if moved != op:
                with pytest.raises(AgentError):
                    dialect.emit([moved], view)


@everyone
def test_the_corners_of_the_screen_are_reached(name):
    dialect = formats.get(name)
    for view in cases.VIEWS:
        for x in (0, view.screen_width - 1):
            for y in (0, view.screen_height - 1):
                cases.clicks_at(dialect, view, x, y)


def test_an_unknown_dialect_is_named_with_those_that_are_near():
    with pytest.raises(ConfigError, match="'qwen25_vl'"):
        formats.get("qwen2_vl")
    with pytest.raises(ConfigError, match="known are: deskhand_json"):
        formats.get("zzz")


@everyone
def test_a_dialect_has_the_name_that_it_is_registered_by(name):
    assert formats.get(name).name == name
    assert formats.get(name).prompt(cases.VIEWS[0]).strip()
