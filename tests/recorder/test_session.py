"""Recording of conversations, and detection of wrong engines and images."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import limit
from recording import ScriptedEngine, png

from deskhand.errors import InfrastructureError, RecordError
from deskhand.recorder.graph import Call, CallGraph
from deskhand.recorder.images import ImageCache
from deskhand.recorder.messages import ImagePart, Message, message
from deskhand.recorder.recorder import ChatRequest, Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.types import Completion, PreparedImage, Prompt, Sampling

GO = (message("user", "go"),)


def ask(messages: tuple[Message, ...], **sampling: Any) -> ChatRequest:
    return ChatRequest(messages, Sampling(**{"max_tokens": 8, **sampling}))


def opened(recorder: Recorder, session_id: str = "s") -> Any:
    return recorder.session(recorder.open_session(session_id))


def reply_of(reply: Any, index: int = 0) -> Message:
    return message("assistant", reply.calls[index].text)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_token_is_in_one_sequence_however_the_agent_edits_its_history(
    renderer: ChatRenderer, image_processor: Any, data: st.DataObject
) -> None:
    images = ImageCache(image_processor)
    shown = [ImagePart(images.add(png(seed, 16, 16)).sha256) for seed in range(4)]
    parts = st.lists(st.sampled_from([*shown, "a", "b ", "\n", "512", "<|im_end|>"]), min_size=1, max_size=3)
    served: list[tuple[Prompt, Completion]] = []

    class Watching(ScriptedEngine):
        async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
            done = await super().generate(prompt, sampling)
            served.append((prompt, done))
            return done

    async def play() -> CallGraph:
        recorder = Recorder(renderer, Watching(), images)
        session = opened(recorder)
        talk: list[Message] = [message("user", data.draw(parts))]
        for _ in range(data.draw(st.integers(1, 9))):
            reply = await recorder.complete(
                session, ChatRequest(tuple(talk), Sampling(max_tokens=8), data.draw(st.integers(1, 2)))
            )
            what = data.draw(
                st.sampled_from(["grow", "grow", "grow", "retry", "edit", "drop images", "cut", "rewrite reply"])
            )
            if what == "retry":
                continue
            talk += [
                message("assistant", reply.calls[-1].text),
                message(data.draw(st.sampled_from(["user", "tool"])), data.draw(parts)),
            ]
            if what == "edit":
                at = data.draw(st.integers(0, len(talk) - 1))
                talk[at] = message(talk[at].role, talk[at].text + "!")
            elif what == "drop images":
                talk[:-1] = [message(one.role, one.text) for one in talk[:-1]]
            elif what == "cut":
                talk = talk[2 * data.draw(st.integers(0, len(talk) // 2 - 1)) :]
            elif what == "rewrite reply":
                talk[-2] = message("assistant", talk[-2].text + " indeed")
        return recorder.close_session("s")

    graph = asyncio.run(play())
    graph.untrained.clear()
    assert [(call.prompt_ids, call.spans, call.completion) for call in graph.calls] == [
        (prompt.token_ids, prompt.spans, done) for prompt, done in served
    ]
    sampled = sorted(token for _, done in served for token in zip(done.token_ids, done.logprobs, strict=True))
    for merge in (True, False):
        rows = graph.sequences(merge)
        kept = [
            pair for row in rows for *pair, was in zip(row.token_ids, row.logprobs, row.loss_mask, strict=True) if was
        ]
        assert sorted(map(tuple, kept)) == sampled
        for row in rows:
            placeholders = {index for span in row.spans for index in range(span.start, span.start + span.count)}
            assert placeholders == {i for i, token_id in enumerate(row.token_ids) if token_id == renderer.image_id}


async def test_growing_windows_give_one_sequence_per_window(recorder: Recorder, images: ImageCache) -> None:
    session, talk = opened(recorder), []
    for turn in range(12):
        talk.append(message("user", [ImagePart(images.add(png(turn)).sha256), "go"]))
        if sum(len(one.image_hashes) for one in talk) > 4:
            talk = [message(one.role, one.text) for one in talk[:-1]] + talk[-1:]
        talk.append(reply_of(await recorder.complete(session, ask(tuple(talk)))))
    graph = recorder.close_session("s")
    assert [len(row.call_ids) for row in graph.sequences()] == [4, 4, 4]


@pytest.mark.parametrize(
    ("tamper", "cause"),
    [
        (lambda done: replace(done, served_ids=done.served_ids + done.served_ids[-1:]), "served_ids"),
        (lambda done: replace(done, served_ids=done.served_ids[:-1]), "served_ids"),
        (lambda done: replace(done, logprobs=done.logprobs[:-1]), "lengths"),
        (lambda done: replace(done, versions=(*done.versions, 1)), "lengths"),
        (lambda done: replace(done, token_ids=(), logprobs=(), versions=()), "lengths"),
        (lambda done: replace(done, logprobs=(float("nan"), *done.logprobs[1:])), "logprobs"),
        (lambda done: replace(done, logprobs=(0.5, *done.logprobs[1:])), "logprobs"),
        (lambda done: replace(done, versions=(-1,) * len(done.versions)), "versions"),
        (lambda done: replace(done, finish_reason="length"), "finish_reason"),
        (lambda done: replace(done, token_ids=done.token_ids[::-1]), "finish_reason"),
    ],
)
async def test_a_violation_by_the_engine_stops_the_sample_and_is_counted(
    renderer: ChatRenderer, images: ImageCache, tamper: Callable[[Completion], Completion], cause: str
) -> None:
    stop = renderer.stop_ids[0]
    engine = ScriptedEngine(script=lambda prompt, sampling: [65, 66, stop])
    recorder = Recorder(renderer, engine, images)
    session = opened(recorder)
    await recorder.complete(session, ask(GO))
    engine.tamper = tamper
    with pytest.raises(RecordError) as caught:
        await recorder.complete(session, ask(GO))
    assert caught.value.cause == cause
    assert recorder.violations == {cause: 1}
    engine.tamper = None
    with pytest.raises(InvalidRequestError, match="was stopped") as refused:
        await recorder.complete(session, ask(GO))
    assert refused.value.code == "session_stopped"
    with pytest.raises(RecordError):
        recorder.close_session("s")
    await recorder.complete(opened(recorder, "other"), ask(GO))


async def test_double_expanded_placeholders_are_caught(renderer: ChatRenderer, images: ImageCache) -> None:
    """An engine that takes expanded ids for unexpanded ones serves the placeholders twice over."""
    shown = images.add(png(1))

    def expand_again(done: Completion) -> Completion:
        at = done.served_ids.index(renderer.image_id)
        return replace(
            done, served_ids=done.served_ids[:at] + (renderer.image_id,) * (shown.tokens - 1) + done.served_ids[at:]
        )

    recorder = Recorder(renderer, ScriptedEngine(tamper=expand_again), images)
    with pytest.raises(RecordError, match="served_ids"):
        await recorder.complete(opened(recorder), ask((message("user", [ImagePart(shown.sha256)]),)))


@pytest.mark.parametrize("pad", ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"])
async def test_a_sampled_placeholder_is_caught(renderer: ChatRenderer, images: ImageCache, pad: str) -> None:
    token_id = renderer.special_id(pad)
    assert token_id in renderer.banned_ids
    engine = ScriptedEngine(script=lambda prompt, sampling: [token_id or 0, renderer.stop_ids[0]])
    recorder = Recorder(renderer, engine, images)
    with pytest.raises(RecordError, match="banned_id"):
        await recorder.complete(opened(recorder), ask(GO))
    assert token_id in engine.samplings[0].banned_ids


@pytest.mark.parametrize(
    ("lie", "cause"),
    [
        (lambda image: replace(image, tokens=image.tokens + 1), "placeholders"),
        (lambda image: replace(image, tokens=image.tokens - 1), "placeholders"),
        (lambda image: replace(image, pixel_values=np.asarray(image.pixel_values)[:-4]), "placeholders"),
        (lambda image: replace(image, sha256="f" * 64), "image_hash"),
    ],
)
async def test_an_image_whose_tokens_pixels_or_name_disagree_is_caught_before_it_is_sent(
    renderer: ChatRenderer, images: ImageCache, lie: Callable[[PreparedImage], PreparedImage], cause: str
) -> None:
    shown = images.add(png(1))
    engine = ScriptedEngine()
    recorder = Recorder(renderer, engine, {shown.sha256: lie(shown)})
    with pytest.raises(RecordError) as caught:
        await recorder.complete(opened(recorder), ask((message("user", [ImagePart(shown.sha256)]),)))
    assert caught.value.cause == cause
    assert not engine.prompts


async def test_the_journal_has_each_call_before_its_reply_leaves(renderer: ChatRenderer, images: ImageCache) -> None:
    journal: list[tuple[str, Call, bool]] = []

    def write(session_id: str, call: Call) -> None:
        journal.append((session_id, call, threading.current_thread() is threading.main_thread()))

    recorder = Recorder(renderer, ScriptedEngine(), images, on_call=write)
    session = opened(recorder)
    for count in (1, 2):
        reply = await recorder.complete(session, ask(GO))
        assert len(journal) == count
        assert journal[-1] == ("s", reply.calls[0], False)
    assert [call for _, call, _ in journal] == recorder.close_session("s").calls


async def test_a_session_that_waits_for_the_disk_does_not_block_others(
    renderer: ChatRenderer, images: ImageCache
) -> None:
    waiting, free = threading.Event(), threading.Event()

    def slow(session_id: str, call: Call) -> None:
        if session_id == "slow":
            waiting.set()
            free.wait()

    recorder = Recorder(renderer, ScriptedEngine(), images, on_call=slow, workers=1)
    held = asyncio.create_task(recorder.complete(opened(recorder, "slow"), ask(GO)))
    try:
        assert await asyncio.to_thread(waiting.wait, 60)
        async with asyncio.timeout(limit(60)):
            await recorder.complete(opened(recorder, "other"), ask(GO))
        assert not held.done()
    finally:
        free.set()
    await held
    recorder.close()


async def test_a_reply_that_cannot_be_stored_is_not_sent_and_not_recorded(
    renderer: ChatRenderer, images: ImageCache
) -> None:
    def full(session_id: str, call: Call) -> None:
        raise OSError("no space left")

    recorder = Recorder(renderer, ScriptedEngine(), images, on_call=full)
    with pytest.raises(InfrastructureError, match="no space left"):
        await recorder.complete(opened(recorder), ask(GO))
    assert recorder.close_session("s").calls == []


async def test_a_retry_is_a_sibling_and_the_superseded_call_is_not_trained(
    renderer: ChatRenderer, images: ImageCache
) -> None:
    replies = iter([[65, 65], [66, 66], [67, 67]])
    engine = ScriptedEngine(script=lambda prompt, sampling: [*next(replies), renderer.stop_ids[0]])
    recorder = Recorder(renderer, engine, images)
    session = opened(recorder)
    await recorder.complete(session, ask(GO))
    second = await recorder.complete(session, ask(GO))
    await recorder.complete(session, ask((*GO, reply_of(second), *GO)))
    assert session.superseded_calls() == {"s.1"}
    graph = recorder.close_session("s")
    assert [call.id for call in graph.calls] == ["s.1", "s.2", "s.3"]
    assert sorted(call_id for row in graph.sequences() for call_id in row.call_ids) == ["s.2", "s.3"]
    assert CallGraph.from_dict(graph.to_dict()) == graph
    assert graph.untrained == {"s.1": "superseded"}


async def test_no_call_is_superseded_if_the_agent_continues_from_the_first_of_two_replies(
    renderer: ChatRenderer, images: ImageCache
) -> None:
    replies = iter([[65], [66], [67]])
    engine = ScriptedEngine(script=lambda prompt, sampling: [*next(replies), renderer.stop_ids[0]])
    recorder = Recorder(renderer, engine, images)
    session = opened(recorder)
    first = await recorder.complete(session, ask(GO))
    await recorder.complete(session, ask(GO))
    third = await recorder.complete(session, ask((*GO, reply_of(first), *GO)))
    assert session.superseded_calls() == set()
    assert third.calls[0].parent == "s.1"


async def test_parallel_calls_of_one_session_are_all_recorded(renderer: ChatRenderer, images: ImageCache) -> None:
    class Slow(ScriptedEngine):
        async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
            done = await super().generate(prompt, sampling)
            await asyncio.sleep(0.001 * (7 - len(self.prompts) % 7))
            return done

    recorder = Recorder(renderer, Slow(), images)
    session = opened(recorder)
    first = await recorder.complete(session, ask(GO))
    replies = await asyncio.gather(
        *[recorder.complete(session, ask((*GO, reply_of(first), message("user", f"{i}")))) for i in range(12)]
    )
    graph = recorder.close_session("s")
    assert {call.id for call in graph.calls} == {call.id for reply in (first, *replies) for call in reply.calls}
    assert sum(call.parent is not None for call in graph.calls) == 1
    assert sum(sum(row.loss_mask) for row in graph.sequences()) == graph.num_sampled_tokens


async def test_a_call_that_finishes_after_the_session_is_closed_is_rejected(
    renderer: ChatRenderer, images: ImageCache
) -> None:
    waiting, journal = asyncio.Event(), []

    class Held(ScriptedEngine):
        async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
            await waiting.wait()
            return await super().generate(prompt, sampling)

    recorder = Recorder(renderer, Held(), images, on_call=lambda *entry: journal.append(entry))
    call = asyncio.create_task(recorder.complete(opened(recorder), ask(GO)))
    await asyncio.sleep(0.05)
    graph = recorder.close_session("s")
    waiting.set()
    with pytest.raises(InvalidRequestError, match="has ended"):
        await call
    assert graph.calls == journal == []


async def test_a_truncated_reply_has_finish_reason_length(renderer: ChatRenderer, images: ImageCache) -> None:
    recorder = Recorder(renderer, ScriptedEngine(script=lambda prompt, sampling: [65] * 50), images)
    reply = await recorder.complete(opened(recorder), ask(GO, max_tokens=5))
    assert (reply.calls[0].completion.finish_reason, reply.calls[0].text) == ("length", "bbbbb")


async def test_an_aborted_request_is_an_outage_and_not_recorded(renderer: ChatRenderer, images: ImageCache) -> None:
    engine = ScriptedEngine(tamper=lambda done: replace(done, finish_reason="aborted"))
    recorder = Recorder(renderer, engine, images)
    with pytest.raises(InfrastructureError, match="aborted"):
        await recorder.complete(opened(recorder), ask(GO))
    assert recorder.close_session("s").calls == []
    assert not recorder.violations


async def test_replies_of_one_request_have_different_seeds(renderer: ChatRenderer, images: ImageCache) -> None:
    engine = ScriptedEngine()
    recorder = Recorder(renderer, engine, images)
    await recorder.complete(opened(recorder), ChatRequest(GO, Sampling(seed=5), 3))
    assert [sampling.seed for sampling in engine.samplings] == [5, 6, 7]


async def test_rendering_never_runs_on_the_event_loop(tokenizer: Any, images: ImageCache) -> None:
    threads = set()

    class Watched(ChatRenderer):
        def encode_text(self, text: str) -> list[int]:
            threads.add(threading.current_thread())
            return super().encode_text(text)

    renderer = Watched(tokenizer)
    threads.clear()
    recorder = Recorder(renderer, ScriptedEngine(), images)
    await recorder.complete(opened(recorder), ask(GO))
    assert threads
    assert threading.main_thread() not in threads


def test_each_session_has_its_own_key(recorder: Recorder) -> None:
    keys = {recorder.open_session(f"s{index}") for index in range(20)}
    assert len(keys) == 20
    assert all(len(key) > 40 for key in keys)
    with pytest.raises(InvalidRequestError, match="already open"):
        recorder.open_session("s1")
    recorder.close_session("s1")
    with pytest.raises(InvalidRequestError, match="no session"):
        recorder.close_session("s1")
    assert sum(recorder.session(key) is not None for key in keys) == 19
    assert all(key not in repr(recorder.sessions.find(key)) for key in keys)
