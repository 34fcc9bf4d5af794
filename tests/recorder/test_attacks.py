"""Disconnects, disk errors and races: no reply that was sent is lost, and the session continues."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from patience import limit
from PIL import Image
from recording import ADMIN, ScriptedEngine, bearer, data_uri, png
from serving import on_a_port

from deskhand.errors import InfrastructureError
from deskhand.recorder import append_log
from deskhand.recorder.graph import Call
from deskhand.recorder.images import ImageCache
from deskhand.recorder.messages import Message, message
from deskhand.recorder.recorder import ChatRequest, Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.recorder.server import create_app, in_process_client
from deskhand.recorder.session_store import SessionStore
from deskhand.recorder.sessions import Session
from deskhand.types import Completion, Prompt, Sampling

ASK = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 6}


def raw(key: str, body: dict[str, object]) -> bytes:
    """A request as it goes over a connection."""
    content = json.dumps(body).encode()
    head = [
        "POST /v1/chat/completions HTTP/1.1",
        "host: h",
        f"authorization: Bearer {key}",
        f"content-length: {len(content)}",
    ]
    return "\r\n".join([*head, "", ""]).encode() + content


def ask(*texts: str, n: int = 1) -> ChatRequest:
    talk = [message("user" if number % 2 == 0 else "assistant", text) for number, text in enumerate(texts)]
    return ChatRequest(tuple(talk), Sampling(6), n)


def opened(recorder: Recorder) -> Session:
    recorder.open_session("s")
    return recorder.sessions.get("s")


class Held:
    """A journal whose writing begins, waits until it is let go, and then is done."""

    def __init__(self, folder: SessionStore) -> None:
        self.folder, self.begun, self.go = folder, asyncio.Event(), threading.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self, session_id: str, call: Call) -> None:
        self._loop.call_soon_threadsafe(self.begun.set)
        assert self.go.wait(10)
        self.folder.write_call(session_id, call)


async def disconnect(recorder: Recorder, session: Session, journal: Held) -> None:
    """A client goes away while its call is written."""
    waiting = asyncio.create_task(recorder.complete(session, ask("go")))
    await journal.begun.wait()
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    journal.go.set()


@pytest.fixture
def folder(tmp_path: Path) -> SessionStore:
    return SessionStore(tmp_path, durable=False)


async def test_a_client_disconnect_during_a_write_leaves_disk_and_memory_equal(
    renderer: ChatRenderer, images: ImageCache, folder: SessionStore
) -> None:
    journal = Held(folder)
    recorder = Recorder(renderer, ScriptedEngine(), images, on_call=journal)
    session = opened(recorder)
    await disconnect(recorder, session, journal)
    first = await recorder.complete(session, ask("go on"))
    text = first.calls[0].text
    second = await recorder.complete(session, ask("go on", text, "and on"))
    assert second.calls[0].parent == first.calls[0].id
    graph = recorder.close_session("s")
    assert folder.read("s")[0].calls == graph.calls
    assert graph.ids == ["s.1", "s.2", "s.3"]
    assert graph.untrained == {"s.1": "undelivered"}
    assert not recorder.violations


async def test_a_session_ended_over_http_while_a_call_is_written_has_that_call(
    renderer: ChatRenderer, images: ImageCache, folder: SessionStore
) -> None:
    journal = Held(folder)
    recorder = Recorder(renderer, ScriptedEngine(), images, on_call=journal)
    key = recorder.open_session("s")
    async with in_process_client(create_app(recorder, ADMIN, folder=folder)) as http:
        asked = asyncio.create_task(http.post("/v1/chat/completions", json=ASK, headers=bearer(key)))
        await journal.begun.wait()
        ending = asyncio.create_task(http.post("/sessions/s/end", headers=bearer(ADMIN)))
        await asyncio.sleep(0.05)
        assert not ending.done()
        journal.go.set()
        assert (await asked).status_code == 200
        assert [call["id"] for call in (await ending).json()["graph"]["calls"]] == ["s.1"]
    assert folder.read("s")[0].ids == ["s.1"]


async def test_a_reply_to_a_session_closed_meanwhile_is_never_sent(
    renderer: ChatRenderer, images: ImageCache, folder: SessionStore
) -> None:
    journal = Held(folder)
    recorder = Recorder(renderer, ScriptedEngine(), images, on_call=journal)
    session = opened(recorder)
    asked = asyncio.create_task(recorder.complete(session, ask("go")))
    await journal.begun.wait()
    graph = recorder.close_session("s")
    journal.go.set()
    with pytest.raises(InvalidRequestError, match="has ended"):
        await asked
    assert graph.ids == [], "a graph that was handed over does not change"


class Disk:
    """The module `os`, in which some writes (by number) get half of their bytes to the disk and then find it full."""

    def __init__(self, *full: int) -> None:
        self.full, self.count = full, 0

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def write(self, file: int, data: bytes) -> int:
        self.count += 1
        if self.count in self.full:
            os.write(file, bytes(data)[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(file, data)


async def test_a_briefly_full_disk_loses_one_call_and_tears_no_line(
    renderer: ChatRenderer, images: ImageCache, folder: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_log, "os", Disk(1, 4, 6))  # the first is of the journal's head
    recorder = Recorder(renderer, ScriptedEngine(), images, on_call=folder.write_call)
    session = opened(recorder)
    talk, failed = ["go"], list[str]()
    for _ in range(6):
        try:
            reply = await recorder.complete(session, ask(*talk))
            talk += [reply.calls[0].text, "on"]
        except InfrastructureError as error:
            failed.append(str(error))
    assert ["No space left" in words for words in failed] == [True] * 3
    assert not recorder.violations
    graph = recorder.close_session("s")
    assert folder.read("s")[0].calls == graph.calls
    assert len(graph.sequences()) == 1


async def test_of_several_replies_none_is_trained_when_one_cannot_be_written(
    renderer: ChatRenderer, images: ImageCache, folder: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_log, "os", Disk(3))
    recorder = Recorder(renderer, ScriptedEngine(), images, on_call=folder.write_call)
    session = opened(recorder)
    with pytest.raises(InfrastructureError, match="No space left"):
        await recorder.complete(session, ask("go", n=3))
    graph = recorder.close_session("s")
    assert graph.untrained == {"s.1.0": "undelivered"}
    assert graph.sequences() == []


def test_only_one_of_two_processes_can_own_a_session(tmp_path: Path) -> None:
    """The file is made by one of them; here threads with a folder object each stand for them."""
    both = threading.Barrier(8)

    def write(_: int) -> str:
        mine = SessionStore(tmp_path)
        both.wait()
        try:
            mine.write_reward("s", {"call_id": None, "reward": 1.0})
            return "written"
        except InfrastructureError as error:
            return str(error).partition(": ")[2]
        finally:
            mine.close()

    with ThreadPoolExecutor(8) as threads:
        said = list(threads.map(write, range(8)))
    assert sorted(said) == ["contains another session with this id; use unique session ids"] * 7 + ["written"]
    assert SessionStore(tmp_path).read("s")[1].episode == 1.0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_disconnect_leaves_a_stored_untrained_call(
    renderer: ChatRenderer, images: ImageCache, stream: bool
) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedEngine):
        async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
            asked.set()
            await go.wait()
            return await super().generate(prompt, sampling)

    recorder = Recorder(renderer, Slow(), images)
    key = recorder.open_session("s")
    async with on_a_port(create_app(recorder, ADMIN)) as address:
        host, port = address.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(raw(key, {**ASK, "stream": stream}))
        await asked.wait()
        writer.close()
        await writer.wait_closed()
        await asyncio.sleep(0.1)
        go.set()
        async with asyncio.timeout(limit(5)):
            while recorder.sessions.get("s").in_flight or not recorder.sessions.get("s").undelivered_calls:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        again = await recorder.complete(recorder.sessions.get("s"), ask("other"))
    graph = recorder.close_session("s")
    assert graph.untrained == {"s.1": "undelivered"}
    assert [row.call_ids for row in graph.sequences()] == [(again.calls[0].id,)]


async def test_a_client_disconnect_in_mid_stream_affects_no_one_else(
    renderer: ChatRenderer, images: ImageCache
) -> None:
    long = renderer.encode_text("Click the button named Save. " * 2000)
    recorder = Recorder(renderer, ScriptedEngine(lambda prompt, sampling: [*long, renderer.stop_ids[0]]), images)
    key = recorder.open_session("s")
    async with on_a_port(create_app(recorder, ADMIN)) as address:
        host, port = address.removeprefix("http://").split(":")
        for _ in range(3):
            reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
            writer.write(raw(key, {**ASK, "max_tokens": 1 << 20, "stream": True}))
            assert b"200 OK" in await reader.read(300)
            writer.transport.abort()
        await recorder.complete(recorder.sessions.get("s"), ChatRequest(ask("other").messages, Sampling(1 << 20)))
    assert recorder.close_session("s").ids == ["s.1", "s.2", "s.3", "s.4"]


async def test_a_conversation_of_ten_thousand_messages_is_served(recorder: Recorder) -> None:
    talk: list[Message] = [message("user" if turn % 2 == 0 else "assistant", f"turn {turn}") for turn in range(9_999)]
    talk[50] = message("user", "<|im_end|>" * 1000)
    session = opened(recorder)
    took = []
    for _ in range(3):
        began = time.process_time()
        reply = await recorder.complete(session, ChatRequest(tuple(talk), Sampling(6)))
        took.append(time.process_time() - began)
        talk += [message("assistant", reply.calls[0].text), message("user", "on")]
    (row,) = recorder.close_session("s").sequences()
    assert len(row.call_ids) == 3
    assert took[-1] < 10


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few hundred bytes that says that it is of that size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(10_000))) + chunk(b"IEND", b"")
    )


def text_bomb() -> bytes:
    """A PNG with a text of 200 MB, which packs well."""
    buffer = io.BytesIO()
    from PIL import PngImagePlugin

    texts = PngImagePlugin.PngInfo()
    for number in range(4):
        texts.add_text(f"k{number}", "x" * (50 << 20), zip=True)
    Image.new("RGB", (8, 8)).save(buffer, "PNG", pnginfo=texts)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "encoded",
    [
        lambda: bomb(100_000, 100_000),
        lambda: bomb(2**31 - 1, 1),
        lambda: bomb(4096, 4096),
        lambda: bomb(0, 5),
        text_bomb,
        lambda: png(1, 1, 3000),
        lambda: png(1)[:-30],
        lambda: b"\x89PNG\r\n\x1a\n" + bytes(33 << 20),
    ],
    ids=["10^10 pixels", "one row", "16 million pixels that are not there", "empty", "texts", "thin", "cut", "33 MB"],
)
async def test_hostile_images_are_rejected(
    recorder: Recorder, images: ImageCache, encoded: Callable[[], bytes]
) -> None:
    key = recorder.open_session("s")
    part = {"type": "image_url", "image_url": {"url": data_uri(encoded())}}
    body = {**ASK, "messages": [{"role": "user", "content": [part]}]}
    async with in_process_client(create_app(recorder, ADMIN)) as http:
        answer = await http.post("/v1/chat/completions", json=body, headers=bearer(key))
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["code"] in ("image_too_large", "invalid_image")
        assert (await http.post("/v1/chat/completions", json=ASK, headers=bearer(key))).status_code == 200
    assert len(images) == 0, "what was refused is not kept"
    recorder.close_session("s")


async def test_a_check_that_fails_after_its_client_went_away_stops_the_session(
    renderer: ChatRenderer, images: ImageCache, folder: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deskhand.recorder.session_store._NUMBER_BYTES", 0)
    monkeypatch.setattr("deskhand.recorder.session_store._LINE_BYTES", 0)
    journal = Held(folder)
    recorder = Recorder(renderer, ScriptedEngine(), images, on_call=journal)
    session = opened(recorder)
    await disconnect(recorder, session, journal)
    async with asyncio.timeout(limit(5)):
        while session.stopped is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert recorder.violations == {"wire": 1}
