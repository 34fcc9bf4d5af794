"""pytest plugin that injects one bug of `fault_rows.training` into a test session: the one named by DESKHAND_BUG."""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from benchmarks.fault_rows.training import BUGS

_STACK = ExitStack()


def pytest_sessionstart(session: pytest.Session) -> None:
    _STACK.enter_context(BUGS[os.environ["DESKHAND_BUG"]].injected())


def pytest_sessionfinish(session: pytest.Session) -> None:
    _STACK.close()
