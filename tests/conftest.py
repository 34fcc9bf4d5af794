"""Prints, at the end of every run, the minutes that each folder of tests took; and Ctrl-C means Ctrl-C, also in the
background.

Where processes share the tests (`make test`), one file's stay together, and so do all that are run against one peer.
The benchmarks' tests come last. `--minutes N` skips what would start later than that, so that a slow machine ends in
time; the summary says how many were skipped.
"""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import hypothesis
import pytest
from command_line import called

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs with SIGINT ignored, and programs that the tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if "PYTEST_XDIST_WORKER" in os.environ:
    # The processes share the cores. Threads of torch on a busy core let each other wait, for many times the work.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine takes long for an example that is simple.
hypothesis.settings.register_profile("busy", deadline=None)
hypothesis.settings.load_profile("busy")

_started_at = time.monotonic()
_TOO_LATE = "not started: --minutes had passed"
_seconds_by_folder: dict[str, float] = defaultdict(float)
_tests_by_folder: dict[str, int] = defaultdict(int)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", type=float, help="skip tests that would start after so many minutes")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.nodeid.startswith("tests/benchmarks/"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    minutes = item.config.getoption("--minutes")
    if minutes is not None and time.monotonic() - _started_at > 60 * minutes:
        pytest.skip(_TOO_LATE)


def folder_of(nodeid: str) -> str:
    """`tests/actions/test_keys.py::test_x` belongs to `tests/actions`."""
    return str(PurePosixPath(nodeid.split("::", 1)[0]).parent)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For `--dist loadgroup`: pytest-xdist 3.8 writes groups to where pytest 9.2 does not read them, and shares test by
    test."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            if file == "tests/benchmarks/test_smoke.py":
                return nodeid
            return folder_of(nodeid) if file.startswith("tests/contract/") else file

    return ByFile(config, log)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    folder = folder_of(report.nodeid)
    _seconds_by_folder[folder] += report.duration
    if report.when == "call":
        _tests_by_folder[folder] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    late = sum(_TOO_LATE in str(report.longrepr) for report in terminalreporter.stats.get("skipped", ()))
    if late:
        terminalreporter.section(f"{late} tests {_TOO_LATE}")
    terminalreporter.section("minutes per folder")
    for folder, seconds in sorted(_seconds_by_folder.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{seconds / 60:7.2f} min  {_tests_by_folder[folder]:5d} tests  {folder}")
    terminalreporter.write_line(
        f"{sum(_seconds_by_folder.values()) / 60:7.2f} min  {sum(_tests_by_folder.values()):5d} tests  all"
    )


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that succeeds; returns its standard output."""

    def run(*arguments: str) -> str:
        code, out, err = called(monkeypatch, capsys, *arguments)
        assert code == 0, err
        return out

    return run


@pytest.fixture
def cli_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command with a user error: exit code 2 and one line on standard error, which is returned."""

    def run(*arguments: str) -> str:
        code, _, err = called(monkeypatch, capsys, *arguments)
        assert (code, err.count("\n"), err[:7]) == (2, 1, "error: "), err
        return err

    return run
