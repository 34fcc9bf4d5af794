"""Choice of tasks by success, against formulas written out: posteriors, predictions, draws; groups that stop early."""

import dataclasses
import math
import random

import episode_results
import fake_desktop
import numpy as np
import pytest

from deskhand.errors import ConfigError
from deskhand.rollout.curriculum import Curriculum
from deskhand.rollout.groups import Group, GroupBuffer
from deskhand.rollout.success_statistics import SuccessStatistics, all_equal_probability
from deskhand.store.run import EpisodeRow, GroupRow

STEPS = 6
DECAY = 0.8


def statistics(size: int = 4, decay: float = DECAY) -> SuccessStatistics:
    return SuccessStatistics(size, decay, step_of=lambda version: version, now=lambda: STEPS)


def episode(family: str, score: float | None, version: int = STEPS, **more):
    return dataclasses.replace(episode_results.result(score, **more), family=family, version_min=version)


def group(family: str, scores: list[float], version: int = STEPS) -> Group:
    task = dataclasses.replace(fake_desktop.square_task(0), family=family)
    return Group("g", 0, task, len(scores), 0, scored=[episode(family, score, version) for score in scores])


def test_the_probability_of_equal_episodes_is_the_moment_of_the_beta_distribution():
    for alpha, beta, count in ((1.0, 1.0, 8), (0.3, 7.2, 3), (12.5, 0.5, 1)):
        logs = math.lgamma(alpha + count) - math.lgamma(alpha) + math.lgamma(alpha + beta)
        expected = math.exp(logs - math.lgamma(alpha + beta + count))
        assert all_equal_probability(alpha, beta, count) == pytest.approx(expected, rel=1e-12)


def test_posterior_and_signal_are_those_of_the_formula():
    """Every episode and every group in turn, and the two beta moments by numerical integration."""
    chance, it, alpha, beta, differing, complete = random.Random(1), statistics(), 1.0, 1.0, 0.0, 0.0
    for _ in range(30):
        version, scores = chance.randrange(STEPS + 1), [chance.choice([0.0, 0.25, 1.0]) for _ in range(4)]
        for score in scores:
            it.add(episode("a", score, version))
            alpha += DECAY ** (STEPS - version) * score
            beta += DECAY ** (STEPS - version) * (1 - score)
        it.add_group(group("a", scores, version))
        differing += DECAY ** (STEPS - version) * (len(set(scores)) > 1)
        complete += DECAY ** (STEPS - version)
    assert it.posterior("a") == pytest.approx((alpha, beta))
    p = (np.arange(200_000) + 0.5) / 200_000
    density = p ** (alpha - 1) * (1 - p) ** (beta - 1)
    spread = ((1 - p**4 - (1 - p) ** 4) * density).sum() / density.sum()
    assert it.signal("a") == pytest.approx((2 * spread + differing) / (2 + complete), rel=1e-6)
    assert it.signal("unknown") == pytest.approx(1 - 2 / 5), "the uniform prior: all k of 4 are equally probable"


def test_outages_and_unsampled_episodes_do_not_count():
    it = statistics()
    it.add(episode("a", None))
    it.add(episode("a", 1.0, version=-1))
    it.add_group(group("a", [1.0]))
    assert it.posterior("a") == (1.0, 1.0)
    assert it.signal("a") == statistics().signal("a")


def test_restored_statistics_are_equal_bit_for_bit_in_any_order():
    chance, live, rows, groups = random.Random(2), statistics(), [], []
    for number in range(12):
        scores, version = [chance.choice([0.1, 0.2, 0.7]) for _ in range(4)], chance.randrange(STEPS)
        known = group("a", scores, version)
        for member, result in enumerate(known.scored):
            live.add(result)
            one = EpisodeRow(f"{number}/{member}", "train", f"g{number}", member, "t", "a", 1, "train", "trained")
            rows.append(dataclasses.replace(one, value=result.score, reward=result.reward, version_min=version))
        live.add_group(known)
        groups.append(GroupRow(f"g{number}", number, "a", 1, "closed"))
    rows.append(EpisodeRow("lost", "train", "g0", 9, "t", "a", 1, "train", "errored", cause="infrastructure"))
    chance.shuffle(rows)
    restored = statistics()
    restored.restore(rows, reversed(groups))
    assert restored.metrics() == live.metrics()
    assert len(live.metrics()) == 2


def make(family: str, seed: int):
    return dataclasses.replace(fake_desktop.square_task(seed), family=family, seed=seed)


def curriculum(uniform_share: float = 0.1) -> Curriculum:
    return Curriculum(["always", "never", "sometimes"], make, lambda n: 100 + n, uniform_share=uniform_share, seed=3)


def experienced() -> SuccessStatistics:
    it = statistics()
    for scores, family in (([1.0] * 4, "always"), ([0.0] * 4, "never"), ([0.0, 1.0, 0.0, 1.0], "sometimes")):
        for _ in range(10):
            for score in scores:
                it.add(episode(family, score))
            it.add_group(group(family, scores))
    return it


def test_families_are_drawn_in_proportion_to_their_signal():
    it, known = curriculum(), experienced()
    assert it.shares() == pytest.approx(dict.fromkeys(("always", "never", "sometimes"), 1 / 3))
    it.follow(known)
    signals = {family: known.signal(family) for family in it.families}
    expected = {family: 0.1 / 3 + 0.9 * signal / sum(signals.values()) for family, signal in signals.items()}
    assert it.shares() == pytest.approx(expected)
    assert expected["sometimes"] > 0.9
    drawn = [it(number).family for number in range(400)]
    assert drawn.count("sometimes") / 400 == pytest.approx(expected["sometimes"], abs=0.05)
    assert {"always", "never"} < set(drawn), "the uniform share lets them return"
    assert [it(number).seed for number in range(400)] == list(range(100, 500))


