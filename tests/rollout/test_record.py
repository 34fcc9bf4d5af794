"""Episodes as they are kept."""

import json

import episode_results
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deskhand.errors import RecordError
from deskhand.recorder.graph import CallGraph
from deskhand.rollout.episode_record import from_record, to_record
from deskhand.tasks.outcome import Finding, Scored


@pytest.mark.parametrize(
    "episode",
    [
        episode_results.result(),
        episode_results.result(0.3),
        episode_results.result(None),
        episode_results.result(graph=CallGraph()),
    ],
)
def test_what_is_written_is_read_back_equal(episode):
    record, tensors = to_record(episode)
    assert from_record(json.loads(json.dumps(record)), tensors) == episode


@given(st.lists(st.floats(max_value=0, allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
def test_log_probs_are_stored_exactly(logprobs):
    call = episode_results.call("c", None, (1, 9, 9, 2), tuple(range(len(logprobs))), 1)
    done = type(call.completion)(call.completion.token_ids, tuple(logprobs), call.completion.versions, "length", (7, 7))
    graph = CallGraph([type(call)(call.id, None, call.prompt_ids, call.spans, done)])
    kept = from_record(*to_record(episode_results.result(graph=graph))).graph.calls[0].completion
    assert kept.logprobs == tuple(logprobs)
    assert kept.served_ids == (7, 7)


def test_an_extending_call_stores_only_new_tokens():
    _, once = to_record(episode_results.result(graph=CallGraph(episode_results.graph().calls[:1])))
    long = episode_results.call("b1", None, (1, 9, 9, *range(100, 1100)), (5,), 0)
    calls = [long]
    for number in range(2, 30):
        calls.append(episode_results.call(f"b{number}", calls[-1], (1, 9, 9), (5,), 0))
    _, many = to_record(episode_results.result(graph=CallGraph(calls)))
    assert len(many) - len(once) < 8 * (1003 + 29 * 8) + 4096


def test_findings_of_a_check_are_stored():
    findings = (Finding("the color", 1.0, "'red'", "'red'"), Finding("the size", 0.0, "3", "12"))
    result = episode_results.result(outcome=Scored(0.5, {"end_state": 0.5}, findings=findings))
    again = from_record(*to_record(result))
    assert isinstance(again.outcome, Scored)
    assert again.outcome.findings == findings
    record, arrays = to_record(result)
    del record["outcome"]["findings"]
    older = from_record(record, arrays)
    assert isinstance(older.outcome, Scored)
    assert older.outcome.findings == ()


def test_another_format_is_refused():
    record, tensors = to_record(episode_results.result())
    with pytest.raises(RecordError, match="format 1"):
        from_record({**record, "format": 1}, tensors)
