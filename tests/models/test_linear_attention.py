"""Layers with linear attention: rows that are packed, padded or continued give what each gives alone."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import random_models
import torch

from deskhand.errors import ConfigError
from deskhand.models import linear_attention
from deskhand.models.architectures import QWEN35_4B, attention_layers, state_shapes, values_of
from deskhand.models.families import FAMILIES
from deskhand.models.linear_attention import StateView, check_states

MODEL = random_models.build("qwen3_5")
SHAPES = state_shapes(MODEL.config.to_dict())
LAYER = MODEL.model.language_model.layers[2].linear_attn
LENGTHS = (70, 70, 3, 1, 130)
"""Shorter and longer than a chunk of 64."""


class Cache:
    def __init__(self, states: StateView) -> None:
        self.states = states


def rows() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, length, 64, generator=generator) for length in LENGTHS]


@torch.no_grad()
def alone(row_1TH: torch.Tensor) -> torch.Tensor:
    """By transformers' own layer."""
    return type(LAYER).__mro__[1].forward(LAYER, row_1TH)


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_packed_rows_give_what_each_gives_alone() -> None:
    bounds = tuple(accumulate(LENGTHS, initial=0))
    packed = LAYER(torch.cat(rows(), 1), cu_seq_lens_q=bounds)
    for found, row in zip(packed[0].split(LENGTHS), rows(), strict=True):
        same(found, alone(row)[0])
    mixed = alone(torch.cat(rows(), 1))
    assert (mixed - packed).abs().max() > 1e-2, "what transformers gives without bounds is something else"


@torch.no_grad()
@pytest.mark.parametrize("first", [1, 2, 65])
def test_padded_rows_can_be_continued(first: int) -> None:
    """Each row in three passes: its first tokens beside longer rows, most of the rest, and the last one."""
    parts = [row.split([min(first, row.shape[1]), row.shape[1] - min(first, row.shape[1])], 1) for row in rows()]
    states = SHAPES.blank(len(parts), torch.float32, "cpu")
    joined = [torch.zeros(1, 0, 64) for _ in parts]
    for batch in (
        [part[0] for part in parts],
        [part[1][:, :-1] for part in parts],
        [part[1][:, -1:] for part in parts],
    ):
        chosen = [number for number, piece in enumerate(batch) if piece.shape[1]]
        widths = [batch[number].shape[1] for number in chosen]
        padded = torch.full((len(chosen), max(widths), 64), 9.0)
        for row, number in enumerate(chosen):
            padded[row, : widths[row]] = batch[number][0]
        own = [state[:, chosen] for state in states]
        output = LAYER(padded, Cache(StateView(SHAPES, own, widths)), torch.ones(1, 1, 1, 1, dtype=torch.bool))
        for state, new in zip(states, own, strict=True):
            state[:, chosen] = new
        for row, number in enumerate(chosen):
            joined[number] = torch.cat([joined[number], output[row : row + 1, : widths[row]]], 1)
    for found, row in zip(joined, rows(), strict=True):
        same(found, alone(row))


def test_only_linear_layers_have_states_and_only_the_others_keys_and_values() -> None:
    values = MODEL.config.to_dict()
    assert (attention_layers(values), SHAPES.layers) == ((1,), (0, 2, 3))
    assert SHAPES.bytes(4) == sum(state.nbytes for state in SHAPES.blank(1, torch.float32, "cpu"))
    other = random_models.build("qwen3_vl").config.to_dict()
    assert attention_layers(other) == (0, 1, 2)
    assert state_shapes(other).blank(3, torch.float32, "cpu") == ()
    assert state_shapes(other).bytes(4) == 0
    published = {"num_hidden_layers": 8, "full_attention_interval": 4}
    assert [kind == "full_attention" for kind in FAMILIES["qwen3_5"].layer_types(published)].count(True) == 2
    assert set(FAMILIES["qwen2_5_vl"].layer_types({"num_hidden_layers": 3})) == {"full_attention"}


def test_a_config_without_sizes_of_linear_attention_is_refused(tmp_path: Path) -> None:
    assert values_of("Qwen/Qwen3.5-4B")["model_type"] == "qwen3_5"
    text = {key: value for key, value in QWEN35_4B["text_config"].items() if key != "linear_value_head_dim"}
    (tmp_path / "config.json").write_text(json.dumps({**QWEN35_4B, "text_config": text}))
    with pytest.raises(ConfigError, match=r"config\.json: text_config\.linear_value_head_dim must be a valid size"):
        values_of(str(tmp_path))


def _forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateView, "update_recurrent_state", lambda *_: None)


def _convolution_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateView, "update_conv_state", lambda self, inputs, layer, **_: inputs)


def _other_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(StateView, "get_recurrent_state")


@pytest.mark.parametrize("bug", [_forgets, _convolution_forgets, _other_interface])
def test_a_transformers_that_keeps_other_states_is_refused(bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check_states(MODEL, SHAPES)
    check_states(MODEL.bfloat16(), SHAPES)
    MODEL.float()
    bug(monkeypatch)
    with pytest.raises(ConfigError, match=r"^transformers: .*linear attention.*; install"):
        check_states(MODEL, SHAPES)


def test_separating_rows_twice_changes_nothing() -> None:
    kinds = [type(layer) for layer in linear_attention.linear_layers(MODEL)]
    linear_attention.separate_rows(MODEL)
    assert [type(layer) for layer in linear_attention.linear_layers(MODEL)] == kinds
    assert len(kinds) == 3
