"""Output and exit codes of `deskhand tasks ...` on files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from task_files import task, written

from deskhand.cli import main
from deskhand.tasks.suites import basics, miniwob

SHOPPING = Path(__file__).parent / "files" / "shopping.yaml"
REMOTE = {"config": [{"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["https://www.example"]}}]}


Called = Callable[..., tuple[int, str, str]]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Called:
    """Run `deskhand tasks` in this process; return exit code, standard output and standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["deskhand", "tasks", *map(str, arguments)])
        monkeypatch.setattr(main.signal, "signal", lambda *_: None)
        code = 0
        try:
            main.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        return code, *capsys.readouterr()

    return call


def test_lint_names_the_file_the_line_and_the_key(tmp_path: Path, called: Called) -> None:
    good = tmp_path / "good.yaml"
    good.write_text(SHOPPING.read_text())
    written(tmp_path, task(_note="n"), "os/noted.json")
    code, out, _ = called("lint", tmp_path)
    assert (code, out.splitlines()[-1]) == (0, "2 files, 0 invalid")
    assert any(line.startswith(f"note: {tmp_path}/os/noted.json:") and "_note" in line for line in out.splitlines())
    good.write_text(SHOPPING.read_text().replace("difficulty: easy", "difficulty: easy\ncolour: red"))
    code, out, _ = called("lint", good)
    assert (code, out) == (2, f"{good}:5: colour: unknown key\n1 files, 1 invalid\n")


def test_lint_and_show_reject_other_files_with_one_line_and_exit_code_two(tmp_path: Path, called: Called) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "a.yaml").write_text("deskhand: 2\n")
    for arguments, word in [
        (("lint", tmp_path / "absent.yaml"), "not a task file"),
        (("lint", tmp_path / "a.txt"), "not a task file"),
        (("show", tmp_path / "absent.json"), "cannot be read"),
        (("show", tmp_path / "a.yaml"), "a.yaml:1: "),
        (("check-corpus", "osworld", tmp_path / "absent"), "folder not found"),
        (("check-corpus", "osworld", tmp_path), "no task file"),
    ]:
        code, out, err = called(*arguments)
        assert (code, out, len(err.splitlines())) == (2, "", 1), arguments
        assert word in err


def test_show_describes_native_and_foreign_tasks(tmp_path: Path, called: Called) -> None:
    code, out, _ = called("show", SHOPPING)
    assert code == 0
    texts = ("native/shopping/0", "3 green pears", "512x384", "at most 6", "l3afpad", "all of", "pears were added")
    for text in (*texts, "5 steps"):
        assert text in out, text
    code, out, _ = called("show", written(tmp_path, task(**REMOTE)))
    assert code == 0
    web = "needs the live web: https://www.example"
    for text in ("unsupported", web, "chrome_open_tabs", "exact_match of vm_command_line, rule"):
        assert text in out, text
    path = tmp_path / "night.yaml"
    path.write_text(
        "name: Turn it on\nid: n\nevaluate:\n  - {check: file, path: a}\n"
        "  - {check: screenshot, description: it is on}\n"
    )
    code, out, _ = called("show", path)
    assert (code, "Turn it on" in out, "joined by" in out) == (0, True, True)


def test_import_prints_every_task_with_its_reasons_and_the_counts(tmp_path: Path, called: Called) -> None:
    written(tmp_path, task(related_apps=[]), "os/here.json")
    written(tmp_path, task(related_apps=[], **REMOTE), "chrome/web.json")
    out_folder = tmp_path.with_name("out")
    code, out, _ = called("check-corpus", "osworld", tmp_path, "--copy-to", out_folder)
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[:2] == ["chrome/web unsupported needs the live web (https://www.example)", "os/here runnable"]
    counts = {"1 runnable", "0 missing files", "1 unsupported", "1 needs the live web"}
    assert counts | {"2 tasks loaded, 0 invalid files"} <= set(lines)
    assert (out_folder / "os" / "here.json").is_file()
    assert called("lint", out_folder)[0] == 0
    written(tmp_path, "broken", "os/broken.json")
    code, out, _ = called("check-corpus", "osworld", tmp_path)
    assert code == 2
    assert "invalid: " in out


def test_the_list_has_every_family_with_its_tier_and_screen(called: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = called("list")
    lines = out.splitlines()
    assert (code, lines[-1]) == (0, f"{len(basics.FAMILIES)} families")
    assert {line.split()[0] for line in lines[1:-1]} == set(basics.FAMILIES)
    tiers = [line.split()[1] for line in lines[1:-1]]
    assert tiers == sorted(tiers, key=["easy", "medium", "hard"].index)
    assert any(line.split()[:3] == ["sheet_sort", "hard", "1280x720"] for line in lines)


@pytest.mark.skipif(
    miniwob.unavailable_reason() is not None, reason="no package miniwob (pip install --no-deps miniwob)"
)
def test_miniwob_is_listed_and_shown_by_its_own_names(called: Called) -> None:
    code, out, _ = called("list", "--suite", "miniwob")
    assert (code, out.splitlines()[-1]) == (0, "130 families")
    code, out, _ = called("show", "miniwob/click-button", "3")
    assert code == 0
    assert "miniwob/click-button/3" in out
    code, _, err = called("show", "miniwob/solitaire")
    assert (code, "--suite miniwob" in err) == (2, True)
