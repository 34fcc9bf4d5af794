"""GiGPO by hand, and the anchor states of recorded episodes."""

import dataclasses

import episode_results
import fake_desktop
import numpy as np
import pytest

from deskhand.algorithms.base import get_algorithm
from deskhand.algorithms.gigpo import step_advantages
from deskhand.errors import HealthError
from deskhand.recipes.samples import group_to_samples
from deskhand.rollout.groups import Group
from deskhand.trainer.advantages import AdvantageEstimate, group_advantages_of
from deskhand.trainer.step_checks import check_estimate, check_groups


def group(rewards=(1.0, 0.0), **changes) -> Group:
    members = [
        dataclasses.replace(episode_results.result(reward, episode_id=f"e{n}", **changes), member=n)
        for n, reward in enumerate(rewards)
    ]
    return Group("g", 0, fake_desktop.square_task(0), len(members), 0, scored=members)


def by_hand(*returns: float) -> list[float]:
    values = np.array(returns)
    return ((values - values.mean()) / (values.std() + 1e-6)).tolist()


def test_step_advantages_compare_the_returns_of_one_state():
    """Two episodes; "a" is seen by both, "b" twice by the first, "c" once."""
    found = step_advantages([1.0, 0.5], [["a", "b", "b"], ["c", "a"]], 0.5)
    (first, last), (one, two) = by_hand(0.25, 0.5), by_hand(0.5, 1.0)
    np.testing.assert_allclose(found[0], [first, one, two])
    np.testing.assert_allclose(found[1], [0.0, last])


def test_each_reply_has_the_sum_of_both_advantages():
    """The steps of `episode_results` saw the screens f, e and e."""
    samples = group_to_samples(group(), get_algorithm("gigpo"))
    start = by_hand(0.95**2, 0.0)
    later = by_hand(0.95, 1.0, 0.0, 0.0)
    expected = {
        "e0": {"a1": 1 + start[0], "a2": 1 + later[0], "a3": 1 + later[1]},
        "e1": {"a1": -1 + start[1], "a2": -1 + later[2], "a3": -1 + later[3]},
    }
    for sample in samples:
        assert sample.advantage == pytest.approx(1.0 if sample.episode_id == "e0" else -1.0, abs=1e-5)
        own = [expected[sample.episode_id][name] for name in sample.sequence.call_ids]
        assert sample.advantages_by_reply() == pytest.approx(own, abs=1e-5)
    estimate = group_advantages_of(samples)
    counts = [sum(sample.sequence.loss_mask) for sample in samples]
    assert [len(row) for row in estimate.advantages] == counts
    assert len(set(estimate.advantages[0].tolist())) > 1
    check_groups(samples, get_algorithm("gigpo"))
    check_estimate(samples, estimate, has_critic=False)
    swapped = AdvantageEstimate([row[::-1].copy() for row in estimate.advantages])
    with pytest.raises(HealthError, match="invariant advantages_aligned"):
        check_estimate(samples, swapped, has_critic=False)


def test_calls_without_a_step_have_the_last_image_of_their_prompt_as_state():
    """An agent of your own records no steps; the calls of `episode_results` have pictures a1, a2 and none."""
    members = [
        dataclasses.replace(one, transcript=dataclasses.replace(one.transcript, steps=())) for one in group().scored
    ]
    plain = dataclasses.replace(group(), scored=members)
    samples = group_to_samples(plain, get_algorithm("gigpo"))
    found = {
        (sample.episode_id, name): advantage
        for sample in samples
        for name, advantage in zip(sample.sequence.call_ids, sample.advantages_by_reply(), strict=True)
    }
    for name, discounted in (("a1", 0.95**2), ("a2", 0.95), ("a3", 1.0)):
        one, other = by_hand(discounted, 0.0)
        assert found["e0", name] == pytest.approx(1 + one, abs=1e-5)
        assert found["e1", name] == pytest.approx(-1 + other, abs=1e-5)


def test_other_algorithms_have_no_advantages_of_replies():
    assert {sample.reply_advantages for sample in group_to_samples(group(), get_algorithm("grpo"))} == {()}
