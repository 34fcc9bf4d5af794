"""Whether the policy looks at its pictures. Invariant: the ids of a row stay as they are; only what its pictures show is changed.

Rows are scored a second time with the pictures of a row of another episode. A model that sees finds its own replies less or more
likely then; to one whose pictures are lost on the way, or that has learned to ignore them, nothing has changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from deskhand.recorder import graph
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.policy import Policy
from deskhand.types import PreparedImage


def image_sensitivity(
    policy: Policy, samples: Sequence[TrainingSample], images: Mapping[str, PreparedImage], rows: int = 8
) -> float | None:
    """Mean over at most `rows` rows of the largest |change of the log-prob| of a sampled token, nats, when pictures are swapped.

    None when no two episodes show different pictures of the same size.
    """
    own: list[graph.Sequence] = []
    swapped: list[graph.Sequence] = []
    for row, donor in _pairs(samples, images):
        own.append(row)
        swapped.append(swap_images(row, donor))
        if len(own) == rows:
            break
    if not own:
        return None
    found = policy.logprobs(
        [*own, *swapped], images
    )  # at once: most pictures are shown in both, and each is encoded once
    before, after = found[: len(own)], found[len(own) :]
    return float(np.mean([np.abs(new - old).max() for old, new in zip(before, after, strict=True)]))


def swap_images(row: graph.Sequence, donor: Sequence[str]) -> graph.Sequence:
    """The row with its n-th picture replaced by the donor's n-th (its last one where it has fewer)."""
    spans = [replace(span, sha256=donor[min(place, len(donor) - 1)]) for place, span in enumerate(row.spans)]
    return replace(row, spans=tuple(spans))


def _pairs(
    samples: Sequence[TrainingSample], images: Mapping[str, PreparedImage]
) -> list[tuple[graph.Sequence, list[str]]]:
    """Rows with pictures of other episodes: all of one size, and none of them the row's own."""
    usable = [
        sample
        for sample in samples
        if sample.sequence.spans and any(sample.sequence.sampled) and len(_grids(sample.sequence, images)) == 1
    ]
    found: list[tuple[graph.Sequence, list[str]]] = []
    for place, sample in enumerate(usable):
        own = {span.sha256 for span in sample.sequence.spans}
        for other in (*usable[place + 1 :], *usable[:place]):
            strange = [span.sha256 for span in other.sequence.spans if span.sha256 not in own]
            if strange and other.episode_id != sample.episode_id and _same_size(sample, other, images):
                found.append((sample.sequence, strange))
                break
    return found


def _grids(sequence: graph.Sequence, images: Mapping[str, PreparedImage]) -> set[tuple[int, int, int]]:
    return {images[span.sha256].grid_thw for span in sequence.spans if span.sha256 in images}


def _same_size(one: TrainingSample, other: TrainingSample, images: Mapping[str, PreparedImage]) -> bool:
    return _grids(one.sequence, images) == _grids(other.sequence, images)