def test_an_opened_group_keeps_its_task_whatever_is_learned_later():
    it = curriculum()
    before = [it(number) for number in range(20)]
    resumed = curriculum()
    resumed.follow(
        experienced(), [GroupRow(str(n), n, task.family, task.seed, "open") for n, task in enumerate(before)]
    )
    assert [(task.family, task.seed) for task in map(resumed, range(20))] == [(t.family, t.seed) for t in before]
    with pytest.raises(ConfigError, match="group 0 was started with family gone, which is not trained any more"):
        resumed.follow(experienced(), [GroupRow("g", 0, "gone", 1, "queued")])


def test_the_probability_that_further_episodes_differ():
    it = experienced()
    assert it.would_differ("never", [0.0] * 4, 4) < 0.06
    assert it.would_differ("always", [1.0] * 4, 4) < 0.06
    assert it.would_differ("sometimes", [0.0] * 2, 2) > 0.3
    alpha, beta = it.posterior("never")
    worth = 4 / (alpha + beta)
    expected = 1 - all_equal_probability(worth * beta + 1, worth * alpha, 7)
    assert it.would_differ("never", [0.0], 7) == pytest.approx(expected)


def test_rewards_that_differ_without_success_keep_a_group_going():
    """Milestones: no episode succeeds, and every group differs. Compared with all places of one differing member."""
    it = statistics(size=4)
    for _ in range(10):
        failed = group("a", [0.0] * 4)
        failed.scored[0] = dataclasses.replace(failed.scored[0], reward=0.5)
        for result in failed.scored:
            it.add(result)
        it.add_group(failed)
    signal = it.signal("a")
    places = [signal / 4] * 4
    expected = sum(places[2:]) / (sum(places[2:]) + 1 - signal)
    assert it.would_differ("a", [0.0] * 2, 2) == pytest.approx(expected)
    assert expected > 0.7


def stopping(size: int = 6, **more) -> GroupBuffer:
    return GroupBuffer(fake_desktop.square_task, size=size, limit=1, stops=lambda group: len(group.scored) >= 2, **more)


def finish(it: GroupBuffer, request, reward: float | None):
    made = episode_results.result(reward, episode_id=request.episode_id)
    return it.finish(dataclasses.replace(made, group_id=request.group_id, member=request.member))


def take(it: GroupBuffer):
    found = it.next_request()
    assert found is not None
    return found[0]


def test_a_stopped_group_starts_no_more_members_and_scores_those_in_flight():
    it = stopping()
    first, second, third = (take(it) for _ in range(3))
    assert finish(it, first, 0.0) is None
    assert finish(it, second, 0.0) is None, "one is in flight"
    assert it.next_request() is None
    completed = finish(it, third, 0.0)
    assert completed is not None
    assert (completed.state, completed.num_stopped, len(completed.scored)) == ("closed", 3, 3)
    assert completed.errored == []


def test_a_member_in_flight_may_still_differ():
    it = stopping()
    first, second, third = (take(it) for _ in range(3))
    finish(it, first, 0.0)
    finish(it, second, 0.0)
    completed = finish(it, third, 1.0)
    assert completed is not None
    assert (completed.state, completed.rewards) == ("queued", [0.0, 0.0, 1.0])


def test_until_its_rewards_differ_a_group_has_two_members_in_flight_while_others_have_work():
    it = GroupBuffer(fake_desktop.square_task, size=4, limit=2, stops=lambda group: False, max_equal_in_flight=2)
    started = [take(it) for _ in range(4)]
    first, second = started[0].group_id, started[2].group_id
    assert [(each.group_id, each.member) for each in started] == [(first, 0), (first, 1), (second, 0), (second, 1)]
    assert (take(it).group_id, take(it).group_id) == (first, first), "no other work: no slot stays idle"
    finish(it, started[2], 0.0)
    third = take(it)
    assert (third.group_id, third.member) == (second, 2), "its rewards are equal: one for the one that ended"
    finish(it, started[3], 1.0)
    assert take(it).group_id == second
    assert it.next_request() is None


def test_an_outage_neither_stops_a_group_nor_reopens_a_stopped_one():
    it = stopping()
    first, second, third = (take(it) for _ in range(3))
    finish(it, first, None)
    finish(it, second, 0.0)
    assert take(it).member == 3, "one reward and one outage are not two equal rewards"
    finish(it, third, 0.0)
    completed = finish(it, dataclasses.replace(first, member=3), None)
    assert completed is not None
    assert completed.rewards == [0.0, 0.0]
    assert (len(completed.errored), completed.num_stopped) == (2, 3), "the lost member is not replaced"


def test_a_group_with_a_critic_or_different_rewards_never_stops():
    for more, rewards in (({"keep_zero_variance": True}, [0.0, 0.0]), ({}, [0.0, 1.0])):
        it = stopping(**more)
        for reward in rewards:
            finish(it, take(it), reward)
        assert take(it).member == 2


def test_a_stopped_group_stays_stopped_after_a_resume():
    it = stopping()
    members = [episode_results.result(0.0, episode_id=n, group_id="g", member=m) for m, n in enumerate("ab")]
    members = [dataclasses.replace(one, task_id=fake_desktop.square_task(0).id) for one in members]
    it.restore([("g", 0, "open", 3, members)], {"g": [2]})
    last = take(it)
    assert last.member == 2
    assert it.next_request() is None
    completed = finish(it, last, 0.0)
    assert completed is not None
    assert (completed.state, len(completed.scored)) == ("closed", 3)
