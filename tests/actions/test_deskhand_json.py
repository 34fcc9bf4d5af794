"""The deskhand_json format: exact texts, spans of errors, and the relative scale."""

import pytest

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
    Move,
    Point,
    Scroll,
    Type,
    Wait,
    Zoom,
    screen_px,
    to_screen_px,
)
from deskhand.errors import AgentError, ParseError


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
def test_ops_have_exactly_one_text(ops, text):
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
def test_parse_errors_name_the_span(text, span, part):
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


def test_every_pixel_of_a_small_screen_round_trips():
    for width, height in ((256, 192), (640, 480), (800, 600)):
        space = screen_px(width, height)
        for x in range(width):
            y = x % height
            [op] = action_format.parse(action_format.emit([Move(Point(x, y, space))]))
            assert isinstance(op, Move)
            assert to_screen_px(op.point, width, height) == (x, y)


def test_other_relative_spaces_are_written_on_the_scale_of_1000():
    assert action_format.emit([Move(Point(0.5, 1.0, REL_1))]) == '{"op":"move","x":500,"y":1000}'


def test_invalid_ops_are_rejected():
    off = [Move(Point(300, 0, screen_px(256, 192)))]
    for ops in ([], [Done(), Click()], [Click(Point(1001, 0, REL_1000))], [Click(count=9)], off):
        with pytest.raises(AgentError):
            action_format.emit(ops)
