"""Many sessions at once lose nothing, and an episode's work grows with its turns, not with their square."""

from __future__ import annotations

from typing import Any

import pytest
from recording import ADMIN, ScriptedEngine, bearer, image_part, png

from benchmarks import sessions
from benchmarks.thresholds import Thresholds
from deskhand.recorder import images as images_module
from deskhand.recorder.graph import CallGraph
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.server import create_app, in_process_client
from deskhand.recorder.session_store import SessionStore


def test_a_soak_loses_no_call_and_its_memory_stays() -> None:
    thresholds = Thresholds()
    sessions.soak(8, thresholds)
    assert thresholds.met


def test_a_soak_notices_a_call_that_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    written = SessionStore.finish

    def forgetful(folder: SessionStore, session_id: str, graph: Any, rewards: Any) -> Any:
        return written(folder, session_id, CallGraph(graph.calls[:-1]), rewards)

    monkeypatch.setattr(SessionStore, "finish", forgetful)
    monkeypatch.setattr(sessions, "WAVES", 1)
    thresholds = Thresholds()
    sessions.soak(2, thresholds)
    assert "wave 1" in thresholds.missed


async def work(
    renderer: ChatRenderer, processor: Any, turns: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, int, int]:
    """(images decoded, images preprocessed, characters tokenized) in an episode that keeps all its screenshots."""
    counts = [0, 0, 0]
    decode, prepare, encode = images_module.decode_rgb, ImageCache._preprocess, ChatRenderer.encode_text

    def counted(at: int, function: Any, size: Any = lambda *_: 1) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            counts[at] += size(*arguments)
            return function(*arguments, **options)

        return run

    monkeypatch.setattr(images_module, "decode_rgb", counted(0, decode))
    monkeypatch.setattr(ImageCache, "_preprocess", counted(1, prepare))
    monkeypatch.setattr(ChatRenderer, "encode_text", counted(2, encode, lambda renderer, text: len(text)))
    held = ImageCache(processor).add(png(0)).pixel_values.nbytes
    counts[:] = [0, 0, 0]
    images = ImageCache(processor, prepared_bytes=3 * held)
    recorder = Recorder(renderer, ScriptedEngine(), images)
    headers, talk = bearer(recorder.open_session("s")), list[dict[str, Any]]()
    async with in_process_client(create_app(recorder, ADMIN)) as http:
        for turn in range(turns):
            talk.append({"role": "user", "content": [image_part(turn), {"type": "text", "text": "go on"}]})
            answer = await http.post("/v1/chat/completions", json={"messages": talk, "max_tokens": 9}, headers=headers)
            talk.append(answer.json()["choices"][0]["message"])
    assert len(recorder.close_session("s").sequences()) == 1
    monkeypatch.undo()
    return counts[0], counts[1], counts[2]


async def test_work_is_linear_in_turns_with_room_for_three_images_only(
    renderer: ChatRenderer, image_processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {turns: await work(renderer, image_processor, turns, monkeypatch) for turns in (5, 10, 20, 40)}
    for turns, (decoded, prepared, characters) in found.items():
        assert (decoded, prepared) == (turns, turns)
        assert abs(characters / turns - found[5][2] / 5) <= 4
