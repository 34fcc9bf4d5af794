"""Exports of recordings hold exactly what the trainer trains, in each trainer's columns; nothing is lost silently."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import called
from PIL import Image
from recorded_run import ALGORITHM, RecordedRun, record, rows_of

from deskhand.errors import ConfigError, RecordError
from deskhand.integrations.areal.run_dataset import load_trajectories
from deskhand.integrations.areal.tensors import load_trajectory
from deskhand.integrations.recordings.export import export_recordings
from deskhand.integrations.recordings.formats import TextOf, messages_of
from deskhand.models.load import load_processors
from deskhand.recorder.renderer import ChatRenderer
from deskhand.store.run import Run


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return record(tmp_path_factory.mktemp("recorded") / "run")


def export(recorded: RecordedRun, folder: Path, peer: Any, form: Any) -> list[dict[str, Any]]:
    with Run.open(recorded.folder, read_only=True) as run:
        counts = export_recordings(run, folder, peer, form, model=recorded.checkpoint, algorithm=ALGORITHM)
    lines = (folder / "train" / "metadata.jsonl").read_text().splitlines()
    assert counts.rows == len(lines) > 0
    return [json.loads(line) for line in lines]


def test_rows_hold_every_sampled_token_once_with_its_log_prob_and_advantage(recorded, tmp_path):
    lines = export(recorded, tmp_path / "out", "datasets", "rl")
    with Run.open(recorded.folder, read_only=True) as run:
        rows = rows_of(run)
        sampled = sum(len(call.completion.token_ids) for row in {r.result.episode_id: r for r in rows}.values()
                      for call in row.result.graph.calls)  # fmt: skip
    assert sum(sum(line["loss_mask"]) for line in lines) == sampled
    for line, row in zip(lines, rows, strict=True):
        assert (line["input_ids"], line["logprobs"]) == ([*row.sequence.token_ids], [*row.sequence.logprobs])
        assert (line["advantage"], line["reward"]) == (row.advantage, row.result.reward)
        names = [Path(name).stem for name in line["images_file_names"]]
        assert names == [span.sha256 for span in row.sequence.spans]
    for path in (tmp_path / "out" / "train" / "images").iterdir():
        assert hashlib.sha256(Image.open(path).tobytes()).hexdigest() == path.stem
    assert any(line["advantage"] for line in lines)


def test_trls_and_verls_columns_are_the_same_tokens(recorded, tmp_path):
    plain = export(recorded, tmp_path / "plain", "datasets", "rl")
    for peer, names in (
        ("trl", ("prompt_ids", "completion_ids", "env_mask", "logprobs")),
        ("verl", ("prompts", "responses", "response_mask", "rollout_log_probs")),
    ):
        lines = {tuple(line[names[0]] + line[names[1]]): line for line in export(recorded, tmp_path / peer, peer, "rl")}
        kept = [line for line in plain if tuple(line["input_ids"]) in lines]
        assert len(kept) == len(plain) or (peer == "verl" and kept), "texts with other tokens are left out"
        for line in kept:
            found = lines[tuple(line["input_ids"])]
            prompt = len(found[names[0]])
            assert [0] * prompt + found[names[2]] == line["loss_mask"]
            assert [0.0] * prompt + found[names[3]] == line["logprobs"]
            assert found[names[2]][0] == 1


def test_verls_messages_render_to_the_recorded_prompt(recorded, tmp_path):
    lines = export(recorded, tmp_path / "out", "verl", "rl")
    tokenizer = load_processors(recorded.checkpoint)[0]
    for line in lines:
        assert all(Path(image["image"]).is_file() for image in line["images"])
        text = tokenizer.apply_chat_template(line["prompt"], tokenize=False, add_generation_prompt=True)
        text = text.replace("<image>", "<|vision_start|><|image_pad|><|vision_end|>")
        ids = list[int]()
        for token_id in line["prompts"]:
            if token_id != tokenizer.convert_tokens_to_ids("<|image_pad|>") or ids[-1] != token_id:
                ids.append(token_id)
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids


def test_supervised_forms_hold_successful_episodes_alone(recorded, tmp_path):
    for peer in ("datasets", "areal"):
        lines = export(recorded, tmp_path / peer, peer, "sft")
        assert {line["score"] for line in lines} == {1.0}
    lines = export(recorded, tmp_path / "trl", "trl", "sft")
    assert all(line["prompt"].count("<|image_pad|>") == len(line["images_file_names"]) for line in lines)
    ended = [line for line in lines if line["completion"].endswith("<|im_end|>")]
    assert len(export(recorded, tmp_path / "verl", "verl", "sft")) == len(ended), "verl adds an end to every reply"


def test_areals_trajectories_are_read_back_as_they_are_trained(recorded, tmp_path):
    with Run.open(recorded.folder, read_only=True) as run:
        wanted = list(load_trajectories(run, recorded.checkpoint))
        export_recordings(run, tmp_path / "out", "areal", "rl", model=recorded.checkpoint, algorithm=ALGORITHM)
    files = sorted((tmp_path / "out" / "train").glob("*.safetensors"))
    assert len(files) == len(wanted) > 0
    for path, tensors in zip(files, wanted, strict=True):
        found = load_trajectory(path)
        images, wanted_images = found.pop("multi_modal_input"), tensors.pop("multi_modal_input")
        assert set(found) == set(tensors)
        assert all(torch.equal(found[name], tensors[name]) for name in tensors)
        for row, wanted_row in zip(images, wanted_images, strict=True):
            assert all(torch.equal(row[name], wanted_row[name]) for name in wanted_row)


def test_a_text_that_is_tokenized_otherwise_is_refused(recorded, tmp_path):
    tokenizer = load_processors(recorded.checkpoint)[0]
    texts = TextOf(tokenizer, ChatRenderer(tokenizer).image_id, tmp_path)
    ids = tuple(tokenizer("done")["input_ids"])
    apart = tuple(token for letter in "done" for token in tokenizer(letter)["input_ids"])
    assert texts.exact(ids) == "done"
    assert apart != ids
    with pytest.raises(RecordError, match="retokenized"):
        texts.exact(apart)
    with pytest.raises(RecordError, match="messages"):
        messages_of(texts, ids, ())


def test_a_folder_with_files_and_a_run_without_rows_are_refused(recorded, tmp_path):
    with Run.create(tmp_path / "empty", {}) as run:
        with pytest.raises(ConfigError, match="nothing to export, sft needs a successful episode"):
            export_recordings(run, tmp_path / "out", "trl", "sft", model=recorded.checkpoint, algorithm=ALGORITHM)
        assert not (tmp_path / "out").exists()
        with pytest.raises(ConfigError, match="not empty"):
            export_recordings(run, tmp_path, "trl", "sft", model=recorded.checkpoint, algorithm=ALGORITHM)


def test_the_command_refuses_options_of_other_exports(recorded, tmp_path, monkeypatch, capsys):
    words = ["export", str(recorded.folder), "--out", str(tmp_path / "out"), "--format", "datasets"]
    code, _, err = called(monkeypatch, capsys, *words, "--episodes")
    assert code == 2
    assert "--format: writes a dataset; remove" in err
