"""Exported traces, read by verifiers' own classes, hold the recorded tokens, log-probs, advantages and rewards."""

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
from deskhand.models.load import load_processors
from deskhand.store.run import Run


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return record(tmp_path_factory.mktemp("recorded") / "run", groups=2)


def read(recorded: RecordedRun, folder: Path, form: Any) -> list[dict[str, Any]]:
    with Run.open(recorded.folder, read_only=True) as run:
        counts = export_recordings(run, folder, "verifiers", form, model=recorded.checkpoint, algorithm=ALGORITHM)
    assert not counts.left_out
    words = [sys.executable, str(Path(__file__).with_name("read_traces.py")), str(folder / "train" / "metadata.jsonl")]
    environment = {**os.environ, "PYTHONPATH": str(packages_of("verifiers")), "HOME": str(folder)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("form", ["rl", "sft"])
def test_verifiers_reads_back_what_was_recorded(recorded: RecordedRun, tmp_path: Path, form: Any) -> None:
    found = read(recorded, tmp_path / form, form)
    tokenizer = load_processors(recorded.checkpoint)[0]
    with Run.open(recorded.folder, read_only=True) as run:
        rows = rows_of(run, form)
    assert len(found) == len(rows) > 0
    for trace, row in zip(found, rows, strict=True):
        sequence = row.sequence
        assert (trace["ids"], trace["mask"]) == ([*sequence.token_ids], [*sequence.loss_mask])
        if form == "rl":
            assert trace["logprobs"] == pytest.approx([*sequence.logprobs])
            assert trace["advantages"] == [row.advantage if sampled else 0.0 for sampled in sequence.loss_mask]
        else:
            assert trace["advantages"] is None
        assert trace["images"] == [f"images/{span.sha256}.png" for span in sequence.spans]
        assert all((tmp_path / form / "train" / name).is_file() for name in trace["images"])
        assert (trace["reward"], trace["prompt"]) == (row.result.reward, row.result.instruction)
        replies = [row.result.graph.get(name).completion.token_ids for name in sequence.call_ids]
        assert trace["turns"] == len(replies)
        decoded = [tokenizer.decode(list(ids), skip_special_tokens=False) for ids in replies]
        assert trace["replies"] == [text.removesuffix("<|im_end|>") for text in decoded]
