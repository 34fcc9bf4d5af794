"""WAA Navi: decisions and Python blocks, and what they cannot ask for here."""

import pytest

from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.waa_navi import FORMAT
from deskhand.actions.ops import (
    REL_1,
    Click,
    Done,
    Drag,
    Fail,
    Key,
    MouseDown,
    MouseUp,
    Point,
    Scroll,
    Type,
    Wait,
)
from deskhand.errors import AgentError, ParseError

VIEW = ScreenView.of_screen(1280, 720)


def at(x, y):
    return Point(x, y, REL_1)


def decided(word, *lines):
    code = "\n".join(["", "```python", *lines, "```"]) if lines else ""
    return f"Next step rationale: so.\n```decision\n# what is next\n{word}\n```{code}\n```memory\nnothing\n```"


@pytest.mark.parametrize(
    ("lines", "ops"),
    [
        (["computer.mouse.move_abs(x=0.1, y=0.2)", "computer.mouse.drag(x=0.3, y=0.4)"],
         [Drag((at(0.1, 0.2), at(0.3, 0.4)))]),
        (["computer.mouse.move_abs(x=0.1, y=0.2)", "computer.mouse.single_click()", "computer.mouse.single_click()"],
         [Click(at(0.1, 0.2)), Click()]),
        (["computer.mouse.drag(x=0.3, y=0.4)"], [MouseDown(), MouseUp(at(0.3, 0.4))]),
        (["computer.mouse.move_abs(0.1, 0.2)", "computer.mouse.scroll(dir='up')"], [Scroll(dy=-3, point=at(0.1, 0.2))]),
        (["computer.keyboard.press('ctrl-c')", "computer.clipboard.paste()"], [Key(("ctrl", "c")), Key(("ctrl", "v"))]),
    ],
)  # fmt: skip
def test_a_block_means_what_it_does(lines, ops):
    assert FORMAT.parse(decided("COMMAND", *lines), VIEW) == ops


def test_a_decision_stands_for_itself():
    assert FORMAT.parse(decided("DONE"), VIEW) == [Done()]
    assert FORMAT.parse(decided("FAIL  # it is impossible"), VIEW) == [Fail()]
    assert FORMAT.parse(decided("WAIT", "# nothing to do"), VIEW) == [Wait(5.0)]


def test_a_word_in_a_comment_decides_nothing():
    assert FORMAT.parse(decided("# not DONE yet\nCOMMAND", "computer.keyboard.press('a')"), VIEW) == [Key(("a",))]


@pytest.mark.parametrize(
    "call",
    [
        "computer.mouse.move_id(id=78)",
        "computer.clipboard.copy_text('a')",
        "computer.clipboard.copy_image(id=1, description='b')",
        "computer.os.open_program('msedge')",
        "computer.window_manager.switch_to_application('Word')",
    ],
)
def test_what_needs_more_than_pointer_and_keys_says_so(call):
    with pytest.raises(ParseError, match="is not an action here") as caught:
        FORMAT.parse(decided("COMMAND", "computer.keyboard.press('a')", call), VIEW)
    assert decided("COMMAND", "computer.keyboard.press('a')", call)[slice(*caught.value.span)] == call


@pytest.mark.parametrize(
    "text",
    [
        decided("COMMAND"), decided("DONE", "computer.mouse.single_click()"), decided("DONE or FAIL"),
        decided("DONE") + "\n```decision\nFAIL\n```", decided("COMMAND", "computer.mouse.single_click"),
        decided("COMMAND", "computer.mouse.single_click()", "DONE"),
        decided("COMMAND", "import pyautogui", "pyautogui.click()"), "```json\n{}\n```", "```decision\nDONE",
        "I am DONE",
    ],
)  # fmt: skip
def test_incomplete_replies_are_rejected(text):
    with pytest.raises(ParseError):
        FORMAT.parse(text, VIEW)


def test_an_end_is_a_reply_of_its_own():
    with pytest.raises(AgentError, match="reply of its own"):
        FORMAT.emit([Type("a"), Done()], VIEW)


def test_waiting_within_code_imports_what_it_needs():
    assert FORMAT.emit([Wait(2)], VIEW) == "```decision\nCOMMAND\n```\n```python\nimport time\ntime.sleep(2)\n```"


def test_the_signs_between_keys_are_keys_too():
    for keys in (("-", "a"), ("ctrl", "-"), ("ctrl", "+"), ("+", "-"), ("-",), ("+",)):
        assert FORMAT.parse(FORMAT.emit([Key(keys)], VIEW), VIEW) == [Key(keys)]
