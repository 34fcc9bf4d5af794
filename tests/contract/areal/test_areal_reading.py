"""The rooms that AReaL imports read a conversation alike on its transformers and on ours: the same ids, the same pixels."""

from __future__ import annotations

import json
import shutil

import areal_models
import recording
import transformers
from reading_probe import reading

from deskhand.models.load import TINY_FOLDER


def test_ids_and_pixels_of_one_png_are_the_same_on_both_versions_of_transformers(probe, tmp_path):
    checkpoints, pictures, out = tmp_path / "checkpoints", tmp_path / "pictures", tmp_path / "out"
    for folder in (checkpoints, pictures, out):
        folder.mkdir()
    for family in ("qwen3_vl", "qwen2_5_vl"):
        areal_models.save_checkpoint(checkpoints / family, family)
    shutil.copytree(TINY_FOLDER, checkpoints / "tiny")
    for number, size in enumerate([(320, 256), (333, 211), (64, 48)]):
        (pictures / f"{number}.png").write_bytes(recording.png(number, *size))
    said = probe("reading_probe.py", out, str(checkpoints), str(pictures))
    assert said["transformers"] != transformers.__version__
    ours = {path.name: reading(path, sorted(pictures.glob("*.png"))) for path in sorted(checkpoints.iterdir())}
    assert said["found"] == json.loads(json.dumps(ours))
    assert all(len(one["spans"]) == 3 for one in ours.values())
