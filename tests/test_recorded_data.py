"""Recordings of `deskhand record` become rows in which each reply is trained once and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import recorded_folder

from deskhand.errors import ConfigError
from deskhand.models.load import load_processors
from deskhand.recipes import recorded_data
from deskhand.recorder.images import ImageCache
from deskhand.recorder.renderer import ChatRenderer
from deskhand.store.frames import Frames


@pytest.fixture(scope="module")
def tiny() -> tuple[ChatRenderer, Any]:
    tokenizer, processor = load_processors("tiny")
    return ChatRenderer(tokenizer), processor


def read(tiny: tuple[ChatRenderer, Any], folder: Path, frames: Frames) -> recorded_data.RecordedDataset:
    return recorded_data.read(folder, tiny[0], ImageCache(tiny[1], fetch=frames.png), frames)


def test_replies_are_targets_and_their_images_are_copied(tiny, tmp_path: Path) -> None:
    folder, frames = tmp_path / "recorded", Frames(tmp_path / "frames")
    recorded_folder.talk(folder, "plain")
    recorded_folder.talk(folder, "good", reward=1.0)
    recorded_folder.talk(folder, "poor", reward=0.5)
    assert recorded_data.is_recording(folder)
    found = read(tiny, folder, frames)
    assert (found.sessions, found.num_low_reward, found.skipped) == (3, 1, {})
    assert sorted(found.graphs) == ["good.0", "plain.0"]
    graph = found.graphs["plain.0"]
    (row,) = graph.sequences()
    assert [call.text for call in graph.calls] == list(recorded_folder.REPLIES)
    assert sum(row.loss_mask) == sum(len(call.completion.token_ids) for call in graph.calls)
    ends = [call.completion.token_ids[-1] for call in graph.calls]
    assert ends == [tiny[0].end_id] * 2, "the end of a reply is learned, too"
    learned = tuple(token for token, sampled in zip(row.token_ids, row.loss_mask, strict=True) if sampled)
    assert tiny[0].text_of(learned[: learned.index(ends[0])]) == recorded_folder.REPLIES[0]
    assert len(row.spans) == 2
    assert all(frames.path(span.sha256).exists() for span in row.spans)


def test_the_tools_of_every_api_are_offered_alike() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    chat = {"type": "function", "function": {"name": "click", "description": "d", "parameters": schema}}
    responses = {"type": "function", "name": "click", "description": "d", "parameters": schema}
    messages = {"name": "click", "description": "d", "input_schema": schema}
    assert (
        recorded_data._chat_tools([chat])
        == recorded_data._chat_tools([responses])
        == recorded_data._chat_tools([messages])
        == (chat,)
    )


def test_unsupported_tools_are_skipped_and_counted(tiny, tmp_path: Path) -> None:
    recorded_folder.talk(tmp_path / "recorded", "plain")
    recorded_folder.talk(tmp_path / "recorded", "tools", tools=[{"type": "computer_use", "display_width": 1}])
    found = read(tiny, tmp_path / "recorded", Frames(tmp_path / "frames"))
    assert sorted(found.graphs) == ["plain.0"]
    assert sum(found.skipped.values()) == 2
    assert "a tool's name must be" in next(iter(found.skipped))


def test_a_missing_image_skips_only_its_conversation(tiny, tmp_path: Path) -> None:
    folder = tmp_path / "recorded"
    recorded_folder.talk(folder, "whole")
    before = set((folder / "images").glob("*/*"))
    recorded_folder.talk(folder, "torn", picture=10)
    min(set((folder / "images").glob("*/*")) - before).unlink()
    found = read(tiny, folder, Frames(tmp_path / "frames"))
    assert sorted(found.graphs) == ["whole.0"]
    assert found.skipped == {"missing or damaged image": 2}


def test_a_recording_without_usable_replies_is_a_config_error(tiny, tmp_path: Path) -> None:
    recorded_folder.talk(tmp_path / "recorded", "poor", reward=0.0)
    with pytest.raises(ConfigError, match=r"no usable replies in 1 sessions \(1 with a reward below 1\)"):
        read(tiny, tmp_path / "recorded", Frames(tmp_path / "frames"))
    assert not recorded_data.is_recording(tmp_path)
