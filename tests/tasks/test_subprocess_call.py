"""Readers of hostile files in a subprocess: exceptions, hangs, crashes and large output are evaluator errors."""

from __future__ import annotations

import asyncio
import os
import time

import pytest
from patience import limit

from deskhand.errors import EvaluatorError
from deskhand.tasks import document_readers, subprocess_call
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.judge import judge
from deskhand.tasks.outcome import Errored, Scored
from deskhand.tasks.suites.basics import office_files
from deskhand.tasks.task import CheckResult, Task

BAD = {
    "raises": ("builtins:eval", b"1/0", "ZeroDivisionError"),
    "hangs": ("builtins:eval", b"next(x for x in iter(int, 1) if x)", "took longer than 4 s"),
    "fills the memory": ("builtins:eval", b"len(bytes(10**10))", "MemoryError"),
    "ends by itself": ("builtins:eval", b"__import__('os')._exit(3)", "code 3"),
    "is killed": ("builtins:eval", b"__import__('os').kill(__import__('os').getpid(), 9)", "signal 9"),
    "says 40 MB": ("builtins:eval", b"'x' * 40_000_000", "2 MiB of output"),
    "prints 40 MB and says nothing of use": ("builtins:eval", b"[print('x' * 40_000_000), open][1]", "TypeError"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_failing_reader_ends_in_time_with_an_evaluator_error(name: str) -> None:
    function, data, expected = BAD[name]
    began = time.monotonic()
    with pytest.raises(EvaluatorError, match=expected):
        subprocess_call.call_in_subprocess(function, data, timeout_s=4.0, memory_mib=512, output_mib=2)
    assert time.monotonic() - began < limit(10)


def test_the_subprocess_has_no_environment_and_no_working_folder_of_the_caller(tmp_path) -> None:
    os.environ["DESKHAND_SECRET_OF_THE_TEST"] = "secret"
    try:
        code = b"'DESKHAND_SECRET_OF_THE_TEST' in __import__('os').environ"
        assert subprocess_call.call_in_subprocess("builtins:eval", code) is False
    finally:
        del os.environ["DESKHAND_SECRET_OF_THE_TEST"]
    assert subprocess_call.call_in_subprocess("builtins:eval", b"__import__('os').getcwd()") == "/"


def test_the_same_bytes_are_read_once() -> None:
    count = b"__import__('time').time_ns()"
    call = subprocess_call.call_in_subprocess
    first, again, other = (call("builtins:eval", data) for data in (count, count, count + b" "))
    assert first == again != other


async def test_office_files_and_archives_are_parsed_in_a_subprocess() -> None:
    values = {"One": [["a", 2], [None, 2.5]], "Two": [["x"]]}
    book = await office_files.read_workbook(office_files.workbook(values))
    assert book == office_files.Workbook(values, {"One": {}, "Two": {}}, {"One": [], "Two": []}, "Microsoft")
    text = await office_files.read_document(office_files.text_document(["one", "two"]))
    assert text is not None
    assert text.lines == ["one", "two"]
    for data in (b"", b"PK\x03\x04 nothing", b"\x1f\x8b no gzip"):
        assert await office_files.read_workbook(data) is None
        assert await office_files.read_document(data) is None
        with pytest.raises(InvalidDocument):
            subprocess_call.call_in_subprocess(f"{document_readers.__name__}:read_archive", data)


async def test_a_failing_reader_errors_one_episode_and_not_its_siblings() -> None:
    def task(data: bytes) -> Task:
        async def check(_: object) -> CheckResult:
            call = subprocess_call.call_in_subprocess
            return CheckResult(float(await asyncio.to_thread(call, "builtins:eval", data, timeout_s=3.0)))

        async def setup(_: object) -> None: ...

        return Task(id="t/f/0", instruction="do it", setup=setup, check=check)

    values = [b"1.0", b"1/0", b"float('nan')", b"0.5 + 0.25"] * 2
    outcomes = await asyncio.gather(*(judge(task(data), {}, grace_s=0) for data in values))
    for index, outcome in enumerate(outcomes):
        if index % 4 in (1, 2):
            assert isinstance(outcome, Errored)
            assert outcome.cause == "evaluator"
        else:
            assert outcome == Scored([1.0, 0, 0, 0.75][index % 4], {"end_state": [1.0, 0, 0, 0.75][index % 4]})
