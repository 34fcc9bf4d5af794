"""Groups: closing, masking, refilling, the bound."""

import dataclasses

import episode_results
import fake_desktop
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deskhand.errors import ConfigError
from deskhand.rollout.groups import GroupBuffer
from deskhand.tasks.outcome import Errored


def groups(size: int = 3, limit: int = 2, **more) -> GroupBuffer:
    return GroupBuffer(fake_desktop.square_task, size=size, limit=limit, **more)


def finished(request, reward):
    made = episode_results.result(reward, episode_id=request.episode_id)
    return dataclasses.replace(made, group_id=request.group_id, member=request.member)


def take(it: GroupBuffer):
    found = it.next_request()
    assert found is not None
    return found[0]


def test_a_group_closes_when_every_member_is_final_and_only_then():
    it = groups(size=3, limit=1)
    requests = [take(it) for _ in range(3)]
    assert it.next_request() is None
    assert len({request.group_id for request in requests}) == 1
    assert it.finish(finished(requests[0], 1.0)) is None
    assert it.finish(finished(requests[2], 0.0)) is None
    closed = it.finish(finished(requests[1], 0.0))
    assert closed is not None
    assert closed.state == "queued"
    assert it.next_request() is None, "a queued group counts against the bound"
    it.remove([closed])
    assert take(it).group_id != closed.id


def test_groups_of_equal_rewards_close_and_make_room():
    it = groups(size=2, limit=1)
    first, second = take(it), take(it)
    it.finish(finished(first, 0.5))
    closed = it.finish(finished(second, 0.5))
    assert closed is not None
    assert closed.state == "closed"
    assert take(it).task.seed == first.task.seed + 1


def test_an_errored_member_is_replaced_a_bounded_number_of_times():
    it = groups(size=2, limit=1, max_retries=2)
    scored = take(it)
    it.finish(finished(scored, 1.0))
    for _ in range(3):
        lost = take(it)
        assert lost.task.id == scored.task.id
        closed = it.finish(finished(lost, None))
    assert closed is not None
    assert closed.state == "closed", "one scored member has nothing to be compared with"
    assert len(closed.errored) == 3


@given(st.integers(2, 4), st.integers(1, 3), st.lists(st.sampled_from([0.0, 1.0, None]), max_size=80), st.randoms())
def test_the_bound_holds_and_no_member_is_counted_twice(size, limit, rewards, chance):
    it = groups(size=size, limit=limit)
    flying, ended = [], []
    for reward in rewards:
        while (found := it.next_request()) is not None:
            flying.append(found[0])
        assert len(it.live) <= limit
        if not flying:
            it.remove(it.queued()[:1])
            continue
        request = flying.pop(chance.randrange(len(flying)))
        closed = it.finish(finished(request, reward))
        if closed is not None:
            ended += [result.episode_id for result in closed.scored] + closed.errored
            assert not any(other.group_id == closed.id for other in flying)
            assert len(closed.scored) == size or len(closed.errored) > size
    assert len(ended) == len(set(ended))


def test_restored_groups_resume():
    members = [
        episode_results.result(1.0, episode_id="a", group_id="g", member=0, task_id=fake_desktop.square_task(0).id),
        episode_results.result(0.0, episode_id="b", group_id="g", member=4, task_id=fake_desktop.square_task(0).id),
    ]
    it = groups(size=3, limit=2)
    it.restore([("w", 1, "queued", 0, []), ("g", 0, "open", 5, members)])
    assert [group.id for group in it.live.values()] == ["g", "w"]
    request = take(it)
    assert (request.group_id, request.member) == ("g", 5)
    assert it.next_request() is None
    assert it.next_number == 2
    closed = it.finish(finished(request, 1.0))
    assert closed is not None
    assert closed.rewards == [1.0, 0.0, 1.0]


