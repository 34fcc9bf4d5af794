"""`deskhand tasks audit`, `show` and `lint` on families of Python files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from test_tasks_cli import Called, called  # noqa: F401

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_task.py"
SUITE = """\
import deskhand as dh

async def nothing(desktop):
    pass

async def check(desktop):
    return dh.CheckResult(0.0)

def made(name, **changes):
    @dh.task_family(name, applications=["xterm"])
    def family(seed):
        task = {"instruction": f"Write {seed}.", "setup": nothing, "check": check, "max_steps": 3}
        return dh.Task(**(task | changes))
    return family

FAMILIES = [made("plain"), made("short", max_steps=1, instruction="Write 1.")]
"""


PAGE = EXAMPLE.parents[1] / "docs" / "writing-tasks.md"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "suite.py"
    path.write_text(SUITE)
    return path


def test_lint_reports_each_family_of_a_python_file(suite: Path, called: Called) -> None:  # noqa: F811
    code, out, _ = called("lint", suite)
    lines = out.splitlines()
    assert (code, lines[-1]) == (2, "1 files, 1 invalid")
    assert f"note: {suite}: plain: it has no oracle; deskhand tasks audit, deskhand sft" in out
    assert [
        line
        for line in lines
        if "short: seed 0: max_steps must be at least 2" in line.replace("short seed", "short: seed")
    ]
    assert any("6 seeds give the same instruction" in line for line in lines)
    code, out, _ = called("lint", f"{suite}:plain")
    assert (code, out.splitlines()[-1]) == (0, "1 files, 0 invalid")
    code, out, _ = called("lint", EXAMPLE)
    assert (code, out.splitlines()[-1]) == (0, "1 files, 0 invalid")
    assert "note: " in out
    assert "save_note: it has no oracle" in out


def test_python_files_of_a_folder_are_not_taken_for_suites(suite: Path, called: Called) -> None:  # noqa: F811
    code, _, err = called("lint", suite.parent)
    assert (code, "no task files" in err) == (2, True)


def test_show_describes_all_families_or_one(suite: Path, called: Called) -> None:  # noqa: F811
    code, out, _ = called("show", suite, "7")
    assert code == 0
    assert [line.split()[1] for line in out.splitlines() if line.startswith("task ")] == [
        "custom/plain/7",
        "custom/short/7",
    ]
    code, out, _ = called("show", f"{suite}:plain", "7")
    assert (code, out.count("instruction"), "Write 7." in out, "packages     xterm" in out) == (0, 1, True, True)


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("suite.py:plane", SUITE, "has no family 'plane'; did you mean 'plain'?"),
        ("suite.py", "x = 1\n", "must define FAMILIES"),
        ("suite.py", "import nosuch\n", "No module named 'nosuch'"),
        ("suite.py", SUITE.replace('"short"', '"plain"'), "two families are named 'plain'"),
        ("siute.py", SUITE, "did you mean"),
    ],
)
def test_a_wrong_name_or_file_is_one_line(
    name: str,
    text: str,
    part: str,
    tmp_path: Path,
    called: Called,  # noqa: F811
) -> None:
    (tmp_path / "suite.py").write_text(text)
    for command in ("show", "audit", "lint"):
        code, out, err = called(command, tmp_path / name)
        assert code == 2
        assert part in out + err
        assert "Traceback" not in out + err


@pytest.fixture
def family_of_page(tmp_path: Path) -> Path:
    (code,) = [block for block in PAGE.read_text().split("```python\n")[1:] if "task_family" in block]
    (tmp_path / "page.py").write_text(code.split("```")[0])
    return tmp_path / "page.py"


def test_the_family_of_the_page_is_lint_free(family_of_page: Path, called: Called) -> None:  # noqa: F811
    assert called("lint", family_of_page)[:2] == (0, "1 files, 0 invalid\n")


def test_audit_plays_the_other_agents_of_a_family_without_an_oracle(suite: Path, called: Called) -> None:  # noqa: F811
    code, out, _ = called("audit", f"{suite}:plain", "--agents", "done")
    assert code == 0
    assert [line.split() for line in out.splitlines() if line.startswith("custom/plain/0")] == [
        ["custom/plain/0", "0", *"000"]  # no cheat was tried, paid or voided
    ]


@pytest.mark.skipif(shutil.which("xterm") is None, reason="xterm is not installed")
def test_the_family_of_the_page_passes_the_audit(family_of_page: Path, called: Called) -> None:  # noqa: F811
    agents = "done,early_stop,typo,wrong_click,overwrite"
    code, out, _ = called("audit", f"{family_of_page}:save_word", "--agents", agents)
    assert (code, out.splitlines()[-1]) == (0, "1 tasks, 0 skipped, 0 wrong scores")
    row = next(line for line in out.splitlines() if line.startswith("custom/save_word/0")).split()
    oracle, others, cheats_paid_voided = "1", "0000", "100"
    assert row[1:] == [*oracle, *others, *cheats_paid_voided]
