"""The Deskhand JSON dialect: round trip, exact texts, and a `ParseError` for all else."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deskhand.actions.formats import deskhand_json as action_format
from deskhand.actions.ops import (
    REL_1,
    REL_1000,
    Answer,
    Click,
    Done,
    Drag,
    Fail,
    Key,
    KeyDown,
    KeyUp,
    MouseDown,
    MouseUp,
    Move,
    Point,
    Screenshot,
    Scroll,
    Type,
    Wait,
    Zoom,
    screen_px,
    to_screen_px,
)
from deskhand.errors import AgentError, ParseError

points = st.builds(lambda x, y: Point(x, y, REL_1000), st.integers(0, 1000), st.integers(0, 1000))
maybe_points = st.none() | points
buttons = st.sampled_from(["left", "middle", "right", "back", "forward"])
names = st.text(min_size=1, max_size=5)
modifiers = st.lists(names, max_size=3).map(tuple)
notches = st.integers(-100, 100)
going_on = st.one_of(
    st.builds(Move, points),
    st.builds(Click, maybe_points, buttons, st.integers(1, 3), modifiers),
    st.builds(MouseDown, maybe_points, buttons),
    st.builds(MouseUp, maybe_points, buttons),
    st.builds(Drag, st.lists(points, min_size=2, max_size=5).map(tuple), buttons, modifiers),
    st.builds(Scroll, notches, notches, maybe_points, modifiers),
    st.builds(Type, st.text()),
    st.builds(Key, st.lists(names, min_size=1, max_size=4).map(tuple)),
    st.builds(KeyDown, names),
    st.builds(KeyUp, names),
    st.builds(Wait, st.floats(0, 12)),
    st.just(Screenshot()),
    st.builds(Zoom, points, points),
)
ending = st.one_of(st.just(Done()), st.builds(Fail, st.text()), st.builds(Answer, st.text()))
replies = (
    st.tuples(st.lists(going_on, max_size=5), st.lists(ending, max_size=1))
    .map(lambda pair: pair[0] + pair[1])
    .filter(bool)
)


@settings(max_examples=200, deadline=None)
@given(replies)
def test_what_is_emitted_is_parsed_back(ops):
    assert action_format.parse(action_format.emit(ops)) == ops


keys = st.sampled_from(["op", "x", "y", "text", "path", "keys"])
scalars = st.none() | st.booleans() | st.floats() | st.text() | st.sampled_from(["click", "type", "drag"])
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(keys, inner))


@settings(max_examples=200, deadline=None)
@given(st.text() | values.map(json.dumps))
def test_any_text_is_ops_or_a_parse_error_with_a_span_in_the_text(text):
    error = None
    try:
        assert action_format.parse(text)
    except ParseError as caught:
        error = caught
    if error is not None:
        assert 0 <= error.span[0] <= error.span[1] <= len(text)
        assert error.reason
        assert "\n" not in error.reason


@pytest.mark.parametrize(
    ("ops", "text"),
    [
        ([Click(Point(512, 300, REL_1000))], '{"op":"click","x":512,"y":300}'),
        ([Click()], '{"op":"click"}'),
        ([Click(Point(5, 6, REL_1000), "right", 2, ("ctrl",))],
         '{"op":"click","x":5,"y":6,"button":"right","count":2,"modifiers":["ctrl"]}'),
        ([Drag((Point(1, 2, REL_1000), Point(3, 4, REL_1000)))], '{"op":"drag","path":[[1,2],[3,4]]}'),
        ([Scroll(0, 3, Point(1, 2, REL_1000))], '{"op":"scroll","x":1,"y":2,"dx":0,"dy":3}'),
        ([Type("día\n")], '{"op":"type","text":"día\\n"}'),
        ([Key(("ctrl", "s")), Done()], '[{"op":"key","keys":["ctrl","s"]},{"op":"done"}]'),
        ([Wait()], '{"op":"wait","seconds":1}'),
        ([Zoom(Point(1, 2, REL_1000), Point(3, 4, REL_1000))], '{"op":"zoom","x":1,"y":2,"x2":3,"y2":4}'),
        ([Fail()], '{"op":"fail","reason":""}'),
        ([Answer()], '{"op":"answer","text":""}'),
    ],
)  # fmt: skip
def test_texts_are_exactly_these(ops, text):
    assert action_format.emit(ops) == text
    assert action_format.parse(text) == ops


@pytest.mark.parametrize(
    ("text", "span", "part"),
    [
        ("", (0, 0), "not JSON"),
        ("click here", (0, 10), "not JSON"),
        ("[]", (0, 2), "1 to 16"),
        ('{"op":"click","x":5}', (0, 20), "x and y together"),
        ('{"op":"click","x":1001,"y":5}', (0, 29), "outside 0..1000"),
        ('{"op":"click","x":true,"y":5}', (0, 29), "must be a number"),
        ('{"op":"click","x":1,"y":5,"z":1}', (0, 32), "no key 'z'"),
        ('{"op":"done"} ok', (14, 16), "after the reply"),
        ('{"op":"done"}{"op":"done"}', (13, 26), "after the reply"),
        ('[{"op":"click"}, {"op":"explode"}]', (17, 33), "unknown op 'explode'"),
        ('[{"op":"done"},{"op":"click"}]', (15, 29), "nothing may follow done"),
        ('{"op":"wait","seconds":NaN}', (0, 27), "NaN"),
        ('{"op":"wait","op":"done","seconds":1}', (0, 37), "twice"),
        ('{"op":"type","text":"\\ud800"}', (0, 29), "surrogate"),
        ('[{"op":"click"}', (15, 15), "expected ,"),
        ('[{"op":"click"},]', (16, 17), "not JSON"),
    ],
)
def test_what_is_not_understood_names_its_characters(text, span, part):
    with pytest.raises(ParseError) as caught:
        action_format.parse(text)
    assert caught.value.span == span
    assert part in caught.value.reason


def test_deep_nesting_and_endless_numbers_are_parse_errors():
    for text in (
        "[" * 200_000,
        '{"op":"wait","seconds":' + "9" * 10_000 + "}",
        '{"op":"wait","seconds":1' + "0" * 4000 + "}",
        '{"op":"wait","seconds":1e999}',
    ):
        with pytest.raises(ParseError):
            action_format.parse(text)


def test_every_pixel_of_a_small_screen_survives_the_relative_scale():
    for width, height in ((256, 192), (640, 480), (800, 600)):
        space = screen_px(width, height)
        for x in range(width):
            y = x % height
            [op] = action_format.parse(action_format.emit([Move(Point(x, y, space))]))
            assert isinstance(op, Move)
            assert to_screen_px(op.point, width, height) == (x, y)


def test_other_relative_spaces_are_written_on_the_scale_of_1000():
    assert action_format.emit([Move(Point(0.5, 1.0, REL_1))]) == '{"op":"move","x":500,"y":1000}'


def test_what_the_dialect_cannot_say_is_refused_and_not_bent():
    off = [Move(Point(300, 0, screen_px(256, 192)))]
    for ops in ([], [Done(), Click()], [Click(Point(1001, 0, REL_1000))], [Click(count=9)], off):
        with pytest.raises(AgentError):
            action_format.emit(ops)


def test_prompt_and_schema_name_every_op_and_the_prompts_examples_parse():
    defined = set(action_format.schema()["$defs"]) - {"op"}
    examples = [line.split("  ")[0] for line in action_format.PROMPT.splitlines() if line.startswith('{"op"')]
    assert {json.loads(example)["op"] for example in examples} == defined
    for example in examples:
        assert action_format.emit(action_format.parse(example)) == example
