"""Evaluator process: limits, no network, and failures as `EvaluatorError`."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import crowd, limit

from deskhand.desktop.local import isolation
from deskhand.errors import EvaluatorError
from deskhand.osworld.official_evaluators import Files, JudgeLimits, MetricRequest, OfficialEvaluators, Read, Value
from deskhand.tasks.document_readers import InvalidDocument

SUPPORT = Path(__file__).parents[1] / "support"
WALLED = isolation.available_isolation()[0] == "namespaces"


@pytest.fixture(scope="module")
def judge() -> Iterator[OfficialEvaluators]:
    limits = JudgeLimits(seconds=2.0, memory_mib=512, output_bytes=1 << 20)
    evaluators = OfficialEvaluators(Path(sys.executable), ("bad_metrics",), readable=(SUPPORT,), limits=limits)
    yield evaluators
    evaluators.close()


def score(
    judge: OfficialEvaluators, metric: str, result: Read, expected: Read | None = None, **options: object
) -> float:
    return asyncio.run(judge.judge([MetricRequest(metric, result, expected, options)])).value


def joined(judge: OfficialEvaluators, conj: str, *values: object) -> float:
    return asyncio.run(judge.judge([MetricRequest("equal", Value(value), Value(True)) for value in values], conj)).value


def test_metrics_get_values_and_files_and_return_a_score(judge: OfficialEvaluators) -> None:
    assert score(judge, "equal", Value({"a": [1, None]}), Value({"a": [1, None]})) == 1.0
    assert score(judge, "equal", Value("x"), Value("y")) == 0.0
    data = os.urandom(3_000_000)
    assert score(judge, "same_content", Files((("a.bin", data),)), Files((("a.bin", data),))) == 1.0
    listed = Files((("a", b"1"), ("b", None)), single=False)
    assert score(judge, "names", listed, Value(["a", None])) == 1.0


def test_scores_are_combined_as_in_osworld(judge: OfficialEvaluators) -> None:
    assert joined(judge, "and", True, True) == 1.0
    assert joined(judge, "and", True, False) == 0.0
    assert joined(judge, "or", False, True) == 1.0
    assert joined(judge, "or", False, False) == 0.0
    half = [MetricRequest("fraction", Files((("f", bytes([k])),))) for k in range(3)]
    one_by_one = [asyncio.run(judge.judge([question])).value for question in half]
    assert asyncio.run(judge.judge(half, "and")).value == sum(one_by_one) / 3
    assert asyncio.run(judge.judge(half, "or")).value == max(one_by_one)
    ended = asyncio.run(judge.judge([MetricRequest("equal", Value(1), Value(0)), MetricRequest("raises", Value(0))]))
    assert ended.scores == (0.0,), "a 0 ends an and before what would have raised"


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        ("raises", "RuntimeError: no such sheet"),
        ("hangs", "exceeded 2 s"),
        ("hangs_with_children", "exceeded 2 s"),
        ("spins", "exceeded 2 s|memory or time limit"),
        ("not_a_number", "the score is not finite: nan"),
        ("too_much", "not in .0, 1.: 7"),
        ("nothing", "TypeError"),
        ("talks", "printed more than 1048576 bytes"),
        ("eats", "MemoryError"),
        ("dies", "exited without a score"),
        ("never_written", "unknown metric"),
        ("swallows_the_network", "unavailable: the network"),
        ("swallows_what_is_missing", r"unavailable: easyocr.Reader is not installed"),
    ],
)
def test_a_failing_metric_is_an_evaluator_error_within_the_limits(
    judge: OfficialEvaluators, metric: str, says: str
) -> None:
    began = time.monotonic()
    with pytest.raises(EvaluatorError, match=says) as caught:
        score(judge, metric, Value(0))
    assert time.monotonic() - began < limit(60), "it waited for what the metric started"
    assert repr(metric) in str(caught.value)
    assert len(str(caught.value)) < 3000
    assert score(judge, "equal", Value(0), Value(0)) == 1.0, "the next judgement is none the worse"


@pytest.mark.parametrize(
    ("metric", "result"),
    [
        ("spins_on_content", Files((("f", b"x"),))),
        ("eats_content", Value("x")),
        ("crashes_on_content", Files((("f", b"x"),))),
    ],
)
def test_what_exceeds_the_limits_only_with_the_guest_s_content_is_the_guest_s(
    judge: OfficialEvaluators, metric: str, result: Read
) -> None:
    # A metric that gets less than half of a core cannot be distinguished from one that waits.
    is_busy = metric == "spins_on_content" and crowd() > 1.5
    with pytest.raises((InvalidDocument, EvaluatorError) if is_busy else InvalidDocument, match=metric):
        score(judge, metric, result)


@pytest.mark.parametrize("first", [True, False])
def test_with_or_a_metric_that_exceeds_its_limits_leaves_the_others_their_word(
    judge: OfficialEvaluators, first: bool
) -> None:
    exceeding = MetricRequest("crashes_on_content", Files((("f", b"x"),)))
    for value, expected in ((True, 1.0), (False, 0.0)):
        other = MetricRequest("equal", Value(value), Value(True))
        both = [exceeding, other] if first else [other, exceeding]
        assert asyncio.run(judge.judge(both, "or")).value == expected
    with pytest.raises(InvalidDocument):
        asyncio.run(judge.judge([exceeding, MetricRequest("equal", Value(True), Value(True))], "and"))
    with pytest.raises(EvaluatorError):
        asyncio.run(judge.judge([MetricRequest("raises", Value(1)), MetricRequest("equal", Value(1), Value(1))], "or"))


def test_concurrent_requests_score_as_sequential_ones(judge: OfficialEvaluators) -> None:
    questions = [[MetricRequest("fraction", Files((("f", bytes([k]) * 1000),)))] for k in range(32)]
    alone = [asyncio.run(judge.judge(each)).value for each in questions]

    async def at_once() -> list[float]:
        return [judged.value for judged in await asyncio.gather(*(judge.judge(each) for each in questions))]

    together = asyncio.run(at_once())
    assert [value.hex() for value in together] == [value.hex() for value in alone]
    assert len(set(alone)) == 32


def test_requests_leave_no_state(judge: OfficialEvaluators) -> None:
    assert [score(judge, "remembers", Value(k)) for k in range(3)] == [0.0, 0.0, 0.0]
    assert score(judge, "leaves", Files((("f", b"1"),))) == 1.0
    assert score(judge, "leaves_files", Value(0)) == 0.0


@pytest.mark.skipif(not WALLED, reason="this machine has no namespaces")
def test_metrics_have_no_network_and_no_host_files(judge: OfficialEvaluators, tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(EvaluatorError, match=r"ConnectionRefused|OSError"),
    ):
        score(judge, "connects", Value(listener.getsockname()[1]))
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    with pytest.raises(EvaluatorError, match="FileNotFoundError"):
        score(judge, "reads", Value(str(secret)))


def test_a_dead_evaluator_process_is_restarted(judge: OfficialEvaluators) -> None:
    assert score(judge, "equal", Value(0), Value(0)) == 1.0
    judge.close()
    assert score(judge, "equal", Value(0), Value(0)) == 1.0


def test_a_python_without_the_metrics_is_reported() -> None:
    evaluators = OfficialEvaluators(Path(sys.executable), ("not_there_at_all",))
    with pytest.raises(EvaluatorError, match=r"did not start: .*not_there_at_all"):
        score(evaluators, "equal", Value(0))
