"""The computer-use example of upstream/areal runs as AReaL's users would run it: its own `train.py`, AReaL's parser,
`PPOTrainer` and workers, for one update of a tiny model; its configuration for GPUs is one that AReaL takes."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def example(found):
    return found["upstream"].result()


def test_the_example_trains(example):
    assert example["steps"] == 1
    assert example["grad_norm"] > 0
    assert example["successful"] == 1.0
    assert abs(example["behave_imp_weight"] - 1.0) < 1e-3


def test_workers_have_minutes_to_start(example):
    """AReaL's 30 s did not suffice on a machine that was busy with other tests."""
    assert example["startup_timeout"] == 300.0


def test_its_configuration_for_gpus_loads_and_adds_up(example):
    assert example["problems"] == []
