"""DAPO's penalty for long replies: its curve, and the reward that an episode gets."""

import dataclasses

import episode_results
import pytest

from deskhand.algorithms.dapo import overlong_penalty
from deskhand.recorder.graph import Call, CallGraph
from deskhand.rollout.reward import apply_reward, with_overlong_penalty
from deskhand.types import Completion


@pytest.mark.parametrize(
    ("length", "penalty"), [(0, 0.0), (80, 0.0), (85, -0.25), (90, -0.5), (100, -1.0), (130, -1.0)]
)
def test_the_penalty_falls_in_a_line_over_the_buffer(length, penalty):
    """DAPO's equation 13 with a limit of 100 and a cache of 20."""
    assert overlong_penalty(length, 100, 20) == pytest.approx(penalty)
    assert overlong_penalty(length, 100, 0) == 0.0


def episode(*lengths: int, reward: float | None = 1.0):
    def call(number: int, length: int) -> Call:
        done = Completion((7,) * length, (-1.0,) * length, (0,) * length, "stop", (number,))
        return Call(f"c{number}", None, (number,), (), done)

    graph = CallGraph([call(number, length) for number, length in enumerate(lengths)])
    return dataclasses.replace(episode_results.result(reward), graph=graph)


async def test_the_longest_reply_of_an_episode_is_penalized():
    shaped = with_overlong_penalty(None, 100, 20, 0.5)
    assert (await apply_reward(shaped, episode(3, 90, 10))).reward == pytest.approx(1.0 - 0.25)
    assert (await apply_reward(shaped, episode(3, 80))).reward == 1.0
    own = with_overlong_penalty(lambda result: 3.0, 100, 20, 1.0)
    assert (await apply_reward(own, episode(100))).reward == pytest.approx(2.0)


def test_without_a_buffer_the_reward_is_unchanged():
    assert with_overlong_penalty(None, 100, 0, 1.0) is None
