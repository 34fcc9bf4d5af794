"""Exported recordings, read by `datasets` and TRL's own collator: a plain gradient from the file is the trainer's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from environments import packages_of
from recorded_run import ALGORITHM, RecordedRun, record, rows_of, supervised_gradient, trainer_gradient
from safetensors.torch import load_file

from deskhand.integrations.recordings.export import export_recordings
from deskhand.integrations.recordings.formats import replies
from deskhand.models.load import load_processors
from deskhand.recorder.graph import Sequence
from deskhand.store.run import Run

MIN_COSINE = 0.9999


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return record(tmp_path_factory.mktemp("recorded") / "run")


def export_and_read(recorded: RecordedRun, folder: Path, peer: Any, form: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the peer found in the export, and the gradients that it computed."""
    with Run.open(recorded.folder, read_only=True) as run:
        export_recordings(run, folder, peer, form, model=recorded.checkpoint, algorithm=ALGORITHM)
    script, out = Path(__file__).with_name("read_recordings.py"), folder.with_suffix(".safetensors")
    words = [sys.executable, str(script), f"{peer}_{form}", str(folder), recorded.checkpoint, str(out)]
    environment = {
        **os.environ, "PYTHONPATH": str(packages_of("trl")), "OMP_NUM_THREADS": "1",
        "HF_HOME": str(folder.parent / "hf"), "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
    }  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), load_file(out)


def cosine(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    names = sorted(ours)
    assert set(names) <= set(theirs), set(names) - set(theirs)
    a, b = (torch.cat([grads[name].double().flatten() for name in names]) for grads in (ours, theirs))
    assert a.norm() > 0
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


@pytest.mark.parametrize("peer", ["datasets", "trl"])
def test_the_policy_gradient_from_the_exported_rows_is_the_trainers(recorded, tmp_path, peer):
    found, theirs = export_and_read(recorded, tmp_path / peer, peer, "rl")
    with Run.open(recorded.folder, read_only=True) as run:
        rows = rows_of(run)
    assert found["rows"] == len(rows)
    value = cosine(trainer_gradient(recorded), theirs)
    print(f"\n{peer} rl: {found['rows']} rows, cosine {value:.8f}")
    assert value > MIN_COSINE


def test_the_supervised_gradient_from_the_exported_rows_is_the_trainers(recorded, tmp_path):
    found, theirs = export_and_read(recorded, tmp_path / "sft", "datasets", "sft")
    with Run.open(recorded.folder, read_only=True) as run:
        sequences = [row.sequence for row in rows_of(run, "sft")]
    assert found["rows"] == len(sequences) > 0
    value = cosine(supervised_gradient(recorded, sequences), theirs)
    print(f"\ndatasets sft: {found['rows']} rows, cosine {value:.8f}")
    assert value > MIN_COSINE


def test_the_supervised_gradient_of_trls_collator_is_the_trainers(recorded, tmp_path):
    """Replies whose text has other ids are left out, and counted."""
    found, theirs = export_and_read(recorded, tmp_path / "sft", "trl", "sft")
    lines = (tmp_path / "sft" / "train" / "metadata.jsonl").read_text().splitlines()
    with Run.open(recorded.folder, read_only=True) as run:
        rows = rows_of(run, "sft")
        sequences = exported_replies(rows, [json.loads(line) for line in lines], recorded.checkpoint)
    assert found["rows"] == len(sequences) > 0
    value = cosine(supervised_gradient(recorded, sequences), theirs)
    print(f"\ntrl sft: {found['rows']} of {sum(len(list(replies(row))) for row in rows)} replies, cosine {value:.8f}")
    assert value > MIN_COSINE


def exported_replies(rows: list[Any], lines: list[dict[str, Any]], checkpoint: str) -> list[Sequence]:
    """The recorded replies of exported lines, as sequences of their own, found by episode and text."""
    tokenizer, wanted = load_processors(checkpoint)[0], [(line["episode_id"], line["completion"]) for line in lines]
    found = list[Sequence]()
    for row in rows:
        for prompt_ids, spans, reply_ids in replies(row):
            if (row.result.episode_id, tokenizer.decode(list(reply_ids))) in wanted:
                mask = (*[False] * len(prompt_ids), *[True] * len(reply_ids))
                ids, zeros = (*prompt_ids, *reply_ids), (0.0,) * len(mask)
                found.append(Sequence(ids, mask, zeros, tuple(0 if one else -1 for one in mask), spans, ()))
    return found
