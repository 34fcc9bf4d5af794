"""Training samples and their packing into micro-batches.

Used by `trainer.policy`. Sequences enter as recorded; nothing is rendered or tokenized here.

Invariant: each sampled token is in exactly one micro-batch, with its own log-prob.

Dimensions: T tokens and W trained tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deskhand.errors import RecordError
from deskhand.models.forward import ModelInputs, check_row, collate
from deskhand.recorder.graph import CallGraph, Sequence
from deskhand.types import PreparedImage

MAX_LOGPROB = 1e-6
"""Maximum of a log-prob, with the rounding of 0."""


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """A sequence of an episode. Sequences of one episode have equal `advantage`, `weight` and `reward`."""

    sequence: Sequence
    advantage: float = 0.0
    episode_id: str = ""
    weight: float = 1.0
    """Weight of the episode in the mean over episodes."""
    reward: float = 0.0
    """Target of the critic."""
    turns: tuple[tuple[int, int], ...] = ()
    """Replies in order: (index of the call in the episode, number of sampled tokens). If empty, each run of sampled
    tokens is a reply, and the sequences of an episode are in order."""
    graph: CallGraph | None = None
    """The episode's calls; if set, its sequences must train exactly what they sampled."""
    group_id: str = ""
    group_size: int = 0
    """Scored episodes of the group. If all are trained, the sum of their advantages is checked."""
    reply_advantages: tuple[float, ...] = ()
    """Advantage of each of `turns`; if empty, every token has `advantage`, which is then the episode's part of them."""
    is_replayed: bool = False
    """Whether an earlier step trained the episode, too; its tokens then have metrics of their own."""

    def reply_lengths(self) -> list[int]:
        """Return the number of sampled tokens of each reply. Raises `RecordError` if they do not add up."""
        sampled = np.asarray(self.sequence.loss_mask, dtype=np.int8)
        if not self.turns:
            edges = np.flatnonzero(np.diff(sampled, prepend=0, append=0))
            return (edges[1::2] - edges[::2]).tolist()
        lengths = [length for _, length in self.turns if length]
        if sum(lengths) != int(sampled.sum()):
            raise RecordError(
                "replies", f"a sequence with {int(sampled.sum())} sampled tokens has replies of {sum(lengths)} tokens"
            )
        return lengths

    def advantages_by_reply(self) -> list[float]:
        """Return the advantage of each reply of `reply_lengths`."""
        if not self.reply_advantages:
            return [self.advantage] * len(self.reply_lengths())
        pairs = zip(self.turns, self.reply_advantages, strict=True)
        return [advantage for (_, length), advantage in pairs if length]

    @property
    def has_gradient(self) -> bool:
        """Whether a token has an advantage."""
        return self.advantage != 0.0 if not self.reply_advantages else any(self.advantages_by_reply())


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """A micro-batch on the model's device. `_W` tensors list the trained tokens, sequence by sequence."""

    inputs: ModelInputs
    rows: tuple[int, ...]
    """Indices of the samples."""
    positions_W: Tensor
    """Index of each trained token in the packed sequences, int64."""
    rows_W: Tensor
    """Row of each trained token in this batch, int64."""
    behavior_logprobs_W: Tensor
    versions_W: Tensor
    """Version of the weights that sampled each token, int64."""
    after_image_W: Tensor
    """Whether an image precedes the token, bool."""
    same_version_W: Tensor
    """Whether one version sampled the whole reply of the token, bool. Otherwise later tokens were sampled from keys and
    values of older weights."""
    temperature: float


@dataclass(frozen=True, slots=True)
class MicrobatchPlan:
    """Micro-batches that cover all sequences, and the images of the sequences by sha256."""

    batches: list[TrainBatch]
    images: dict[str, PreparedImage]


def check_sequence(
    sequence: Sequence, images: Mapping[str, PreparedImage], image_token_id: int, banned_ids: Iterable[int] = ()
) -> None:
    """Raise `RecordError` if a sequence is inconsistent, lacks an image or sampled a banned token.

    A token is trained if and only if it was sampled and has a version; other tokens have no log-prob.
    """
    length = len(sequence.token_ids)
    if not length == len(sequence.loss_mask) == len(sequence.logprobs) == len(sequence.versions):
        raise RecordError(
            "lengths",
            f"a sequence of {length} ids has {len(sequence.loss_mask)} marks, {len(sequence.logprobs)} log-probs",
        )
    sampled = np.fromiter(sequence.loss_mask, np.bool_, length)
    if sampled.any():
        _check_sampled(sequence, sampled, {image_token_id, *banned_ids})
    check_row(sequence, images, image_token_id)


