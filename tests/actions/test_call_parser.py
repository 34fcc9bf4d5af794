"""Python-like text is read as a tree of literal calls: anything else is a `ParseError` with its characters, and nothing
is run."""

import time
import warnings

import pytest
from action_cases import audited
from hypothesis import given, settings
from hypothesis import strategies as st

from deskhand.actions.formats.call_parser import (
    MAX_CODE,
    MAX_ITERATIONS,
    MAX_STATEMENTS,
    CallGrammar,
    ParsedCall,
    parse_calls,
)
from deskhand.errors import ParseError

GRAMMAR = CallGrammar(
    modules=frozenset({"gui", "time"}),
    words=frozenset({"DONE"}),
    settings=frozenset({"gui.PAUSE"}),
    contexts=frozenset({"gui.hold"}),
    loops=True,
)


def read(code: str) -> list[ParsedCall]:
    return parse_calls(code, 0, len(code), GRAMMAR)


def refused(code: str) -> ParseError:
    with pytest.raises(ParseError) as caught:
        read(code)
    assert 0 <= caught.value.span[0] <= caught.value.span[1] <= len(code)
    assert caught.value.reason
    assert "\n" not in caught.value.reason
    return caught.value


def said(code: str) -> str:
    """The characters that an error names."""
    error = refused(code)
    return code[slice(*error.span)]


def test_a_call_has_its_literals_and_its_characters():
    code = "gui.click(1, -2.5, [True, None, ('a',)], button='left')"
    (call,) = read(code)
    assert call == ParsedCall("gui.click", (1, -2.5, (True, None, ("a",))), (("button", "left"),), (0, len(code)))


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("a.b(1); a.c(2)\n\n# a comment\na.d(3)  # another\n", ["a.b", "a.c", "a.d"]),
        ("import gui, time\ngui.PAUSE = 0.5\ngui.click()", ["gui.click"]),
        ("gui.click()\nDONE", ["gui.click", "DONE"]),
    ],
    ids=["lines and semicolons", "imports and settings", "words"],
)
def test_statements_are_calls_and_words(code, names):
    assert [call.name for call in read(code)] == names


def test_calls_behind_with_are_its_body():
    (call,) = read("with gui.hold('a'):\n    gui.click()\n    gui.press('b')")
    assert call.name == "gui.hold"
    assert call.body is not None
    assert [inner.name for inner in call.body] == ["gui.click", "gui.press"]


def test_an_indented_block_is_read_like_one_that_is_not():
    (first, second) = read("\n    # why\n    gui.a(1)\n    gui.b('''x\ny''')\n")
    assert (first.positional, second.positional) == ((1,), ("x\ny",))


@pytest.mark.parametrize("before", ["", "é", "日本 = 🙂  "])
def test_spans_count_characters_and_not_bytes(before):
    code = f"gui.a('{before}')\r\ngui.b('é', nope)"
    assert said(code) == "nope"


def test_spans_are_those_of_the_whole_reply():
    text = "Sure:\ngui.a(1)\ngui.b(x)\nbye"
    with pytest.raises(ParseError) as caught:
        parse_calls(text, 6, text.index("\nbye"), GRAMMAR)
    assert text[slice(*caught.value.span)] == "x"


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("import os", "import os"), ("import gui as g", "import gui as g"),
        ("from time import sleep", "from time import sleep"),
        ("gui.write(__import__('os').system('id'))", "__import__('os').system('id')"),
        ("__import__('os').system('id')", "__import__('os').system"), ("gui.write(f'{open(1)}')", "f'{open(1)}'"),
        ("gui.write('{0.__class__}'.format(gui))", "'{0.__class__}'.format(gui)"),
        ("gui.write('%s' % gui)", "'%s' % gui"), ("gui.write('a' + 'b')", "'a' + 'b'"),
        ("gui.click(1 + 1, 2)", "1 + 1"), ("gui.click(10 ** 10 ** 10)", "10 ** 10 ** 10"),
        ("gui.write(b'x')", "b'x'"), ("gui.click(1j)", "1j"), ("gui.click(...)", "..."),
        ("gui.click(not 1)", "not 1"), ("gui.click(-True)", "-True"), ("gui.click(*[1, 2])", "*[1, 2]"),
        ("gui.click(**{})", "{}"), ("gui.click({'x': 1})", "{'x': 1}"),
        ("gui.click([i for i in (1, 2)])", "[i for i in (1, 2)]"), ("gui.click(lambda: 1)", "lambda: 1"),
        ("gui.click(x := 1)", "x := 1"), ("(lambda: gui.click())()", "lambda: gui.click()"),
        ("gui.keys[0]()", "gui.keys[0]"), ("gui.press(gui.KEYS[0])", "gui.KEYS[0]"),
        ("getattr(gui, 'click')(1, 2)", "getattr(gui, 'click')"), ("x = 5", "x = 5"),
        ("gui.click = None", "gui.click = None"), ("gui.OTHER = 1", "gui.OTHER = 1"),
        ("gui.PAUSE = gui.x", "gui.PAUSE = gui.x"), ("del gui", "del gui"),
        ("while 1:\n gui.a()", "while 1:\n gui.a()"), ("if 1:\n gui.a()", "if 1:\n gui.a()"),
        ("def f():\n gui.a()", "def f():\n gui.a()"), ("with open('x'):\n gui.a()", "with open('x'):\n gui.a()"),
        ("with gui.hold('a') as h:\n gui.a()", "with gui.hold('a') as h:\n gui.a()"),
        ("try:\n gui.a()\nexcept E:\n gui.b()", "try:\n gui.a()\nexcept E:\n gui.b()"), ("DONE2", "DONE2"),
        ("gui.a", "gui.a"), ("'only a text'", "'only a text'"), ("gui.a(1, x=1, x=2)", "2"),
        ("gui.a([[[[1]]]])", "[1]"),
    ],
)  # fmt: skip
def test_what_is_no_literal_call_is_named(code, named):
    assert said(f"gui.ok(1)\n{code}") == named


