"""The pyautogui format and OpenCUA's: what the lines mean, in ops, and where the code of a reply is."""

import pytest

from deskhand.actions.formats import opencua
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.pyautogui import FORMAT
from deskhand.actions.ops import (
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
    Scroll,
    Type,
    Wait,
)
from deskhand.errors import AgentError, ParseError

VIEW = ScreenView.of_screen(1280, 720)


def at(x, y):
    return Point(x, y, VIEW.screen)


def read(*lines):
    return FORMAT.parse("\n".join(["```python", *lines, "```"]), VIEW)


@pytest.mark.parametrize(
    ("lines", "ops"),
    [
        (["pyautogui.moveTo(1, 2)", "pyautogui.dragTo(3, 4)"], [Drag((at(1, 2), at(3, 4)))]),
        (["pyautogui.dragTo(3, 4)"], [MouseDown(), MouseUp(at(3, 4))]),
        (["pyautogui.click(1, 2)", "pyautogui.dragTo(3, 4)"], [Click(at(1, 2)), MouseDown(), MouseUp(at(3, 4))]),
        (["pyautogui.moveTo(1, 2)", "pyautogui.moveTo(3, 4)", "pyautogui.dragTo(5, 6)", "pyautogui.dragTo(7, 8)"],
         [Move(at(1, 2)), Drag((at(3, 4), at(5, 6))), MouseDown(), MouseUp(at(7, 8))]),
        (["pyautogui.click(100, 100)", "pyautogui.moveRel(-10, 5)"], [Click(at(100, 100)), Move(at(90, 105))]),
        (["pyautogui.moveTo(10, 10)", "pyautogui.drag(5, 0, button='right')"],
         [Drag((at(10, 10), at(15, 10)), "right")]),
        (["pyautogui.moveTo(1, 1)", "pyautogui.mouseDown()", "pyautogui.dragTo(2, 2, mouseDownUp=False)",
          "pyautogui.mouseUp()"],
         [Drag((at(1, 1), at(2, 2)))]),
        (["pyautogui.moveTo(1, 1)", "pyautogui.mouseDown()", "pyautogui.dragTo(2, 2, mouseDownUp=False)",
          "pyautogui.click()"],
         [Move(at(1, 1)), MouseDown(), Move(at(2, 2)), Click()]),
        (["pyautogui.mouseDown(1, 1)", "pyautogui.dragTo(2, 2, mouseDownUp=False)", "pyautogui.mouseUp()"],
         [MouseDown(at(1, 1)), Move(at(2, 2)), MouseUp()]),
        (["pyautogui.keyDown('ctrl')", "pyautogui.click(1, 2)", "pyautogui.keyUp('ctrl')"],
         [KeyDown("ctrl"), Click(at(1, 2)), KeyUp("ctrl")]),
        (["with pyautogui.hold('ctrl'):", " pyautogui.click(1, 2)"], [Click(at(1, 2), modifiers=("ctrl",))]),
        (["with pyautogui.hold('ctrl'):", " pyautogui.scroll(2)"], [Scroll(dy=-2, modifiers=("ctrl",))]),
        (["with pyautogui.hold(['ctrl', 'shift']):", " pyautogui.click(1, 2)", " pyautogui.click(3, 4)"],
         [KeyDown("ctrl"), KeyDown("shift"), Click(at(1, 2)), Click(at(3, 4)), KeyUp("shift"), KeyUp("ctrl")]),
        (["with pyautogui.hold('a'):", " with pyautogui.hold('b'):", "  pyautogui.click()"],
         [KeyDown("a"), Click(modifiers=("b",)), KeyUp("a")]),
        (["pyautogui.press(['a', 'b'], presses=2)"], [Key(("a",)), Key(("b",)), Key(("a",)), Key(("b",))]),
        (["pyautogui.hotkey('Ctrl', 'A')"], [Key(("ctrl", "A"))]),
        (["pyautogui.click(button=3)"], [Click(button="right")]),
        (["pyautogui.click(5, 6, button='secondary')"], [Click(at(5, 6), "right")]),
        (["pyautogui.scroll(3.0)"], [Scroll(dy=-3)]),
        (["pyautogui.scroll(3)", "pyautogui.scroll(-3)"], [Scroll(dy=-3), Scroll(dy=3)]),
    ],
)  # fmt: skip
def test_lines_mean_what_pyautogui_does(lines, ops):
    assert read(*lines) == ops


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("pyautogui.moveRel(1, 1)", "has not named"),
        ("pyautogui.dragRel(1, 1)", "has not named"),
        ("pyautogui.moveTo(1270, 5); pyautogui.moveRel(20, 0)", "off the screen"),
        ("pyautogui.click(5)", "together"),
        ("pyautogui.click(True, False)", "must be a number"),
        ("pyautogui.click(1, 2, clicks=0)", "outside 1..5"),
        ("pyautogui.click(1, 2, clicks=1.5)", "whole number"),
        ("pyautogui.click(10**9, 2)", "arithmetic"),
        ("pyautogui.click(1" + "0" * 400 + ", 2)", "out of all bounds"),
        ("pyautogui.click(1e999, 2)", "out of all bounds"),
        ("pyautogui.click(1, 2, duration=-1)", "negative"),
        ("pyautogui.click(1, 2, tween='easeInQuad')", "no argument"),
        ("pyautogui.hold('a')", "behind with"),
        ("with pyautogui.click(1, 2): pyautogui.click()", "a with of this"),
        ("pyautogui.press('tab', presses=1000)", "outside 1..64"),
        ("pyautogui.press(['tab'] )\npyautogui.press([])", "needs a key"),
        ("pyautogui.press(5)", "must be a name"),
        ("pyautogui.write(5)", "must be a text"),
        ("pyautogui.write('\\ud800')", "surrogate"),
        ("pyautogui.write('" + "a" * 20_001 + "')", "the most is 20000"),
        ("time.sleep(-1)", "outside 0..30"),
        ("time.sleep('1')", "must be a number"),
        ("time.sleep(25)\ntime.sleep(25)\ntime.sleep(25)", "60 seconds"),
        ("pyautogui.press('a', presses=64)\npyautogui.press('b')", "more than 64"),
        ("pyautogui.alert('hi')", "not an action"),
        ("computer.terminate(status='success')", "not an action"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(line, reason):
    with pytest.raises(ParseError, match=reason):
        read(line)


def test_the_span_is_that_of_the_call_that_went_wrong():
    text = "I click.\n```python\npyautogui.click(1, 2)\npyautogui.click(5000, 2)\npyautogui.press('a')\n```"
    with pytest.raises(ParseError) as caught:
        FORMAT.parse(text, VIEW)
    assert text[slice(*caught.value.span)] == "pyautogui.click(5000, 2)"


@pytest.mark.parametrize(
    "text",
    [
        "pyautogui.click(1, 2)", "Action: pyautogui.click(1, 2)", "I will click it.\npyautogui.click(1, 2)",
        "  pyautogui.click(1, 2)\n", "```pyautogui.click(1, 2)```", "```py\npyautogui.click(1, 2)```",
        "```Python\r\npyautogui.click(1, 2)\r\n```",
        "<think>```python\npyautogui.press('a')```</think>```python\npyautogui.click(1, 2)\n```",
        "No more doubts.</think>pyautogui.click(1, 2)",
        "First `pyautogui`, then:\n```\n# here\npyautogui.click(1, 2)  # now\n```\nThis opens the menu.",
    ],
)  # fmt: skip
def test_code_is_found_in_a_reply(text):
    assert FORMAT.parse(text, VIEW) == [Click(at(1, 2))]


def test_a_line_of_code_is_not_lost_because_of_where_it_stands():
    lines = "pyautogui.click(1, 2)\npyautogui.press('a')"
    ops = [Click(at(1, 2)), Key(("a",))]
    for text in (lines, f"  {lines}".replace("\n", "\n  "), f"</think>{lines}", f"Action: {lines}", f"so:\n{lines}"):
        assert FORMAT.parse(text, VIEW) == ops


def test_a_diagonal_scroll_and_a_key_without_a_name_are_refused():
    drag = Drag((at(1, 1), at(2, 2)), "forward")
    for op in (Scroll(1, 1), Key(("numenter",)), Click(at(1, 1), "back"), drag, Answer("a")):
        with pytest.raises(AgentError, match="pyautogui"):
            FORMAT.emit([op], VIEW)


def test_words_end_the_task_or_wait():
    assert FORMAT.parse("```DONE```", VIEW) == [Done()]
    assert FORMAT.parse("```FAIL```", VIEW) == [Fail()]
    assert FORMAT.parse("WAIT", VIEW) == [Wait(2.0)]
    assert FORMAT.emit([Done()], VIEW) == "```DONE```"
    assert FORMAT.emit([Fail("there is no such file")], VIEW) == "```FAIL```"


def test_a_block_never_begins_with_with():
    """OSWorld puts `import pyautogui; ...; ` before the first line."""
    text = FORMAT.emit([Click(at(1, 2), modifiers=("shift",)), Type("a")], VIEW)
    assert text.startswith(
        "```python\nimport pyautogui\nwith pyautogui.hold(['shift']):\n    pyautogui.click(x=1, y=2)\n"
    )


def test_opencua_points_at_the_resized_image():
    view = ScreenView.of_screen(1920, 1080)
    (op,) = opencua.QWEN25.parse("```python\npyautogui.click(x=1931, y=1091)\n```", view)
    assert (op.point.space.width, op.point.space.height) == (1932, 1092)
    seen = ScreenView(1920, 1080, 1932, 1092)
    assert opencua.QWEN25.space(seen) == opencua.QWEN25.space(view)


def test_opencua_ends_with_a_status_and_perhaps_an_answer():
    for op in (Done(), Answer("42"), Answer(""), Fail(), Fail("no such file")):
        assert opencua.RELATIVE.parse(opencua.RELATIVE.emit([op], VIEW), VIEW) == [op]


def test_opencua_reads_what_stands_under_the_code_heading():
    text = "## Thought:\n```python\npyautogui.press('a')\n```\n## Code:\n```python\npyautogui.press('b')\n```"
    assert opencua.RELATIVE.parse(text, VIEW) == [Key(("b",))]