def test_a_restored_group_that_is_larger_than_groups_are_now_still_closes():
    """Else it would count against the bound for ever, and the run would wait for it."""
    task = fake_desktop.square_task(0)
    members = [
        episode_results.result(float(n % 2), episode_id=str(n), group_id="g", member=n, task_id=task.id)
        for n in range(4)
    ]
    for size in (2, 4):
        it = groups(size=size, limit=1)
        it.restore([("g", 0, "open", 4, members)])
        request = take(it)
        assert (request.group_id, request.member) == ("g", 4)
        assert it.next_request() is None
        closed = it.finish(finished(request, 1.0))
        assert closed is not None
        assert closed.state == "queued"
        assert len(closed.scored) == 5


def test_a_restored_group_of_another_task_is_refused():
    members = [
        episode_results.result(1.0, episode_id="a", group_id="g", member=0, task_id=fake_desktop.square_task(9).id)
    ]
    with pytest.raises(
        ConfigError, match=r"group 3 was started with task painted/square/9, now it is painted/square/3; resume with"
    ):
        groups(size=2).restore([("g", 3, "open", 1, members)])
    groups(size=2).restore([("g", 3, "queued", 2, members)])


@given(
    st.integers(1, 4),
    st.integers(0, 3),
    st.lists(st.integers(0, 11), min_size=12, max_size=12),
    st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=50)
def test_no_group_becomes_too_old_and_every_one_is_trained(count, staleness, durations, rng):
    """In each round a group may end, some after many; a step is taken whenever the buffer gives a batch."""
    step, trained, ends = 0, [], {}
    it = groups(size=1, limit=(staleness + 1) * count, keep_zero_variance=True, current_step=lambda: step)
    for now in range(800):
        while len(trained) + len(it.live) < 60 and (found := it.next_request()) is not None:
            ends[found[0].episode_id] = (now + durations[len(ends) % 12], found[0])
        for name, (end, request) in sorted(ends.items(), key=lambda _: rng.random()):
            if end <= now:
                it.finish(finished(request, 1.0))
                ends.pop(name)
        while (batch := it.next_batch(count, step, staleness)) is not None:
            assert all(step - group.opened_step <= staleness for group in batch)
            it.remove(batch)
            trained += batch
            step += 1
    assert len(trained) >= 60 - (staleness + 1) * count, "it never waits for ever"
    assert sorted(group.number for group in trained)[: len(trained) // 2] == list(range(len(trained) // 2))


def test_young_groups_overtake_a_slow_one_only_while_it_stays_young_enough():
    step = 0
    it = groups(size=1, limit=4, keep_zero_variance=True, current_step=lambda: step)
    slow, *fast = [take(it) for _ in range(4)]
    for request in fast:
        it.finish(finished(request, 1.0))
    batch = it.next_batch(2, step, 1)
    assert [group.number for group in batch] == [1, 2]
    it.remove(batch)
    step = 1
    for _ in range(2):
        it.finish(finished(take(it), 1.0))
    assert it.next_batch(2, step, 1) is None, "the slow group would be two steps old"
    it.finish(finished(slow, 1.0))
    assert [group.number for group in it.next_batch(2, step, 1)] == [0, 3]


def own_variant(task, member):
    return fake_desktop.square_task(task.seed + 100 * member)


def test_members_of_a_family_group_have_tasks_of_their_own():
    it = groups(size=3, limit=1, member_task=own_variant)
    requests = [take(it) for _ in range(3)]
    assert [request.task.seed for request in requests] == [0, 100, 200]
    assert len({request.group_id for request in requests}) == 1
    assert len({request.seed for request in requests}) == 3
    lost = dataclasses.replace(finished(requests[1], 0.0), outcome=Errored("already_solved", "x"))
    it.finish(lost)
    assert take(it).task.seed == 300, "another variant may start unsolved"


def test_a_restored_family_group_goes_on_with_its_own_variants():
    members = [
        episode_results.result(
            float(n), episode_id=str(n), group_id="g", member=n, task_id=fake_desktop.square_task(100 * n).id
        )
        for n in range(2)
    ]
    it = groups(size=4, limit=1, member_task=own_variant)
    it.restore([("g", 0, "open", 3, members)], {"g": [2]})
    assert [take(it).task.seed for _ in range(2)] == [200, 300]
    with pytest.raises(ConfigError, match=r"loop\.group_by"):
        groups(size=4).restore([("g", 0, "open", 2, members)])
