"""Sessions on disk are read back equal, also after kills and torn lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import ADMIN, ScriptedEngine, bearer, image_part, png
from test_graph import graphs

from deskhand.errors import InfrastructureError, RecordError
from deskhand.recorder.graph import CallGraph
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.rewards import Rewards
from deskhand.recorder.server import create_app, in_process_client
from deskhand.recorder.session_store import SessionStore

ROOT = Path(__file__).parents[2]


@settings(max_examples=40, deadline=None)
@given(graphs(), st.data())
def test_a_session_is_read_back_equal_from_its_journal_and_from_its_files(
    tmp_path_factory: pytest.TempPathFactory, graph: CallGraph, data: st.DataObject
) -> None:
    folder = SessionStore(tmp_path_factory.mktemp("record"), durable=False)
    name = data.draw(st.text(st.sampled_from("ab/. ~\u00e9"), min_size=1, max_size=12))
    rewards = Rewards()
    for call in graph.calls:
        folder.write_call(name, call)
        if data.draw(st.booleans()):
            rewards.set_call(graph.ids, data.draw(st.floats(-1, 1)), call.id)
            folder.write_reward(name, {"call_id": call.id, "reward": rewards.by_call[call.id]})
    assert folder.read(name) == (graph, rewards)
    assert list(folder.sessions()) == [(name, False)]
    if graph.calls:
        graph.untrained[graph.calls[0].id] = "superseded"
    written = folder.finish(name, graph, rewards)
    assert sorted(path.name for path in written.iterdir()) == ["calls.safetensors", "session.json"]
    assert folder.read(name) == (graph, rewards)
    assert list(SessionStore(folder.folder).sessions()) == [(name, True)]
    assert all(path.is_relative_to(folder.folder / "sessions") for path in folder.folder.rglob("session.json"))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_torn_journal_gives_the_calls_before_the_tear(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = SessionStore(tmp_path_factory.mktemp("record"), durable=False)
    graph = data.draw(graphs())
    for call in graph.calls:
        folder.write_call("s", call)
    path = folder.folder / "sessions" / "s" / "calls.jsonl"
    raw = path.read_bytes()
    cut = data.draw(st.integers(0, len(raw)))
    path.write_bytes(raw[:cut])
    whole = max(0, raw[:cut].count(b"\n") - 1)
    assert folder.read("s")[0].calls == graph.calls[:whole]


def test_a_killed_recorder_loses_no_call_whose_reply_was_sent(tmp_path: Path) -> None:
    for round_number, lines in enumerate((4, 23)):
        folder = tmp_path / f"{round_number}"
        child = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "support" / "recorder_until_killed.py"), str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'support'}", "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
        )
        assert child.stdout is not None
        heard = [child.stdout.readline() for _ in range(lines)]
        child.kill()
        heard += child.stdout.read().splitlines()
        child.wait()
        left = [json.loads(line) for line in heard if line.strip().endswith("]")]
        assert len(left) >= lines
        recorded = SessionStore(folder)
        for name, call_id, reward in left:
            graph, rewards = recorded.read(name)
            assert call_id in graph
            assert reward is None or rewards.by_call[call_id] == reward
        for name, ended in recorded.sessions():
            assert not ended
            for span in (span for call in recorded.read(name)[0].calls for span in call.spans):
                assert recorded.image(span.sha256)


async def test_images_are_stored_as_received_and_the_end_of_a_session_writes_its_files(
    renderer: ChatRenderer, image_processor: Any, tmp_path: Path
) -> None:
    folder = SessionStore(tmp_path)
    images = ImageCache(image_processor, fetch=folder.image, on_new=folder.save_image)
    recorder = Recorder(renderer, ScriptedEngine(), images, on_call=folder.write_call, on_reward=folder.write_reward)
    received = png(3, optimize=True)
    async with in_process_client(create_app(recorder, ADMIN, folder=folder)) as http:
        key = bearer(recorder.open_session("a/b"))
        body = {"messages": [{"role": "user", "content": [image_part(received)]}]}
        answer = await http.post("/v1/chat/completions", json=body, headers=key)
        await http.post("/sessions/a/b/rewards", json={"reward": 0.5, "whole": True}, headers=key)
        ended = await http.post("/sessions/a/b/end", json={"turn_discount": 1.0}, headers=bearer(ADMIN))
    graph, rewards = folder.read("a/b")
    assert graph == CallGraph.from_dict(ended.json()["graph"])
    assert ended.json()["returns"] == {answer.json()["id"]: 0.5}
    assert rewards.episode == 0.5
    (span,) = graph.calls[0].spans
    assert folder.image(span.sha256) == received


def test_two_sessions_of_one_name_never_share_a_folder(tmp_path: Path) -> None:
    folder = SessionStore(tmp_path)
    folder.finish("s", CallGraph(), Rewards())
    with pytest.raises(InfrastructureError, match="another session"):
        SessionStore(tmp_path).write_reward("s", {"call_id": None, "reward": 1.0})


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    folder = SessionStore(tmp_path)
    with pytest.raises(RecordError, match="no such session"):
        folder.read("other")
    path = folder.finish("s", CallGraph(), Rewards())
    (path / "session.json").write_text('{"format": 1}')
    with pytest.raises(RecordError, match="sessions/s"):
        folder.read("s")
    with pytest.raises(KeyError):
        folder.image("../../../etc/passwd")
