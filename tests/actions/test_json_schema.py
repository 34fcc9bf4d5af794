"""Schema rules and their validation."""

import pytest

from deskhand.actions.formats import json_schema
from deskhand.errors import AgentError


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (json_schema.integer(0, 5), [0, 5, 3.0], [-1, 6, 2.5, "3", True, None, float("nan")]),
        (json_schema.number(0, 1), [0, 0.5, 1], [-0.1, 1.1, "0.5", False, float("inf")]),
        (json_schema.number_below(0, 10), [0, 9.99], [10, -1]),
        (json_schema.one_of("a", "b"), ["a"], ["c", 1, None]),
        (json_schema.text(1, 3), ["a", "abc"], ["", "abcd", 3, "\ud800"]),
        (
            json_schema.fixed_items(json_schema.integer(0, 5), json_schema.integer(0, 9)),
            [[5, 9]],
            [[6, 9], [5, 10], [5], [1, 2, 3], "12", {}],
        ),
        (json_schema.items(json_schema.text(), 1, 2), [["a"], ["a", "b"]], [[], ["a"] * 3, [1], "a"]),
        (json_schema.object_of(x=json_schema.integer(0, 1)), [{"x": 1}], [{}, {"x": 2}, {"x": 1, "y": 1}, [], None]),
        (json_schema.BOOLEAN, [True, False], [0, 1, "true", None]),
        (json_schema.ANYTHING, [None, 1, "a", [], {}], []),
    ],
)
def test_rules_accept_valid_values_and_reject_others(rule, good, bad):
    for value in good:
        json_schema.check("it", value, rule)
    for value in bad:
        with pytest.raises(AgentError, match=r"^it"):
            json_schema.check("it", value, rule)