def _check_sampled(sequence: Sequence, sampled: np.ndarray, banned: set[int]) -> None:
    if sampled[0]:
        raise RecordError("no_prompt", "the first token of a sequence is marked as sampled")
    if not sampled[-1]:
        raise RecordError("last_token", "a sequence continues after its last sampled token")
    found = banned.intersection(compress(sequence.token_ids, sequence.loss_mask))
    if found:
        raise RecordError("banned_token", f"token {min(found)} was sampled although it is banned")
    if (sampled != (np.array(sequence.versions) >= 0)).any():
        raise RecordError("versions", "a trained token has no version, or a token that was not sampled has one")
    logprobs = np.array(sequence.logprobs)
    if not np.isfinite(logprobs[sampled]).all() or logprobs[sampled].max() > MAX_LOGPROB:
        raise RecordError("logprob", "the log-prob of a trained token is not finite or above 0")
    if logprobs[~sampled].any():
        raise RecordError("logprob", "a token that was not sampled has a log-prob")


def plan_microbatches(
    sequences: Rows[Sequence], images: Mapping[str, PreparedImage], model: Any, max_tokens: int
) -> MicrobatchPlan:
    """Pack checked sequences into micro-batches of at most `max_tokens` tokens and one temperature.

    The fewest micro-batches are filled evenly, since the largest determines the memory. A longer sequence has one of
    its own. Sequences without a sampled token are skipped.
    """
    by_temperature: dict[float, list[int]] = {}
    for index, sequence in enumerate(sequences):
        if any(sequence.loss_mask):
            by_temperature.setdefault(sequence.temperature, []).append(index)
    lengths = [len(sequence.token_ids) for sequence in sequences]
    groups = [group for _, part in sorted(by_temperature.items()) for group in _filled(part, lengths, max_tokens)]
    batches = [_batch(chosen, sequences, images, model) for chosen in groups]
    return MicrobatchPlan(batches, {name: images[name] for batch in batches for name in batch.inputs.image_hashes})


def _filled(part: list[int], lengths: Rows[int], max_tokens: int) -> list[list[int]]:
    """Return groups of sequences: the longest first, each into the group with the fewest tokens so far."""
    groups = [list[int]() for _ in range(max(1, -(-sum(lengths[index] for index in part) // max_tokens)))]
    sums = [0] * len(groups)
    for index in sorted(part, key=lambda index: -lengths[index]):
        least = min(range(len(groups)), key=sums.__getitem__)
        if sums[least] and sums[least] + lengths[index] > max_tokens:
            least = len(groups)
            groups.append([])
            sums.append(0)
        groups[least].append(index)
        sums[least] += lengths[index]
    return [group for group in groups if group]


def _batch(chosen: list[int], sequences: Rows[Sequence], images: Mapping[str, PreparedImage], model: Any) -> TrainBatch:
    rows = [sequences[index] for index in chosen]
    inputs = collate(rows, images, model)
    columns, start = [], 0
    for b, row in enumerate(rows):
        where = np.flatnonzero(row.loss_mask)
        columns.append(
            (
                start + where,
                np.full(len(where), b),
                np.asarray(row.logprobs, dtype=np.float32)[where],
                np.asarray(row.versions, dtype=np.int64)[where],
                where > (row.spans[0].start if row.spans else len(row.token_ids)),
                _in_one_version(where, np.asarray(row.versions)[where]),
            )
        )
        start += len(row.token_ids)
    device = inputs.input_ids_1T.device
    tensors = (torch.from_numpy(np.concatenate(column)).to(device) for column in zip(*columns, strict=True))
    return TrainBatch(inputs, tuple(chosen), *tensors, temperature=rows[0].temperature)


def _in_one_version(where: np.ndarray, versions: np.ndarray) -> np.ndarray:
    """Return for each sampled token whether its run of adjacent sampled tokens has one version, bool[tokens]."""
    starts = np.flatnonzero(np.diff(where, prepend=-2) != 1)
    lengths = np.diff(starts, append=len(where))
    mixed = np.minimum.reduceat(versions, starts) != np.maximum.reduceat(versions, starts)
    return np.repeat(~mixed, lengths)
