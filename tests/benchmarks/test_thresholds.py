"""A missed bar is printed and is exit code 1."""

import pytest

from benchmarks.evidence import write_page
from benchmarks.thresholds import ROOT, Thresholds, commit, hardware


def test_a_missed_threshold_is_named_and_ends_with_exit_code_1(capsys):
    thresholds = Thresholds()
    thresholds.check("speed", True, "3 ms", "< 5 ms")
    thresholds.check("memory", False, "9 MiB", "< 8 MiB")
    with pytest.raises(SystemExit) as ended:
        thresholds.finish()
    assert ended.value.code == 1
    assert capsys.readouterr().out.splitlines() == [
        "pass  speed: 3 ms (threshold: < 5 ms)",
        "FAIL  memory: 9 MiB (threshold: < 8 MiB)",
        "missed: memory",
    ]


def test_met_thresholds_are_exit_code_0(capsys):
    thresholds = Thresholds()
    thresholds.check("speed", True, "3 ms", "< 5 ms")
    with pytest.raises(SystemExit) as ended:
        thresholds.finish()
    assert ended.value.code == 0
    assert capsys.readouterr().out.endswith("all thresholds met\n")


def test_hardware_and_commit_are_one_line_each():
    assert "cores" in hardware()
    assert "\n" not in hardware() + commit()


def test_a_copy_without_history_names_the_commit_and_its_source(monkeypatch):
    monkeypatch.setenv("DESKHAND_COMMIT", "20627dae1aa8")
    assert commit() == "20627dae1aa8 (DESKHAND_COMMIT)"
    monkeypatch.delenv("DESKHAND_COMMIT")
    monkeypatch.setenv("PATH", "")
    assert commit() == "unknown"


def test_a_page_does_not_contain_the_path_of_the_checkout(tmp_path):
    assert write_page("page", ["-c", f"print({str(ROOT / 'benchmarks' / 'gpu.py')!r})"], tmp_path) == 0
    output = (tmp_path / "page.md").read_text().partition("exit code")[2]
    assert "benchmarks/gpu.py" in output
    assert str(ROOT) not in output
