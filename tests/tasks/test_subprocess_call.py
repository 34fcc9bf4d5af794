"""Readers of guest files in a subprocess: exceeded limits are the file's fault, exceptions are evaluator errors."""

from __future__ import annotations

import asyncio
import os

import pytest

from deskhand import pausable_timeout
from deskhand.errors import EvaluatorError
from deskhand.tasks import document_readers, subprocess_call
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.judge import judge
from deskhand.tasks.outcome import Errored, Scored
from deskhand.tasks.suites.basics import office_files
from deskhand.tasks.task import CheckResult, Task

FAILING = {
    "raises": (b"1/0", "ZeroDivisionError"),
    "ends by itself": (b"__import__('os')._exit(3)", "code 3"),
    "is killed": (b"__import__('os').kill(__import__('os').getpid(), 9)", "signal 9"),
    "returns no JSON": (b"open", "TypeError"),
    "prints 40 MB and returns no JSON": (b"[[print('x' * 2_000_000) for _ in range(20)], open][1]", "TypeError"),
}
EXCEEDING = {
    "does not end": (b"next(x for x in iter(int, 1) if x)", "takes longer than 1 s"),
    "fills the memory": (b"len(bytes(10**10))", "more than 64 MiB of memory"),
    "fills the memory slowly": (b"[[x] for x in range(10**7)]", "more than 64 MiB of memory"),
    "says 4 MB": (b"'x' * 4_000_000", "more than 2 MiB of content"),
    "crashes": (b"__import__('os').abort()", "crashes its reader"),
    "recurses": (b"(lambda f: f(f))(lambda f: f(f))", "nested too deeply"),
}
LIMITS = {"cpu_s": 1.0, "memory_mib": 64, "output_mib": 2}


@pytest.mark.parametrize("name", FAILING)
def test_a_failing_reader_is_an_evaluator_error(name: str) -> None:
    data, expected = FAILING[name]
    with pytest.raises(EvaluatorError, match=expected):
        subprocess_call.call_in_subprocess(eval, data, **LIMITS)


@pytest.mark.parametrize("name", EXCEEDING)
def test_a_file_that_exceeds_a_limit_or_crashes_its_reader_is_invalid(name: str) -> None:
    data, expected = EXCEEDING[name]
    for _ in range(2):  # the second answer is remembered
        with pytest.raises(InvalidDocument, match=expected):
            subprocess_call.call_in_subprocess(eval, data, **LIMITS)


def test_reading_pauses_the_timeouts_around_it() -> None:
    async def read() -> object:
        with pausable_timeout.measure_paused() as meter:
            async with pausable_timeout.pausable_timeout(0.2):
                await subprocess_call.read_in_subprocess(eval, b"__import__('time').sleep(0.5)")
        return meter.paused_s

    assert asyncio.run(read()) == 0.0, "it is no wait for quota"


def test_the_subprocess_has_no_environment_and_no_working_folder_of_the_caller(tmp_path) -> None:
    os.environ["DESKHAND_SECRET_OF_THE_TEST"] = "secret"
    try:
        code = b"'DESKHAND_SECRET_OF_THE_TEST' in __import__('os').environ"
        assert subprocess_call.call_in_subprocess(eval, code) is False
    finally:
        del os.environ["DESKHAND_SECRET_OF_THE_TEST"]
    code = b"(lambda os: (os.getcwd(), os.listdir()))(__import__('os'))"
    folder, names = subprocess_call.call_in_subprocess(eval, code)
    assert names == []
    assert not os.path.exists(folder)


def test_the_same_bytes_are_read_once() -> None:
    count = b"__import__('time').time_ns()"
    call = subprocess_call.call_in_subprocess
    first, again, other = (call(eval, data) for data in (count, count, count + b" "))
    assert first == again != other


async def test_office_files_and_archives_are_parsed_in_a_subprocess() -> None:
    values = {"One": [["a", 2], [None, 2.5]], "Two": [["x"]]}
    book = await office_files.read_workbook(office_files.workbook(values))
    assert book == office_files.Workbook(values, {"One": {}, "Two": {}}, {"One": [], "Two": []}, "Microsoft")
    text = await office_files.read_document(office_files.text_document(["one", "two"]))
    assert text is not None
    assert text.lines == ["one", "two"]
    slides = await office_files.read_presentation(office_files.presentation([("One", ["a", "b"]), ("Two", [])]))
    assert slides == office_files.Presentation([[["One"], ["a", "b"]], [["Two"], [""]]], "Microsoft")
    for data in (b"", b"PK\x03\x04 nothing", b"\x1f\x8b no gzip"):
        assert await office_files.read_workbook(data) is None
        assert await office_files.read_presentation(data) is None
        assert await office_files.read_document(data) is None
        with pytest.raises(InvalidDocument):
            subprocess_call.call_in_subprocess(document_readers.read_archive, data)


async def test_a_check_that_does_not_expect_an_invalid_document_scores_zero() -> None:
    async def check(_: object) -> CheckResult:
        return CheckResult(float(await subprocess_call.read_in_subprocess(document_readers.read_json, b"[")))

    async def setup(_: object) -> None: ...

    outcome = await judge(Task(id="t/f/0", instruction="do it", setup=setup, check=check), {}, grace_s=0)
    assert isinstance(outcome, Scored)
    assert outcome.value == 0.0
    assert "invalid JSON" in outcome.findings[0].read


async def test_a_failing_reader_errors_one_episode_and_not_its_siblings() -> None:
    def task(data: bytes) -> Task:
        async def check(_: object) -> CheckResult:
            call = subprocess_call.call_in_subprocess
            return CheckResult(float(await asyncio.to_thread(call, eval, data)))

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
