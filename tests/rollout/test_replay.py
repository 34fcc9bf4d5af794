"""Replay of earlier groups: which ones, for how long, and what of them is trained."""

import dataclasses

import episode_results
import fake_desktop
import numpy as np
import pytest

from deskhand.algorithms.base import get_algorithm
from deskhand.config.loop import LoopConfig
from deskhand.errors import ConfigError
from deskhand.recipes.replay import ReplayBuffer
from deskhand.rollout.groups import Group


def group(number: int, rewards: list[float], version: int = 0) -> Group:
    members = [
        dataclasses.replace(
            episode_results.result(reward, episode_id=f"{number}/{member}", version=version),
            member=member,
            group_id=f"g{number}",
            version_min=version,
        )
        for member, reward in enumerate(rewards)
    ]
    return Group(f"g{number}", number, fake_desktop.square_task(0), len(rewards), 0, scored=members)


def buffer(**settings) -> ReplayBuffer:
    return ReplayBuffer(LoopConfig(**settings), get_algorithm("grpo"), step_of=lambda version: version)


def keep(it: ReplayBuffer, *groups: Group) -> None:
    it.add(groups, [result for one in groups for result in one.scored])


def taken(it: ReplayBuffer, step: int) -> list[str]:
    return list(dict.fromkeys(sample.group_id for sample in it.take(step)))


def test_the_rarest_successes_are_replayed_first_and_every_group_in_turn():
    it = buffer(replay_groups=1)
    keep(it, group(0, [1.0, 1.0, 0.0]), group(1, [1.0, 0.0, 0.0]), group(2, [0.0, 1.0, 1.0]))
    assert [taken(it, 1) for _ in range(5)] == [["g1"], ["g0"], ["g2"], ["g1"], ["g0"]]


def test_no_episode_is_replayed_beyond_the_maximum_age():
    it = buffer(replay_groups=4, max_replay_staleness=3)
    keep(it, group(0, [1.0, 0.0], version=0), group(1, [1.0, 0.0], version=2))
    assert taken(it, 3) == ["g0", "g1"]
    assert taken(it, 4) == ["g1"]
    assert it.counts.keys() == {"g1"}
    assert taken(it, 6) == []


def test_samples_have_the_groups_advantages_and_the_recorded_logprobs():
    it, one = buffer(replay_groups=1), group(0, [1.0, 0.0, 0.0])
    it.add([one], one.scored[:2])
    samples = it.take(1)
    expected = get_algorithm("grpo")(np.array([1.0, 0.0, 0.0]))
    assert {sample.episode_id: sample.advantage for sample in samples} == {"0/0": expected[0], "0/1": expected[1]}
    recorded = [sequence.logprobs for result in one.scored[:2] for sequence in result.graph.sequences()]
    assert [sample.sequence.logprobs for sample in samples] == recorded
    assert all(sample.is_replayed for sample in samples)


def test_self_imitation_replays_the_best_of_a_group():
    it = buffer(replay_groups=1, replay_best_only=True)
    keep(it, group(0, [0.2, 1.0, 0.0]))
    assert {sample.episode_id for sample in it.take(1)} == {"0/1"}


def test_without_the_setting_nothing_is_kept():
    it = buffer()
    keep(it, group(0, [1.0, 0.0]))
    assert it.take(1) == []
    assert not it.counts


@pytest.mark.parametrize("name", ["ppo", "reinforce_plus_plus"])
def test_algorithms_without_a_group_baseline_are_refused(name):
    with pytest.raises(ConfigError, match=rf"loop\.replay_groups: {name} has no group baseline"):
        ReplayBuffer(LoopConfig(replay_groups=1), get_algorithm(name), step_of=lambda version: version)
