"""A command whose output is read no longer ends without a traceback, with exit code 141."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = {
    "a table": ["tasks", "list"],
    "a help page": ["train", "--help"],
    "lines": ["actions", "support"],
    "JSON": ["actions", "support", "--json"],
    "an error": ["actions", "describe"],
}


def run(words: list[str], **streams: int) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "deskhand", *words], cwd=ROOT, check=False, **streams)


def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("what", COMMANDS)
def test_a_closed_output_is_exit_code_141_without_a_message(what: str) -> None:
    writer = closed_pipe()
    try:
        is_error = what == "an error"
        streams = {"stderr": writer} if is_error else {"stdout": writer, "stderr": subprocess.PIPE}
        done = run(COMMANDS[what], **streams)
    finally:
        os.close(writer)
    assert done.returncode == 141
    assert not done.stderr, done.stderr.decode()


def test_output_that_was_read_to_its_end_is_no_failure() -> None:
    done = run(COMMANDS["lines"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout


FAILS = """
import socket, sys
from deskhand import __main__, cli
from deskhand.cli import main as command_line
def fail():
    raise {error}
command_line.main = fail
__main__.main()
"""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("BrokenPipeError(32, 'Broken pipe')", 1),
        ("SystemExit(2)", 2),
        ("ExceptionGroup('tasks', [BrokenPipeError(32, 'Broken pipe')])", 1),
    ],
)
def test_a_broken_connection_is_not_taken_for_the_output(error: str, code: int) -> None:
    command = [sys.executable, "-c", FAILS.format(error=error)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True)
    assert done.returncode == code
    assert (b"Broken pipe" in done.stderr) == (code == 1)
    writer = closed_pipe()
    try:
        done = subprocess.run(command, cwd=ROOT, check=False, stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == ((141, b"") if code == 1 else (2, b""))
