"""verl's own datasets read the exported recordings, and their token ids are the recorded ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from environments import packages_of
from recorded_run import ALGORITHM, RecordedRun, record, rows_of

from deskhand.integrations.recordings.export import export_recordings
from deskhand.integrations.recordings.formats import replies
from deskhand.models.load import load_processors
from deskhand.store.run import Run


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return record(tmp_path_factory.mktemp("recorded") / "run", groups=2)


def read(recorded: RecordedRun, folder: Path, form: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(the exported lines, what verl's dataset has of them)."""
    with Run.open(recorded.folder, read_only=True) as run:
        export_recordings(run, folder, "verl", form, model=recorded.checkpoint, algorithm=ALGORITHM)
    file = folder / "train" / "metadata.jsonl"
    words = [sys.executable, str(Path(__file__).with_name("read_with_verl.py")), form, str(file), recorded.checkpoint]
    environment = {
        **os.environ, "PYTHONPATH": str(packages_of("verl")), "OMP_NUM_THREADS": "1", "HOME": str(folder),
        "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in file.read_text().splitlines()], json.loads(done.stdout.splitlines()[-1])


def test_verls_rlhf_dataset_gives_the_recorded_prompts(recorded: RecordedRun, tmp_path: Path) -> None:
    lines, found = read(recorded, tmp_path / "rl", "rl")
    assert len(found) == len(lines) > 0
    for row, line in zip(found, lines, strict=True):
        assert row["ids"] == row["prompts"] == line["prompts"]
        assert len(row["sizes"]) == len(line["images"]) > 0
        assert (row["data_source"], row["index"]) == ("deskhand", line["extra_info"]["seed"])
        assert (row["responses"], row["uid"]) == (line["responses"], line["uid"])


def test_verls_sft_dataset_trains_the_recorded_replies(recorded: RecordedRun, tmp_path: Path) -> None:
    lines, found = read(recorded, tmp_path / "sft", "sft")
    tokenizer = load_processors(recorded.checkpoint)[0]
    newline, end = tokenizer("\n", add_special_tokens=False)["input_ids"], tokenizer.convert_tokens_to_ids("<|im_end|>")
    with Run.open(recorded.folder, read_only=True) as run:
        asked = [(prompt_ids, reply_ids) for row in rows_of(run, "sft") for prompt_ids, _, reply_ids in replies(row)]
    wanted = {(*prompt_ids, *reply_ids, *newline): len(prompt_ids) for prompt_ids, reply_ids in asked}
    assert len(found) == len(lines) > 0
    assert len(lines) <= sum(reply_ids[-1] == end for _, reply_ids in asked), "verl would add the end of a cut reply"
    for row in found:
        prompt = wanted[tuple(row["ids"])]
        assert row["mask"] == [0] * prompt + [1] * (len(row["ids"]) - prompt), "verl trains the end and its newline"
