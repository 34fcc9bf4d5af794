"""Vision probe: whether the policy uses its images.

Used by `recipes.training_loop`. Sequences are scored again with the images of another episode and unchanged token ids.
If the log-probs do not change, images are lost on the way or the policy ignores them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from deskhand.errors import RecordError
from deskhand.recorder import graph
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.policy import Policy
from deskhand.types import PreparedImage


def image_sensitivity(
    policy: Policy, samples: Sequence[TrainingSample], images: Mapping[str, PreparedImage], rows: int = 8
) -> float | None:
    """Return the mean, over at most `rows` sequences, of the largest change of a token's log-prob in nats.

    None if no two episodes have different images of the same size. Inconsistent sequences are left out; the trainer
    rejects them.
    """
    own: list[graph.Sequence] = []
    swapped: list[graph.Sequence] = []
    for row, donor in _pairs([sample for sample in samples if _is_consistent(sample, policy, images)], images):
        own.append(row)
        swapped.append(swap_images(row, donor))
        if len(own) == rows:
            break
    if not own:
        return None
    scores = policy.logprobs([*own, *swapped], images)  # in one call, so that each image is encoded once
    before, after = scores[: len(own)], scores[len(own) :]
    return float(np.mean([np.abs(new - old).max() for old, new in zip(before, after, strict=True)]))


def _is_consistent(sample: TrainingSample, policy: Policy, images: Mapping[str, PreparedImage]) -> bool:
    try:
        policy.check(sample.sequence, images)
    except RecordError:
        return False
    return True


def swap_images(row: graph.Sequence, donor: Sequence[str]) -> graph.Sequence:
    """Return the sequence with its n-th image replaced by the donor's n-th, or its last one."""
    spans = [replace(span, sha256=donor[min(index, len(donor) - 1)]) for index, span in enumerate(row.spans)]
    return replace(row, spans=tuple(spans))


def _pairs(
    samples: Sequence[TrainingSample], images: Mapping[str, PreparedImage]
) -> list[tuple[graph.Sequence, list[str]]]:
    """Return sequences with the images of another episode: of the same size, and none of their own."""
    usable = [
        sample
        for sample in samples
        if sample.sequence.spans and any(sample.sequence.loss_mask) and len(_grids(sample.sequence, images)) == 1
    ]
    found: list[tuple[graph.Sequence, list[str]]] = []
    for index, sample in enumerate(usable):
        own = {span.sha256 for span in sample.sequence.spans}
        for other in (*usable[index + 1 :], *usable[:index]):
            other_images = [span.sha256 for span in other.sequence.spans if span.sha256 not in own]
            if other_images and other.episode_id != sample.episode_id and _same_size(sample, other, images):
                found.append((sample.sequence, other_images))
                break
    return found


def _grids(sequence: graph.Sequence, images: Mapping[str, PreparedImage]) -> set[tuple[int, int, int]]:
    return {images[span.sha256].grid_thw for span in sequence.spans if span.sha256 in images}


def _same_size(one: TrainingSample, other: TrainingSample, images: Mapping[str, PreparedImage]) -> bool:
    return _grids(one.sequence, images) == _grids(other.sequence, images)
