"""The small policy of `tests/support/small_policy.py`, fresh for each test."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
from small_policy import BANNED, BUILT, World, play
from transformers import Qwen3VLForConditionalGeneration

from deskhand.config.trainer import PolicyConfig
from deskhand.trainer.policy import Policy


@pytest.fixture
def model() -> Qwen3VLForConditionalGeneration:
    """A fresh copy of the same random model."""
    return copy.deepcopy(BUILT)


@pytest.fixture
def policy(model: Qwen3VLForConditionalGeneration) -> Policy:
    return Policy(model, banned_ids=BANNED)


@pytest.fixture
def make_policy() -> Callable[..., Policy]:
    """New policies from equal weights, with settings."""
    return lambda **settings: Policy(copy.deepcopy(BUILT), PolicyConfig(**settings), BANNED)


@pytest.fixture(scope="session")
def world() -> World:
    """Four episodes: of 1 to 5 turns, with a fork, the first two from the same first screenshot."""
    world = World()
    for seed, turns in enumerate((2, 3, 5, 1)):
        play(BUILT, world, seed, turns, first_image=7 if seed < 2 else None)
    return world
