"""A missed bar is printed and is exit code 1."""

import pytest

from benchmarks.thresholds import Bars, commit, hardware


def test_a_missed_bar_is_named_and_ends_with_exit_code_1(capsys):
    bars = Bars()
    bars.check("speed", True, "3 ms", "< 5 ms")
    bars.check("memory", False, "9 MiB", "< 8 MiB")
    with pytest.raises(SystemExit) as ended:
        bars.finish()
    assert ended.value.code == 1
    assert capsys.readouterr().out.splitlines() == [
        "pass  speed: 3 ms (bar: < 5 ms)",
        "FAIL  memory: 9 MiB (bar: < 8 MiB)",
        "missed: memory",
    ]


def test_met_bars_are_exit_code_0(capsys):
    bars = Bars()
    bars.check("speed", True, "3 ms", "< 5 ms")
    with pytest.raises(SystemExit) as ended:
        bars.finish()
    assert ended.value.code == 0
    assert capsys.readouterr().out.endswith("all bars met\n")


def test_hardware_and_commit_are_one_line_each():
    assert "cores" in hardware()
    assert "\n" not in hardware() + commit()
