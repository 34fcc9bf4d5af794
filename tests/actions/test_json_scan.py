"""From text to JSON values: reasoning before, fences, several values, and nothing dropped behind them."""

from json import loads

import pytest

from deskhand.actions.formats.json_scan import NO_REASONING, parse_json_values, parse_lenient_values
from deskhand.actions.formats.reply_sections import end_of_reasoning
from deskhand.errors import ParseError

A, B = '{"a": 1}', '{"b": [2]}'


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (A, [{"a": 1}]),
        (f"\n {A}\n{B} ", [{"a": 1}, {"b": [2]}]),
        (f"[{A}, {B}]", [{"a": 1}, {"b": [2]}]),
        (f"I do this: {A}", [{"a": 1}]),
        (f"```json\n{A}\n```", [{"a": 1}]),
        (f"```{A}```\n```\n{B}\n```", [{"a": 1}, {"b": [2]}]),
        (f"First I look.\n```json\n{A}\n{B}\n```", [{"a": 1}, {"b": [2]}]),
        (f"```json\n{A}", [{"a": 1}]),
        (f"<think>is it {B}?</think>{A}", [{"a": 1}]),
        (f"is it {B}?</think> {A}", [{"a": 1}]),
        ('{"a": "```"}', [{"a": "```"}]),
        ('{"a": "</think>"}', [{"a": "</think>"}]),
        ('{"a": "{\\"b\\": 1}"} ', [{"a": '{"b": 1}'}]),
        (f"a set {{1, 2}} and a list [3] {A}", [{"a": 1}]),
    ],
)
def test_the_actions_are_found_behind_the_reasoning(text, values):
    assert [value for value, _ in parse_lenient_values(text)] == values
    for value, (start, end) in parse_lenient_values(text):
        assert parse_json_values(text[start:end])[0][0] == value


@pytest.mark.parametrize(
    ("text", "rest", "part"),
    [
        (f"{A} and that is it", "and that is it", "unexpected text after"),
        (f"{A}\nOh.\n{B}", f"Oh.\n{B}", "unexpected text after"),
        (f"```json\n{A}\n``` I hope.", "I hope.", "unexpected text after"),
        ("no action", "no action", "no action found"),
        ("```\nls -l\n```", "ls -l\n```", "a code fence holds actions only"),
        ("```\n```", "```\n```", "no action found"),
        ("<think>so", "<think>so", "does not end"),
        ('{"a": 1, "a": 2}', '{"a": 1, "a": 2}', "twice"),
        ('{"a": NaN}', '{"a": NaN}', "NaN"),
        ('{"a": 1', "", "not JSON"),
        ('{"a":' + "[" * 32 + "]" * 32 + "}", '{"a":' + "[" * 32 + "]" * 32 + "}", "nested too deeply"),
        ("[" + A, "", "expected ,"),
    ],
)
def test_what_is_left_over_is_named(text, rest, part):
    with pytest.raises(ParseError) as caught:
        parse_lenient_values(text)
    assert part in caught.value.reason
    assert caught.value.span == (len(text) - len(rest), len(text))


@pytest.mark.parametrize("text", ["DONE", " DONE\n", "```DONE```", "```\nDONE\n```", "I am sure.\n```\nDONE\n```"])
def test_a_word_is_an_action_alone_or_in_a_fence(text):
    ((word, (start, end)),) = parse_lenient_values(text, {"DONE"})
    assert word == "DONE"
    assert text[start:end] == "DONE"


@pytest.mark.parametrize("text", ["I am DONE", "DONE DONE", "```DONE```", "done"])
def test_a_word_is_no_action_in_a_sentence_or_where_there_are_none(text):
    with pytest.raises(ParseError):
        parse_lenient_values(text, {"DONE"} if "`" not in text else set())


def test_reasoning_ends_where_it_says():
    assert end_of_reasoning("<think>a</think>b") == len("<think>a</think>")
    assert end_of_reasoning("a</think>b") == len("a</think>")
    assert end_of_reasoning(" {", NO_REASONING) == 0
    assert end_of_reasoning('{"a": "</think>"}', NO_REASONING) == 0


@pytest.mark.parametrize(
    "action",
    ["write('</think>')", 'write("a </think> b")', "type(content='it\\\'s </think>')", '{"text": "</think>"}',
     '["</think>"]',
     "write('C:\\\\</think>')", "press(keys=['</think>'])"],
)  # fmt: skip
def test_an_action_that_types_the_end_of_reasoning_is_no_reasoning(action):
    assert end_of_reasoning(f"So: {action}\nclick(1, 2)") == 0
    thought = "I'd write it, \"so\", don't I?</think>"
    assert end_of_reasoning(f"{thought}\n{action}\nclick(1, 2)") == len(thought)


def test_an_endless_reply_is_read_in_time():
    for piece in ("{ ", "[ ", "``` ", '{"', "[{", '{"a":', "<think>"):
        text = piece * min(50_000, 190_000 // len(piece))
        with pytest.raises(ParseError):
            parse_lenient_values(text)


def test_what_is_nested_within_the_limit_is_read_and_nothing_beyond_it_makes_anything_recurse():
    """A list that is nested just less deeply than Python can read could not be shown in an error."""
    deep = "[" * 31 + "]" * 31
    ((value, _),) = parse_lenient_values('{"a":' + deep + "}")
    assert value == {"a": loads(deep)}
    wide = '{"a": [' + ", ".join(["[1, 2]"] * 64) + "]}"
    assert len(parse_lenient_values(wide)) == 1
    for depth in range(900, 1000):
        with pytest.raises(ParseError, match="nested too deeply"):
            parse_lenient_values('{"a":' + "[" * depth + "]" * depth + "}")
