"""Advantages that are normalized over a step of which stale episodes were left out."""

from __future__ import annotations

import dataclasses

import episode_results
import fake_desktop
import numpy as np

from deskhand.algorithms.base import get_algorithm
from deskhand.recipes.samples import groups_to_samples
from deskhand.rollout.groups import Group
from deskhand.trainer.step_checks import check_groups

ALGORITHM = get_algorithm("reinforce_plus_plus_baseline")


def group(name: str) -> Group:
    members = [
        dataclasses.replace(episode_results.result(reward, episode_id=f"{name}{n}"), member=n, group_id=name)
        for n, reward in enumerate((1.0, 0.0, 0.0, 0.0))
    ]
    return Group(name, 0, fake_desktop.square_task(0), len(members), 0, scored=members)


def advantages(left_out: str = "") -> dict[str, float]:
    samples = groups_to_samples(
        [group("a"), group("b")], ALGORITHM, lambda result: not left_out or result.episode_id != left_out
    )
    check_groups(samples, ALGORITHM)
    return {sample.episode_id: sample.advantage for sample in samples}


def test_a_group_that_lost_its_success_does_not_shift_the_complete_ones():
    """`check_groups` stops the run if the advantages of a complete group do not sum to 0."""
    found = advantages(left_out="b0")
    assert abs(sum(found[f"a{n}"] for n in range(4))) < 1e-9
    whole = np.array([0.75, -0.25, -0.25, -0.25] * 2)
    np.testing.assert_allclose([*advantages().values()], whole / whole.std(), rtol=1e-5)
