"""Screens reach the recorder of this process by name, and what is recorded is the same as for data URIs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_desktop
import numpy as np
import pytest

from deskhand.actions.formats import deskhand_json
from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.desktop.base import Frame
from deskhand.engines.scripted import ScriptedEngine
from deskhand.recorder import images as images_module
from deskhand.recorder.images import IMAGE, ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.server import create_app, in_process_client
from deskhand.rollout.groups import EpisodeRequest
from deskhand.rollout.runner import RecordedRunner
from deskhand.store.frames import Frames

ADMIN = "the-admin-key-of-these-tests"


async def oracle(task, desktop):
    async for ops in task.oracle(desktop):
        yield deskhand_json.emit(ops)


def build_runner(tokenizer: Any, image_processor: Any, folder: Path) -> RecordedRunner:
    renderer = ChatRenderer(tokenizer)
    engine = ScriptedEngine(lambda text: tokenizer.encode(text, add_special_tokens=False), renderer.stop_ids[0])
    frames = Frames(folder)
    recorder = Recorder(renderer, engine, ImageCache(image_processor, fetch=frames.pixels))
    pool = fake_desktop.PaintedPool(2)
    return RecordedRunner(pool, recorder, DesktopAgent(), frames, script=oracle, playing=engine.playing)


async def play(runner: RecordedRunner, seed: int) -> Any:
    return await runner.run(EpisodeRequest(f"e{seed}", fake_desktop.square_task(seed), "g", 0))


def recorded(result: Any) -> list[Any]:
    images = [(call.prompt_ids, call.spans, call.completion, call.text) for call in result.graph.calls]
    return [images, result.graph.sequences(), [step.frame_sha256 for step in result.transcript.steps]]


async def test_the_same_is_recorded_for_names_and_data_uris(tokenizer, image_processor, tmp_path, monkeypatch) -> None:
    sent, named = (build_runner(tokenizer, image_processor, tmp_path / name) for name in ("sent", "named"))
    assert sent.settings is not None
    sent.settings = replace(sent.settings, image_url=None)
    expected = [await play(sent, seed) for seed in range(4)]
    monkeypatch.setattr(Frame, "png", lambda frame: pytest.fail("encoded"))
    monkeypatch.setattr(images_module, "decode_rgb", lambda *_, **__: pytest.fail("decoded"))
    found = [await play(named, seed) for seed in range(4)]
    assert [recorded(one) for one in found] == [recorded(one) for one in expected]
    assert [one.reward for one in found] == [one.reward for one in expected] == [1.0] * 4
    assert named.frames is not None
    assert sent.frames is not None
    assert list(named.frames) == list(sent.frames)
    for name in named.frames:
        assert np.array_equal(named.frames.rgb(name), sent.frames.rgb(name))
        pixels = [np.asarray(runner.recorder.images[name].pixel_values) for runner in (named, sent)]
        assert np.array_equal(*pixels)
    await named.close()
    await sent.close()


async def test_other_clients_cannot_name_an_image(tokenizer, image_processor, tmp_path) -> None:
    runner = build_runner(tokenizer, image_processor, tmp_path)
    result = await play(runner, 1)
    name = result.transcript.steps[0].frame_sha256
    key = runner.recorder.open_session("another")
    image = {"type": "image_url", "image_url": {"url": IMAGE + name}}
    body = {"messages": [{"role": "user", "content": [image]}], "max_tokens": 4}
    async with in_process_client(create_app(runner.recorder, ADMIN)) as http:
        answer = await http.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "remote_image")
    await runner.close()
