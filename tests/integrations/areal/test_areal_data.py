"""Rows of data for AReaL: those of our families, those that people bring along, and those of episodes that were
played."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import fake_desktop
import numpy as np
import pytest
from task_files import SHARED

from deskhand.errors import ConfigError, RecordError
from deskhand.integrations.areal.dataset import make_rows, read_openadapt_rows, read_rows, task_from_row
from deskhand.integrations.areal.run_dataset import load_trajectories
from deskhand.models.load import load_processors
from deskhand.recorder.graph import Call, CallGraph
from deskhand.recorder.images import ImageCache
from deskhand.rollout.episode import errored_result
from deskhand.rollout.episode_record import to_record
from deskhand.rollout.groups import EpisodeRequest
from deskhand.rollout.run_writer import new_row, row_of
from deskhand.store.run import TRAIN, GroupRow, Run
from deskhand.tasks.outcome import Scored
from deskhand.tasks.task import SPLIT_SIZE
from deskhand.types import Completion, ImageSpan


def test_families_take_turns_with_seeds_of_their_own_split():
    made = make_rows(["terminal_run", "calculator_number"], 4, "test", first=3)
    assert [row["family"] for row in made] == ["terminal_run", "calculator_number"] * 2
    assert [row["seed"] - SPLIT_SIZE for row in made] == [3, 3, 4, 4]
    assert task_from_row(made[1]).family == "calculator_number"
    assert task_from_row(made[1]).id == task_from_row(made[1]).id


@pytest.mark.parametrize(
    ("call", "word"), [(lambda: make_rows([], 1), "terminal_run"), (lambda: task_from_row({"seed": 1}), "family")]
)
def test_a_row_that_names_no_task_is_refused_with_what_there_is(call, word):
    with pytest.raises(ConfigError, match=word):
        call()


def test_rows_of_openadapt_are_read_from_json_and_json_lines(tmp_path):
    brought = [{"task_id": "a", "instruction": "Open it", "max_steps": 5}, {"task_id": "b", "server_url": "http://h:1"}]
    (tmp_path / "rows.json").write_text(json.dumps(brought))
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, brought)) + "\n\n")
    assert read_openadapt_rows(tmp_path / "rows.json") == read_openadapt_rows(tmp_path / "rows.jsonl") == brought


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"instruction": "x"}', "row 1: missing task_id"),
        ('{"task_id": "a"}\n{"task_id": "b", "steps": 3}', "row 2: unknown keys: steps"),
        ('{"task_id": "a", "max_steps": 0}', "max_steps must be a positive integer, got 0"),
        ("[1]", "row 1: expected an object, got int"),
        ("{", "not valid JSON"),
    ],
)
def test_a_wrong_row_is_named(tmp_path, text, word):
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=word) as caught:
        read_openadapt_rows(tmp_path / "rows.jsonl")
    assert "rows.jsonl" in str(caught.value)
    with pytest.raises(ConfigError, match="not valid JSON"):
        read_rows(tmp_path / "nothing.json")


def test_a_row_of_openadapt_that_names_a_task_file_is_that_task():
    file = SHARED / "osworld" / "chrome" / "bb5e4c0d-f964-439c-97b6-bdb9747de3f4.json"
    if not file.is_file():
        pytest.skip(f"{file} is not there; it is a file of OSWorld's repository")
    row = {"task_id": "a", "max_steps": 4, "server_url": "http://h:1", "instruction": "Do it"}
    task = task_from_row(row | {"task_config_path": str(file)})
    assert (task.id, task.max_steps, task.instruction) == (task_from_row({"osworld": str(file)}).id, 4, "Do it")


def episode(run: Run, member: int, reward: float | None) -> None:
    """An episode of one call on one screen, stored."""
    tokenizer, processor = load_processors("tiny")
    image_id = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    screen = np.full((64, 64, 3), member, np.uint8)
    name = hashlib.sha256(screen.tobytes()).hexdigest()
    run.frames.put(name, screen)
    shown = ImageCache(processor, fetch=run.frames.png)[name]
    prompt = (1, *[image_id] * shown.tokens, 2)
    spans = (ImageSpan(1, shown.tokens, name),)
    graph = CallGraph(
        [Call(f"c{member}", None, prompt, spans, Completion((5, 6), (-0.5, -0.25), (3, 3), "stop", prompt))]
    )
    ticket = EpisodeRequest(f"e{member}", fake_desktop.square_task(1), "g", member)
    result = replace(errored_result(ticket, "infrastructure", "lost"), graph=graph)
    if reward is not None:
        result = replace(result, outcome=Scored(reward), reward=reward)
    run.start_episode(new_row(ticket, TRAIN))
    run.finish_episode(row_of(result, TRAIN, "queued" if reward is not None else "errored"), *to_record(result))


def test_episodes_of_a_run_are_the_rows_that_a_worker_would_have_handed_over(tmp_path):
    with Run.create(tmp_path / "run", {}) as run:
        run.open_group(GroupRow("g", 0, "square", 1, "queued"))
        for member, reward in enumerate([1.0, None, 0.0]):
            episode(run, member, reward)
        (made,) = load_trajectories(run, "tiny")
        assert made["rewards"].tolist() == pytest.approx([1.0, -1.0], abs=1e-3)
        assert made["input_ids"].shape == (2, 8)
        assert made["loss_mask"].sum(-1).tolist() == [2, 2]
        assert made["versions"][0].tolist()[-2:] == [3, 3]
        assert [len(one["image_grid_thw"]) for one in made["multi_modal_input"]] == [1, 1]
        with pytest.raises(RecordError, match="too_long"):
            next(load_trajectories(run, "tiny", max_tokens=4))
