"""Rows in, micro-batches out. Invariant: each sampled token of each row is in exactly one micro-batch, with its own log-prob.

A row enters with the ids, spans and images that were recorded; nothing is rendered or tokenised here. A row that contradicts
itself is refused with a `RecordError` before anything is computed.

Dimensions: B rows, T tokens, W trained tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deskhand.errors import RecordError
from deskhand.models.forward import ModelInputs, check_row, collate
from deskhand.recorder.graph import Sequence
from deskhand.types import PreparedImage


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One row and what its episode is worth. Rows of one episode have equal `advantage`, `weight` and `reward`.

    `weight`: factor on the episode in the mean over episodes.
    """

    sequence: Sequence
    advantage: float = 0.0
    episode_id: str = ""
    weight: float = 1.0
    reward: float = 0.0
    """What a critic is to predict."""
    turns: tuple[tuple[int, int], ...] = ()
    """The replies of the row in order: (which of the episode's calls, how many tokens it sampled). Left out, each run of sampled
    tokens is a reply, and the rows of an episode follow one another."""

    def reply_lengths(self) -> list[int]:
        """Sampled tokens of each reply of the row, in order. Raises `RecordError` when they are not those of the row."""
        sampled = np.asarray(self.sequence.sampled, dtype=np.int8)
        if not self.turns:
            edges = np.flatnonzero(np.diff(sampled, prepend=0, append=0))
            return (edges[1::2] - edges[::2]).tolist()
        lengths = [length for _, length in self.turns if length]
        if sum(lengths) != int(sampled.sum()):
            raise RecordError(
                "replies", f"a row with {int(sampled.sum())} sampled tokens has replies of {sum(lengths)}"
            )
        return lengths


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """A micro-batch on the model's device. Entries of the `_W` tensors belong to the trained tokens, row by row, in order."""

    inputs: ModelInputs
    """Without pixels: images are encoded once for all micro-batches."""
    rows: tuple[int, ...]
    """Which samples these rows are."""
    positions_W: Tensor
    """int64; index of each trained token in the flattened B*T batch."""
    rows_W: Tensor
    """int64; row of this batch that each token is in."""
    behaviour_logprobs_W: Tensor
    versions_W: Tensor
    """int64; of the weights that sampled each token."""
    after_image_W: Tensor
    """bool; whether a picture stands before the token in its row."""
    temperature: float


@dataclass(slots=True)
class MicrobatchPlan:
    """Micro-batches that cover all rows."""

    batches: list[TrainBatch] = field(default_factory=list)
    images: dict[str, PreparedImage] = field(default_factory=dict)
    """The images that are shown, each once."""


def check_sequence(
    sequence: Sequence, images: Mapping[str, PreparedImage], image_token_id: int, banned_ids: Iterable[int] = ()
) -> None:
    """Raise `RecordError` when a row contradicts itself, its images or the ids that can never be sampled."""
    length = len(sequence.token_ids)
    if not length == len(sequence.sampled) == len(sequence.logprobs) == len(sequence.versions):
        raise RecordError(
            "lengths", f"a row of {length} ids has {len(sequence.sampled)} marks, {len(sequence.logprobs)} log-probs"
        )
    if length and sequence.sampled[0]:
        raise RecordError("no_prompt", "the first token of a row is marked as sampled; nothing precedes it")
    banned = {image_token_id, *banned_ids}
    for token, sampled, logprob in zip(sequence.token_ids, sequence.sampled, sequence.logprobs, strict=True):
        if sampled and token in banned:
            raise RecordError("banned_token", f"token {token} was sampled although it is banned")
        if sampled and not np.isfinite(logprob):
            raise RecordError("logprob", f"token {token} has log-prob {logprob}")
    check_row(sequence, images, image_token_id)


def plan_microbatches(
    sequences: Rows[Sequence],
    images: Mapping[str, PreparedImage],
    model: Any,
    batch_tokens: int,
) -> MicrobatchPlan:
    """Pack checked rows into micro-batches of at most `batch_tokens` padded tokens and one temperature each.

    Rows are sorted by length, so little is padding. Rows without a sampled token are left out.
    """
    result = MicrobatchPlan()
    order = [index for index in range(len(sequences)) if any(sequences[index].sampled)]
    order.sort(key=lambda index: (sequences[index].temperature, len(sequences[index].token_ids)))
    chosen: list[int] = []
    for index in order:
        if chosen:
            longest = len(sequences[index].token_ids)
            other = sequences[chosen[0]].temperature != sequences[index].temperature
            if other or longest * (len(chosen) + 1) > batch_tokens:
                result.batches.append(_batch(chosen, sequences, images, model))
                chosen = []
        chosen.append(index)
    if chosen:
        result.batches.append(_batch(chosen, sequences, images, model))
    for batch in result.batches:
        result.images.update((sha256, images[sha256]) for sha256 in batch.inputs.image_hashes)
    return result


def _batch(chosen: list[int], sequences: Rows[Sequence], images: Mapping[str, PreparedImage], model: Any) -> TrainBatch:
    rows = [sequences[index] for index in chosen]
    inputs = collate(rows, images, model, pixels=False)
    longest = inputs.input_ids_BT.shape[1]
    positions, row_of, logprobs, versions, after_image = [], [], [], [], []
    for b, row in enumerate(rows):
        where = np.flatnonzero(row.sampled)
        positions.append(where + b * longest)
        row_of.append(np.full(len(where), b))
        logprobs.append(np.asarray(row.logprobs, dtype=np.float32)[where])
        versions.append(np.asarray(row.versions, dtype=np.int64)[where])
        after_image.append(where > (row.spans[0].start if row.spans else longest))
    device = inputs.input_ids_BT.device
    return TrainBatch(
        inputs,
        tuple(chosen),
        torch.from_numpy(np.concatenate(positions)).to(device),
        torch.from_numpy(np.concatenate(row_of)).to(device),
        torch.from_numpy(np.concatenate(logprobs)).to(device),
        torch.from_numpy(np.concatenate(versions)).to(device),
        torch.from_numpy(np.concatenate(after_image)).to(device),
        rows[0].temperature,
    )
