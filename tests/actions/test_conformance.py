"""The conformance corpus, its commands, and the table of supported ops."""

import io
import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from deskhand.actions import conformance, formats
from deskhand.actions.ascii_preview import COLUMNS, ascii_preview
from deskhand.actions.ops import REL_1000, Answer, Click, Drag, Point, Scroll, Wait, Zoom
from deskhand.actions.serialization import op_to_json, with_defaults
from deskhand.actions.support_table import support_table
from deskhand.cli import main

CASES = [case for name in formats.available_formats() for case in conformance.load_cases(name)]
PAGE = Path(__file__).parents[2] / "docs" / "actions.md"


@pytest.fixture
def called(monkeypatch, capsys):
    """Runs `deskhand` in this process: (exit code, standard output, standard error)."""

    def call(*arguments, given=""):
        monkeypatch.setattr(sys, "argv", ["deskhand", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(given))
        monkeypatch.setattr(main.signal, "signal", lambda *_: None)
        code = 0
        try:
            main.main()
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize("name", formats.available_formats())
def test_every_case_is_read_as_it_is_published(name):
    cases = conformance.load_cases(name)
    assert not [text for text in map(conformance.mismatch, cases) if text]
    assert len(cases) >= 25
    assert sum(case.error is not None for case in cases) >= 5


def test_the_corpus_is_large_and_mostly_not_our_own_writing():
    assert len(CASES) >= 600
    assert sum(case.emitted for case in CASES) <= len(CASES) / 3
    counts = Counter((case.action_format, case.text, case.view) for case in CASES)
    assert not [text for text, count in counts.items() if count > 1]
    assert all(case.source.strip() and not re.search(r"(^|\s)/\w", case.source) for case in CASES)


def test_mismatches_are_described():
    good = next(case for case in conformance.load_cases("computer_13") if case.ops)
    assert conformance.mismatch(good) is None
    for change in ({"ops": [{"op": "done"}]}, {"text": "garbage"}, {"ops": None, "error": "no such action"}):
        mismatch = conformance.mismatch(good.model_copy(update=change))
        assert "computer_13.jsonl line 1: expected" in str(mismatch)
    bad = next(case for case in conformance.load_cases("computer_13") if case.span)
    assert "span" in str(conformance.mismatch(bad.model_copy(update={"span": (0, 1)})))


def test_check_counts_and_ends_with_2_on_a_mismatch(called, tmp_path):
    code, out, err = called("actions", "conformance")
    assert (code, err) == (0, "")
    assert {line.split()[0] for line in out.splitlines()} == {"format", "all", *formats.available_formats()}
    view = [9, 9, 9, 9]
    case = {"action_format": "deskhand_json", "text": '{"op":"done"}', "view": view, "source": "x", "emitted": False}
    (tmp_path / "deskhand_json.jsonl").write_text(json.dumps(case | {"ops": [{"op": "fail"}]}) + "\n")
    code, out, err = called("actions", "conformance", "deskhand_json", "--folder", str(tmp_path))
    assert code == 2
    assert err == 'deskhand_json.jsonl line 1: expected [{"op": "fail"}], found [{"op": "done"}]\n'
    bad = [
        {"action_format": "gemini", "ops": []}, {"ops": [], "view": [9, 9]}, {"ops": [], "view": [9, 9, 0, 9]},
        {"ops": [], "view": "9999"}, {"ops": [], "text": 5}, {"ops": [{"op": "nod"}]}, {"ops": [5]}, {"ops": {}}, {},
        {"ops": [{"op": []}]},
    ]  # fmt: skip
    for line in ("no JSON", "[1]", "null", b"\xff", *(json.dumps(case | change) for change in bad)):
        (tmp_path / "deskhand_json.jsonl").write_bytes(line if isinstance(line, bytes) else line.encode())
        code, _, err = called("actions", "conformance", "deskhand_json", "--folder", str(tmp_path))
        assert (code, err[:33], err.count("\n")) == (2, "error: deskhand_json.jsonl line 1", 1)


def test_a_corpus_without_cases_is_not_a_corpus_that_is_read_well(called, tmp_path):
    for folder, reason in ((tmp_path / "typo", "not a directory"), (tmp_path, "contains no cases")):
        code, _, err = called("actions", "conformance", "--folder", str(folder))
        assert code == 2
        assert reason in err


def test_explain_shows_ops_and_where_they_land(called):
    reply = '[{"op":"click","x":0,"y":0},{"op":"type","text":"hé"},{"op":"drag","path":[[500,500],[1000,1000]]}]'
    code, out, err = called("actions", "explain", "--format", "deskhand_json", "--screen", "1280x720", given=reply)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:3] == [
        '1 {"op": "click", "point": [0, 0]}',
        '  {"op": "type", "text": "hé"}',
        '3 {"op": "drag", "path": [[640, 360], [1279, 719]]}',
    ]
    assert lines[5].startswith("|1")
    assert lines[-2].endswith("3|")
    assert lines[-1] == f"+{'-' * COLUMNS}+ 1280x720"


def test_explain_points_at_what_was_not_understood(called):
    reply = 'I think.\n{"action": "left_click", "coordinate": [5, 5]} ok?'
    code, out, err = called("actions", "explain", "--format", "anthropic_20250124", given=reply)
    assert (code, out) == (2, "")
    said, _, line, marks = err.splitlines()
    assert said == "cannot parse the reply: unexpected text after the action"
    assert line[marks.index("^") :] == "ok?"
    assert marks.strip() == "^^^"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["actions", "conformance", "nope"], "unknown action format 'nope'"),
        (["actions", "explain", "--format", "qwen"], "did you mean"),
        (["actions", "explain", "--format", "gemini", "--screen", "1920"],
         "--screen: expected WIDTHxHEIGHT such as 1920x1080, got 1920"),
        (["actions", "explain", "--format", "gemini", "--image", "0x5"], "--image: expected"),
    ],
)  # fmt: skip
def test_user_errors_are_one_line_and_exit_code_2(called, arguments, part):
    code, _, err = called(*arguments)
    assert code == 2
    assert part in err
    assert err.count("\n") == 1


def test_the_page_holds_the_table_that_the_command_prints(called):
    code, out, _ = called("actions", "support")
    assert code == 0
    between = PAGE.read_text().split("<!-- table -->")[1].split("<!-- end of table -->")[0]
    assert between.strip() == out.strip() == support_table()
    for name in formats.available_formats():
        assert f"| `{name}` |" in out


def test_plain_ops_are_pixels_of_the_screen_without_what_is_default():
    at = Point(500, 1000, REL_1000)
    for op, plain in (
        (Click(at), {"op": "click", "point": [100, 99]}),
        (Click(None, "right", 2, ("ctrl",)), {"op": "click", "button": "right", "count": 2, "modifiers": ["ctrl"]}),
        (Drag((at, at)), {"op": "drag", "path": [[100, 99], [100, 99]]}),
        (Scroll(dy=-3), {"op": "scroll", "dy": -3}),
        (Wait(), {"op": "wait"}),
        (Answer("a"), {"op": "answer", "text": "a"}),
        (Zoom(at, at), {"op": "zoom", "top_left": [100, 99], "bottom_right": [100, 99]}),
    ):
        assert op_to_json(op, 200, 100) == plain
    assert with_defaults({"op": "wait"}) == {"op": "wait", "seconds": 1.0}
    assert ascii_preview([Wait()], 200, 100) == '  {"op": "wait"}'
