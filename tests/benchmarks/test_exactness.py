"""Engine and trainer agree on real episodes, and the comparison notices when they do not."""

from dataclasses import replace

import torch
from bundled_weights import SOURCE, needs_weights

from benchmarks import exactness
from benchmarks.thresholds import Thresholds
from deskhand.recorder.graph import CallGraph
from deskhand.types import Completion

pytestmark = needs_weights


def test_trainer_and_engine_agree_on_episodes_with_images_and_forks(recording):
    found = exactness.compare(exactness.Weights(SOURCE), recording)
    thresholds = Thresholds()
    exactness.judge(found, thresholds)
    assert thresholds.met
    assert found.images >= 8


def test_a_log_prob_that_is_off_is_noticed(recording):
    def nudged(done: Completion) -> Completion:
        return replace(done, logprobs=tuple(value - 0.01 for value in done.logprobs))

    first, *others = recording.results
    graph = CallGraph([replace(call, completion=nudged(call.completion)) for call in first.graph.calls])
    wrong = replace(recording, results=(replace(first, graph=graph), *others))
    thresholds = Thresholds()
    exactness.judge(exactness.compare(exactness.Weights(SOURCE), wrong), thresholds)
    assert {"log-probs", "KL estimate"} <= set(thresholds.missed)


def test_calls_that_are_lost_turn_the_gradient(recording):
    first, *others = recording.results
    shorter = replace(recording, results=(replace(first, graph=CallGraph()), *others))
    weights = exactness.Weights(SOURCE)
    whole, lacking = exactness.gradient(weights, recording, True), exactness.gradient(weights, shorter, True)
    assert float(torch.nn.functional.cosine_similarity(whole, lacking, dim=0)) < 0.9999
