"""Weights whose picture features are all zero do not see, and those in the box do."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from bundled_weights import SOURCE, needs_weights
from safetensors.torch import load_file, save_file

from benchmarks.training import episodes
from deskhand.config.loop import HealthConfig
from deskhand.models.load import TINY_FOLDER, load
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.policy import Policy
from deskhand.trainer.vision_probe import image_sensitivity

pytestmark = needs_weights


def blinded(folder: Path) -> Path:
    """The policy in the box without its sight: nothing of a picture leaves its vision tower."""
    shutil.copytree(TINY_FOLDER, folder)
    weights = load_file(folder / "model.safetensors")
    for name, value in weights.items():
        if "merger" in name:
            value.zero_()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_blinded_weights_do_not_see_and_those_in_the_box_do(tmp_path):
    torch.set_num_threads(1)
    seen = {}
    for source in (SOURCE, str(blinded(tmp_path / "blind"))):
        model = load(source).model
        graphs, images = episodes(16, 1, model)
        samples = [TrainingSample(row, 1.0, str(n)) for n, graph in enumerate(graphs) for row in graph.sequences()]
        seen[source] = image_sensitivity(Policy(model), samples, images)
    assert seen[SOURCE] > HealthConfig().min_image_sensitivity
    assert seen[str(tmp_path / "blind")] == 0
