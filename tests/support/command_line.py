"""`deskhand` called in the process of the test."""

from __future__ import annotations

import signal
import sys
from typing import Any

import pytest


def called(monkeypatch: pytest.MonkeyPatch, capsys: Any, *arguments: str) -> tuple[int, str, str]:
    """(exit code, standard output, standard error)."""
    from deskhand.cli import main

    monkeypatch.setattr(sys, "argv", ["deskhand", *arguments])
    before = signal.getsignal(signal.SIGTERM)
    code = 0
    try:
        main.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        signal.signal(signal.SIGTERM, before)
    return code, *capsys.readouterr()


def with_settings(*settings: str) -> list[str]:
    """`--set` before each setting."""
    return [word for setting in settings for word in ("--set", setting)]
