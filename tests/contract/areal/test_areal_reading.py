"""The rooms that AReaL imports read a conversation alike on its transformers and on ours: the same ids, the same
pixels."""

from __future__ import annotations

import json

import transformers
from reading_probe import reading


def test_ids_and_pixels_of_one_png_are_the_same_on_both_versions_of_transformers(found):
    said = found["reading"].result()
    checkpoints, pictures = said["checkpoints"], said["pictures"]
    assert said["transformers"] != transformers.__version__
    ours = {path.name: reading(path, sorted(pictures.glob("*.png"))) for path in sorted(checkpoints.iterdir())}
    assert said["found"] == json.loads(json.dumps(ours))
    assert all(len(one["spans"]) == 3 for one in ours.values())