@pytest.mark.parametrize(
    "code",
    [
        "gui.click(1, 2", "gui.write('never closed)", "gui.click(1,, 2)", "gui.write('C:\\Users')",
        "gui.a()\n  gui.b()", "gui.a('\0')", "gui.a('\ud800')", "gui.a(" + "9" * 5000 + ")", "  gui.a()\ngui.b()",
        "  gui.a()\nelse:\n  gui.b()",
    ],
)  # fmt: skip
def test_what_is_not_python_is_an_error_too(code):
    assert "Python" in refused(code).reason


@pytest.mark.parametrize(
    "code",
    [
        "gui.a(" + "(" * 5000 + ")" * 5000 + ")", "gui.a(" + "[" * 150 + "]" * 150 + ")",
        "gui.a(" + "-" * 5000 + "1)", "gui.a(" + "not " * 4000 + "1)", "gui" + ".a" * 6000 + "()",
        "gui.a(" + "1+" * 6000 + "1)", "gui.a" + "()" * 6000, "gui.a" + "[0]" * 5000 + "()",
        "gui.a(" + "lambda:" * 2000 + "1)", "gui.a(" + "{0:" * 90, "@a\n" * 5000 + "gui.a()",
        "if 1:\n a\n" + "elif 1:\n a\n" * 1500, "gui.a();" * (MAX_STATEMENTS + 1), "gui.a(" + "1," * 5000 + "1)",
        "gui.a(" + "x" * MAX_CODE + ")", "'" * 199_999, "gui.a('" + "\\'" * 99_000, "a" * 199_999, "#" * 199_999,
        "f" * 150_000 + "'x'", "'''" + "\\" * 150_000,
    ],
    ids=lambda code: f"{code[:12]!r}-{len(code)}",
)  # fmt: skip
def test_deep_and_long_code_is_refused_soon(code):
    if code.startswith("#"):
        assert read(code) == []
        return
    begin = time.process_time()
    refused(code)
    assert time.process_time() - begin < 3


def test_nothing_of_the_code_is_run(tmp_path):
    mark = tmp_path / "mark"
    for code in (
        f"gui.write(open({str(mark)!r}, 'w').write('x'))",
        f"[open({str(mark)!r}, 'w') for _ in '1']",
        f"gui.write(f\"{{open({str(mark)!r}, 'w')}}\")",
        f"gui.write(x=(lambda: open({str(mark)!r}, 'w'))())",
        f"class A(open({str(mark)!r}, 'w')): pass",
        f"def f(x=open({str(mark)!r}, 'w')): pass",
        f"@open({str(mark)!r}, 'w')\ndef f(): pass",
        f"assert open({str(mark)!r}, 'w')",
    ):
        refused(code)
    assert not mark.exists()


def test_a_doubtful_escape_is_read_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (call,) = read(r"gui.write('C:\dir \400')")
    assert call.positional == ("C:\\dir Ā",)


@pytest.mark.parametrize(
    "code", ["gui.a(0or 1)", "gui.a(1if 1else 2)", "gui.a(0x1for x in y)", "gui.a(1.and 2)", "gui.a(1jin x)"]
)
def test_a_keyword_behind_a_number_is_refused_without_a_warning(code):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        refused(code)
    assert not warned


def test_a_loop_stands_for_its_calls_as_often_as_it_turns():
    calls = read("for _ in range(2):\n    gui.press('tab')\n    for i in range(3): gui.click(1, 2)\nDONE")
    assert [call.name for call in calls] == ["gui.press", *["gui.click"] * 3] * 2 + ["DONE"]
    assert len(read(f"for i in range({MAX_ITERATIONS}): gui.a()")) == MAX_ITERATIONS


@pytest.mark.parametrize(
    ("head", "part"),
    [
        (f"for i in range({MAX_ITERATIONS + 1})", "1 to 20 times"), ("for i in range(0)", "1 to 20 times"),
        ("for i in range(10**9)", "a loop"), ("for i in range(1, 3)", "a loop"), ("for i in range(True)", "a loop"),
        ("for i in range(2.0)", "a loop"), ("for i in [1, 2]", "a loop"), ("for gui.x in range(2)", "a loop"),
        ("for i, j in range(2)", "a loop"), ("for i in x.range(2)", "a loop"),
        ("for i in range(20):\n for j in range(20)", f"more than {MAX_STATEMENTS} statements"),
    ],
)  # fmt: skip
def test_other_loops_are_refused(head, part):
    assert part in refused(f"{head}: gui.a()").reason


def test_what_turns_in_a_loop_is_no_argument():
    assert "not a name" in refused("for i in range(3): gui.a(i)").reason


def test_no_file_is_looked_for_when_code_is_wrong():
    """Python's own parser looks for the file of the code, to show a line of it: here a file without a name."""
    with audited() as executed:
        codes = "gui.a(1", "gui.a(1,, 2)", "  gui.a()\ngui.b()", "gui.a(0or 1)", "gui.a('\\d', b", "for i in range(2):"
        for code in codes:
            refused(code)
    assert not executed


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("gui.a()[]{}'\"\\\n \t#=,-+*1x:;@fb0é\x00\ud800\r"), max_size=60))
def test_any_text_is_calls_or_a_parse_error(code):
    try:
        spans = [call.span for call in read(code)]
    except ParseError as error:
        spans = [error.span]
    assert all(0 <= start <= end <= len(code) for start, end in spans)
