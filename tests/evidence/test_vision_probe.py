"""The weights that the canary's benchmark blinds do not see, and those in the box do."""

from __future__ import annotations

import torch
from bundled_weights import SOURCE, needs_weights

from benchmarks import vision_probe
from benchmarks.training import episodes
from deskhand.config.loop import HealthConfig
from deskhand.models.load import load
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.policy import Policy
from deskhand.trainer.vision_probe import image_sensitivity

pytestmark = needs_weights


def test_blinded_weights_do_not_see_and_those_in_the_box_do(tmp_path):
    torch.set_num_threads(1)
    seen = {}
    for source in (SOURCE, str(vision_probe.blinded(tmp_path / "blind"))):
        model = load(source).model
        graphs, images = episodes(16, 1, model)
        samples = [TrainingSample(row, 1.0, str(n)) for n, graph in enumerate(graphs) for row in graph.sequences()]
        seen[source] = image_sensitivity(Policy(model), samples, images)
    assert seen[SOURCE] > HealthConfig().min_image_sensitivity
    assert seen[str(tmp_path / "blind")] == 0
