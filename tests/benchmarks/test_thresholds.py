"""A missed bar is printed and is exit code 1."""

import pytest

from benchmarks.thresholds import Thresholds, commit, hardware


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
