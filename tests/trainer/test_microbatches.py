"""Sequences are packed into micro-batches without padding, evenly, and each exactly once."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import build

from deskhand.recorder.graph import Sequence
from deskhand.trainer.batch import plan_microbatches

MODEL = build("qwen3_vl")
rows = st.lists(st.tuples(st.integers(2, 40), st.sampled_from([0.7, 1.0]), st.booleans()), max_size=20)


def sequence(length: int, temperature: float, sampled: bool) -> Sequence:
    mask = (False,) * (length - 1) + (sampled,)
    ids, logprobs = tuple(range(1, length + 1)), tuple(-1.0 if one else 0.0 for one in mask)
    return Sequence(ids, mask, logprobs, tuple(0 if one else -1 for one in mask), (), ("a",), temperature)


@given(rows, st.integers(1, 100))
@settings(deadline=None, max_examples=60)
def test_each_sequence_is_in_one_micro_batch_without_padding(found: list[tuple], max_tokens: int) -> None:
    sequences = [sequence(*row) for row in found]
    batches = plan_microbatches(sequences, {}, MODEL, max_tokens).batches
    wanted = [index for index, one in enumerate(sequences) if any(one.loss_mask)]
    assert sorted(index for batch in batches for index in batch.rows) == wanted
    for batch in batches:
        packed = [sequences[index] for index in batch.rows]
        ids = list(itertools.chain(*(one.token_ids for one in packed)))
        assert batch.inputs.input_ids_1T.tolist() == [ids]
        assert batch.inputs.lengths == tuple(len(one.token_ids) for one in packed)
        assert len(ids) <= max_tokens or len(packed) == 1
        assert {one.temperature for one in packed} == {batch.temperature}
        ends = torch.tensor(batch.inputs.lengths).cumsum(0) - 1
        assert torch.equal(batch.positions_W, ends), "only the last token of each is trained"


def test_micro_batches_are_as_few_as_possible_and_filled_evenly() -> None:
    sequences = [sequence(length, 1.0, True) for length in (10, 20, 30, 40) * 5]
    batches = plan_microbatches(sequences, {}, MODEL, 400).batches
    assert sorted(sum(batch.inputs.lengths) for batch in batches) == [250, 250]
