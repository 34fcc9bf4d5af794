"""Weights with vision features of zero have no image sensitivity; the bundled ones have."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import torch
from bundled_weights import SOURCE, needs_weights
from safetensors.torch import load_file, save_file

from deskhand.config.loop import HealthConfig
from deskhand.models.load import TINY_FOLDER, load
from deskhand.recorder.graph import Call, CallGraph
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.policy import Policy
from deskhand.trainer.vision_probe import image_sensitivity
from deskhand.types import Completion, ImageSpan, PreparedImage

pytestmark = needs_weights


GRID, IMAGE_TOKENS = (1, 12, 16), 48


def screenshot(seed: int) -> PreparedImage:
    """Random pixels of a 256x192 screen."""
    pixels = np.random.default_rng(seed).standard_normal((192, 3 * 2 * 16 * 16)).astype(np.float32)
    return PreparedImage(hashlib.sha256(pixels.tobytes()).hexdigest(), pixels, GRID, IMAGE_TOKENS, 256, 192)


def single_turns(count: int, config) -> tuple[list[CallGraph], dict[str, PreparedImage]]:
    """Episodes of one call with synthetic log-probs; eight share a screenshot."""
    random, graphs, images = np.random.default_rng(0), [], {}
    for episode in range(count):
        image = screenshot(episode // 8)
        images[image.sha256] = image
        words, reply = (tuple(random.integers(0, 200, size).tolist()) for size in (14, 6))
        ids = (1, 2, 3, config.vision_start_token_id, *(config.image_token_id,) * IMAGE_TOKENS, *words)
        done = Completion(reply, (-3.0,) * 6, (0,) * 6, "stop", ids)
        graphs.append(CallGraph([Call(str(episode), None, ids, (ImageSpan(4, IMAGE_TOKENS, image.sha256),), done)]))
    return graphs, images


def blinded(folder: Path) -> Path:
    """The bundled policy with vision features of zero."""
    shutil.copytree(TINY_FOLDER, folder)
    weights = load_file(folder / "model.safetensors")
    for name, value in weights.items():
        if "merger" in name:
            value.zero_()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_image_sensitivity_is_zero_without_vision_features(tmp_path):
    torch.set_num_threads(1)
    seen = {}
    for source in (SOURCE, str(blinded(tmp_path / "blind"))):
        model = load(source).model
        graphs, images = single_turns(16, model.config)
        samples = [TrainingSample(row, 1.0, str(n)) for n, graph in enumerate(graphs) for row in graph.sequences()]
        seen[source] = image_sensitivity(Policy(model), samples, images)
    assert seen[SOURCE] > HealthConfig().min_image_sensitivity
    assert seen[str(tmp_path / "blind")] == 0
