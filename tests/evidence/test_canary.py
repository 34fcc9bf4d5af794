"""The weights that the canary's benchmark blinds do not see, and those in the box do."""

from __future__ import annotations

import torch
from shipped import SOURCE, needs_weights

from benchmarks import canary
from benchmarks.training import episodes
from deskhand.models.load import load
from deskhand.rollout.config import HealthConfig
from deskhand.training.batch import TrainingSample
from deskhand.training.canary import image_sensitivity
from deskhand.training.policy import Policy

pytestmark = needs_weights


def test_blinded_weights_do_not_see_and_those_in_the_box_do(tmp_path):
    torch.set_num_threads(1)
    seen = {}
    for source in (SOURCE, str(canary.blinded(tmp_path / "blind"))):
        model = load(source).model
        graphs, images = episodes(16, 1, model)
        samples = [TrainingSample(row, 1.0, str(n)) for n, graph in enumerate(graphs) for row in graph.sequences()]
        seen[source] = image_sensitivity(Policy(model), samples, images)
    assert seen[SOURCE] > HealthConfig().min_image_sensitivity
    assert seen[str(tmp_path / "blind")] == 0
