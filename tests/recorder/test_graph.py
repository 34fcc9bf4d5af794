"""However calls are made and merged, every sampled token is in exactly one sequence, and a graph survives JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deskhand.errors import RecordError
from deskhand.recorder.graph import Call, CallGraph
from deskhand.types import RESTRICTIONS, Completion, ImageSpan

PAD = 9
SHAS = ("a" * 64, "b" * 64)


def call(
    call_id: str,
    parent: str | None,
    prompt_ids: tuple[int, ...],
    token_ids: tuple[int, ...],
    spans: tuple[ImageSpan, ...] = (),
    temperature: float = 1.0,
) -> Call:
    size = len(token_ids)
    logprobs = tuple(-0.1 * (index + 1) / 3 for index in range(size))
    return Call(
        call_id,
        parent,
        prompt_ids,
        spans,
        Completion(token_ids, logprobs, (4,) * size, "stop", prompt_ids),
        temperature,
        "t",
    )


@st.composite
def graphs(draw: st.DrawFn) -> CallGraph:
    """Calls over a small vocabulary: each prompt is new or continues an earlier call, sometimes with one change."""
    graph = CallGraph()
    for index in range(draw(st.integers(1, 12))):
        prompt: list[int] = []
        spans: tuple[ImageSpan, ...] = ()
        if graph.calls and draw(st.booleans()):
            before = draw(st.sampled_from(graph.calls))
            prompt, spans = list(before.end_ids), before.spans
            if draw(st.integers(0, 4)) == 0:
                at = draw(st.integers(0, len(prompt) - 1))
                if prompt[at] != PAD:
                    prompt[at] = draw(st.integers(0, 2))
            if spans and draw(st.integers(0, 4)) == 0:
                spans = (*spans[:-1], ImageSpan(spans[-1].start, spans[-1].count, draw(st.sampled_from(SHAS))))
        prompt += draw(st.lists(st.integers(0, 2), min_size=1, max_size=3))
        if draw(st.booleans()):
            spans += (ImageSpan(len(prompt), 2, draw(st.sampled_from(SHAS))),)
            prompt += [PAD, PAD]
        temperature = draw(st.sampled_from([1.0, 1.0, 1.0, 0.5]))
        output = tuple(draw(st.lists(st.integers(0, 2), max_size=20)))
        parent = graph.parent_of(tuple(prompt), spans, temperature)
        graph.add(call(f"c{index}", parent, tuple(prompt), output, spans, temperature))
    return graph


def slow_parent(graph: CallGraph, one: Call) -> set[str]:
    """By definition: the longest earlier, unextended call whose prompt + output starts the prompt."""
    earlier = graph.calls[: graph.calls.index(one)]
    extended = {other.parent for other in earlier}
    fits = [
        other
        for other in earlier
        if other.id not in extended
        and other.temperature == one.temperature
        and one.prompt_ids[: len(other.end_ids)] == other.end_ids
        and tuple(span for span in one.spans if span.start < len(other.end_ids)) == other.spans
    ]
    longest = max((len(other.end_ids) for other in fits), default=0)
    return {other.id for other in fits if len(other.end_ids) == longest}


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_every_sampled_token_is_in_exactly_one_sequence(graph: CallGraph) -> None:
    want = Counter(
        (one.id, index, *token)
        for one in graph.calls
        for index, token in enumerate(
            zip(one.completion.token_ids, one.completion.logprobs, one.completion.versions, strict=True)
        )
    )
    for merge in (True, False):
        rows, found = graph.sequences(merge), Counter[Any]()
        for row in rows:
            assert len(row.token_ids) == len(row.loss_mask) == len(row.logprobs) == len(row.versions)
            tokens = [
                (token_id, logprob, version)
                for token_id, sampled, logprob, version in zip(
                    row.token_ids, row.loss_mask, row.logprobs, row.versions, strict=True
                )
                if sampled
            ]
            for call_id in row.call_ids:
                one = graph.get(call_id)
                size = len(one.completion.token_ids)
                assert row.token_ids[: one.end] == one.end_ids
                assert tuple(span for span in row.spans if span.start < one.end) == one.spans
                assert row.temperature == one.temperature
                found.update((call_id, index, *token) for index, token in enumerate(tokens[:size]))
                tokens = tokens[size:]
            assert not tokens
            assert all(
                v == -1 and p == 0.0 for s, v, p in zip(row.loss_mask, row.versions, row.logprobs, strict=True) if not s
            )
        assert found == want
        assert sorted(call_id for row in rows for call_id in row.call_ids) == sorted(one.id for one in graph.calls)
    assert len(graph.sequences(False)) == len(graph.calls)


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_a_call_extends_the_longest_call_that_nothing_extends(graph: CallGraph) -> None:
    for one in graph.calls:
        fits = slow_parent(graph, one)
        assert (one.parent in fits) if fits else one.parent is None


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_a_graph_survives_json(graph: CallGraph) -> None:
    again = CallGraph.from_dict(json.loads(json.dumps(graph.to_dict())))
    assert again == graph
    assert again.sequences() == graph.sequences()


@settings(max_examples=100, deadline=None)
@given(graphs(), st.data())
def test_an_untrained_call_is_stored_and_not_trained_on(graph: CallGraph, data: st.DataObject) -> None:
    out = data.draw(st.sets(st.sampled_from([one.id for one in graph.calls])))
    before = graph.sequences()
    graph.untrained.update(dict.fromkeys(out, "superseded"))
    for merge in (True, False):
        rows = graph.sequences(merge)
        trained = sorted(call_id for row in rows for call_id in row.call_ids)
        assert trained == sorted(one.id for one in graph.calls if one.id not in out)
        assert sum(sum(row.loss_mask) for row in rows) == sum(
            len(graph.get(one).completion.token_ids) for one in trained
        )
    assert CallGraph.from_dict(json.loads(json.dumps(graph.to_dict()))) == graph
    graph.untrained.clear()
    assert graph.sequences() == before


def test_json_of_a_chain_grows_with_its_tokens_not_with_their_square() -> None:
    graph, prompt = CallGraph(), tuple(range(100))
    for index in range(50):
        graph.add(call(f"c{index}", f"c{index - 1}" if index else None, prompt, (1, 2, 3)))
        prompt = (*prompt, 1, 2, 3, *range(97))
    written = sum(len(entry["new_prompt_ids"]) for entry in graph.to_dict()["calls"])
    assert written == 100 + 49 * 97


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        (call("b", "a", (1, 2, 3, 4, 5), (6,)), None),
        (call("b", "a", (1, 2, 4, 4, 5), (6,)), "not_a_prefix"),
        (call("b", "a", (1, 2, 3), (6,)), "not_a_prefix"),
        (call("b", "a", (1, 2, 3, 4, 5), (6,), temperature=0.5), "not_a_prefix"),
        (call("b", "a", (1, 2, 3, 4, 5), (6,), (ImageSpan(2, 1, SHAS[0]),)), "not_a_prefix"),
        (call("b", "x", (1, 2, 3, 4, 5), (6,)), "unknown_parent"),
        (call("a", None, (1,), (6,)), "duplicate_call"),
        (Call("b", None, (1,), (), Completion((6,), (), (0,), "stop", (1,))), "lengths"),
    ],
)
def test_a_call_that_does_not_fit_is_a_record_error(wrong: Call, cause: str | None) -> None:
    graph = CallGraph([call("a", None, (1, 2), (3, 4))])
    if cause is None:
        graph.add(wrong)
        with pytest.raises(RecordError) as caught:
            graph.add(call("c", "a", wrong.prompt_ids, (7,)))
        assert caught.value.cause == "fork"
        return
    with pytest.raises(RecordError) as caught:
        graph.add(wrong)
    assert caught.value.cause == cause
    assert len(graph.calls) == 1


def test_a_dictionary_of_another_format_is_a_record_error() -> None:
    with pytest.raises(RecordError, match="format 99"):
        CallGraph.from_dict({"format": 99, "calls": []})


@pytest.mark.parametrize("restriction", RESTRICTIONS)
def test_a_reply_from_a_restricted_distribution_is_imitated_at_most(restriction) -> None:
    graph = CallGraph()
    graph.add(call("a", None, (1, 2), (3,)))
    drawn = call("b", "a", (1, 2, 3, 4), (5,))
    graph.add(replace(drawn, completion=replace(drawn.completion, restriction=restriction)))
    assert graph.untrained == {"b": restriction}
    assert [row.call_ids for row in graph.sequences()] == [("a",)]
    imitated = ("b",) if restriction == "human" else ("a", "b")  # of a takeover, only the person's replies
    assert [row.call_ids for row in graph.sequences(imitation=True)] == [imitated]
    assert CallGraph.from_dict(json.loads(json.dumps(graph.to_dict()))) == graph
    unknown = replace(call("c", None, (9,), (5,)), completion=replace(drawn.completion, exact=False))
    graph.add(replace(unknown, completion=replace(unknown.completion, restriction=restriction)))
    assert graph.untrained["c"] == "inexact", "ids that are not known are not imitated either"


def test_an_inexact_reply_is_stored_and_not_trained_on() -> None:
    graph = CallGraph()
    graph.add(call("a", None, (1, 2), (3,)))
    inexact = call("b", "a", (1, 2, 3, 4), (5,))
    graph.add(replace(inexact, completion=replace(inexact.completion, exact=False)))
    graph.add(call("c", "b", (1, 2, 3, 4, 5, 6), (7,)))
    assert graph.untrained == {"b": "inexact"}
    (row,) = graph.sequences()
    assert row.call_ids == ("a", "c")
    assert [token for token, sampled in zip(row.token_ids, row.loss_mask, strict=True) if sampled] == [3, 7]
    assert CallGraph.from_dict(json.loads(json.dumps(graph.to_dict()))) == graph
