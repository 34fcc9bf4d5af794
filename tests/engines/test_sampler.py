"""The sampler draws from the distribution that it states."""

from __future__ import annotations

import collections
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deskhand.engines.hf.sampler import Sampler
from deskhand.types import Grammar, Sampling

CPU = torch.device("cpu")


def draws(setting: Sampling, logits_V: torch.Tensor, count: int) -> tuple[torch.Tensor, list[float]]:
    generator = random.Random(1)
    sampler = Sampler([setting] * count, len(logits_V), CPU)
    ids, logprobs = sampler.sample(logits_V.expand(count, -1), [1 - generator.random() for _ in range(count)])
    return torch.tensor(ids), logprobs


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_probabilities(temperature: float) -> None:
    logits_V = torch.tensor([2.0, 1.0, 0.0, -1.0, 3.0, 0.5])
    ids, logprobs = draws(Sampling(temperature=temperature, banned_ids=(4,)), logits_V, 40_000)
    logits_V[4] = float("-inf")
    expected_V = torch.softmax(logits_V / temperature, 0)
    found_V = torch.bincount(ids, minlength=6) / len(ids)
    assert found_V[4] == 0
    assert (found_V - expected_V).abs().max() < 0.01
    assert torch.tensor(logprobs) == pytest.approx(expected_V[ids].log(), abs=1e-5)


def test_top_p_cuts_the_tail_and_leaves_the_stated_log_probs_alone() -> None:
    logits_V = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    ids, logprobs = draws(Sampling(top_p=0.75), logits_V, 4_000)
    assert set(ids.tolist()) == {0, 1}
    assert (ids == 0).float().mean() == pytest.approx(0.5 / 0.8, abs=0.03)
    assert torch.tensor(logprobs) == pytest.approx(logits_V[ids], abs=1e-5)
    assert set(draws(Sampling(top_p=0.01), logits_V, 100)[0].tolist()) == {0}


@pytest.mark.parametrize(
    "setting",
    [
        Sampling(),
        Sampling(temperature=0.3),
        Sampling(temperature=1.7, banned_ids=(0, 5)),
        Sampling(top_p=0.7),
        Sampling(temperature=0.0),
        Sampling(grammar=Grammar("regex", "a")),
        Sampling(temperature=1.7, top_p=0.8, banned_ids=(1,)),
    ],
    ids=str,
)
def test_100_000_samples_agree_with_the_recorded_log_probs_or_the_call_is_untrained(setting: Sampling) -> None:
    """By Pearson's chi-squared test, with a bound that a right sampler exceeds once in a million times."""
    logits_V = torch.tensor([2.0, 1.0, 0.0, -1.0, 3.0, 0.5])
    generator, count = random.Random(2), 100_000
    sampler = Sampler([setting] * count, 6, CPU)
    allowed = {row: np.array([True, False, True, True, True, False]) for row in range(count)}
    uniforms = [1 - generator.random() for _ in range(count)]
    ids, logprobs = sampler.sample(logits_V.expand(count, -1), uniforms, allowed if setting.grammar else None)
    counts, recorded = collections.Counter(ids), dict(zip(ids, logprobs, strict=True))
    expected = {one: count * math.exp(logprob) for one, logprob in recorded.items()}
    missing = abs(sum(expected.values()) - count) / count
    distance = sum((counts[one] - wanted) ** 2 / wanted for one, wanted in expected.items())
    agrees = distance < 38.0 and missing < 1e-5
    assert agrees == (setting.restriction is None)


def test_rows_have_their_own_settings() -> None:
    logits_V = torch.tensor([1.0, 3.0, 2.0, 0.0])
    rows = [
        Sampling(temperature=0),
        Sampling(temperature=0, banned_ids=(1,)),
        Sampling(banned_ids=(0, 1, 2)),
        Sampling(top_p=0.1),
    ]
    ids, logprobs = Sampler(rows, 4, CPU).sample(logits_V.expand(4, -1), [0.999] * 4)
    assert ids == [1, 2, 3, 1]
    assert logprobs[0] == pytest.approx(float(torch.log_softmax(logits_V, 0)[1]))
    assert logprobs[2] == 0.0


@given(st.lists(st.floats(-80, 80, width=32), min_size=2, max_size=12), st.floats(2**-53, 1.0), st.data())
@settings(deadline=None)
def test_a_banned_id_is_never_drawn(logits: list[float], uniform: float, data: st.DataObject) -> None:
    banned = data.draw(st.sets(st.integers(0, len(logits) - 1), max_size=len(logits) - 1))
    setting = Sampling(
        temperature=data.draw(st.sampled_from([0.0, 0.1, 1.0, 7.0])), top_p=data.draw(st.sampled_from([0.5, 1.0]))
    )
    setting = Sampling(temperature=setting.temperature, top_p=setting.top_p, banned_ids=tuple(banned))
    ids, logprobs = Sampler([setting], len(logits), CPU).sample(torch.tensor([logits]), [uniform])
    assert ids[0] not in banned
    assert logprobs[0] > float("-inf")
