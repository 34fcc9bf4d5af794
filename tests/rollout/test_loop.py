"""The training loop on its smallest whole assembly: real recorder, engine and trainer, painted desktops."""

import asyncio
import collections
import dataclasses
import json
import threading

import fake_desktop
import numpy as np
import pytest
import training_fixture

from deskhand.algorithms.base import get_algorithm
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.recipes.samples import group_to_samples
from deskhand.rollout.groups import Group
from deskhand.rollout.run_writer import load_result
from deskhand.store.run import TRAIN, Run


def noting(threads, function):
    """The same function, which adds the threads that call it."""

    def run(*given, **named):
        threads.add(threading.current_thread())
        return function(*given, **named)

    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of three steps, and what its progress said."""
    folder = tmp_path_factory.mktemp("loop") / "run"
    said, pool, threads, released = [], fake_desktop.PaintedPool(3), set(), set()

    async def train():
        async with training_fixture.assembled(
            folder,
            training_fixture.small(),
            pool=pool,
            progress=said.append,
            on_step=lambda at, ids: threads.add(threading.current_thread()),
        ) as parts:
            for owner, name in ((parts.loop.checkpoints, "save"), (parts.trainer.policy, "snapshot")):
                setattr(owner, name, noting(threads, getattr(owner, name)))
            release = parts.loop.images.release
            parts.loop.images.release = lambda names: released.update(names) or release(names)
            await parts.loop.run()
            assert [thread.name for thread in threads] == ["trainer_0"], "each thread keeps the memory of a step"
            return parts.engine.version

    version = asyncio.run(train())
    with Run.open(folder) as run:
        rows = run.episodes(TRAIN, "trained")
        shown = {name for row in rows for name in load_result(run, row.id).graph.image_hashes}
        assert shown
        assert shown <= released, "the cache would keep the pixels of every episode"
        yield run, said, pool, version


async def test_every_requested_step_is_trained_and_its_weights_are_pushed(trained):
    run, said, _, version = trained
    assert [report.step for report in said] == [1, 2, 3]
    assert version == 3
    assert run.checkpoint().step == 3
    assert [json.loads(line)["step"] for line in (run.folder / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3]
    assert list((run.folder / "tensorboard").iterdir())


async def test_episode_counts_match_and_every_desktop_is_released(trained):
    run, said, pool, _ = trained
    counts, counted = run.episode_counts(), run.count_states()
    assert counts["in_flight"] == 0
    assert counts["started"] == sum(counted.values()) == len(run.episodes(TRAIN))
    assert counted["trained", None] == counts["trained"] > 0
    assert not pool.leased
    assert all(report.metrics["train/num_episodes"] for report in said)


PHASES = ("rollout_wait", "train_step", "vision_probe", "publish", "publish_probe", "checkpoint", "evaluation", "other")


async def test_the_parts_of_a_steps_time_add_up_and_tell_what_engine_and_desktops_did(trained):
    _, said, _, _ = trained
    for report in said:
        found = report.metrics
        assert sum(found.get(f"time/{phase}", 0.0) for phase in PHASES) == pytest.approx(found["time/step"])
        assert found["time/other"] > -1e-6
        assert 0 < found["perf/busy_slots_frac"] <= 1
        parts = [found[f"time/engine_{part}"] for part in ("vision", "prefill", "decode")]
        assert min(parts) >= 0
        assert sum(parts) > 0
        assert found["perf/engine_tokens_per_s"] > 0 < found["perf/trainer_tokens_per_s"]
        assert found["train/computed_tokens"] > found["train/num_tokens"] > 0
        assert 0 < found["memory/rss_mib"] <= found["memory/peak_mib_total"]
    sampled = sum(report.metrics["engine/decoded_tokens"] for report in said)
    assert sampled >= sum(report.metrics["train/num_tokens"] for report in said)


async def test_replies_that_were_not_performed_are_counted_by_kind(trained):
    run, said, _, _ = trained
    steps = [step for row in run.episodes(TRAIN, "trained") for step in load_result(run, row.id).transcript.steps]
    names = {
        "format": "replies/unparsed_frac",
        "action": "replies/rejected_frac",
        "truncated": "replies/truncation_rate",
    }
    assert {step.reply_error for step in steps} - {""} <= {
        kind for report in said for kind, name in names.items() if report.metrics[name]
    }
    assert all(0 <= sum(report.metrics[name] for name in names.values()) <= 1 for report in said)
    assert run.metrics() == [report.to_dict() for report in said]


async def test_trained_episodes_are_recorded_completely(trained):
    run, _, _, _ = trained
    rows = run.episodes(TRAIN, "trained")
    assert {row.step for row in rows} == {1, 2, 3}
    for row in rows:
        result = load_result(run, row.id)
        assert row.version_min >= row.step - 1 - 1, "older than max_staleness"
        assert result.reward == row.reward
        assert len(result.graph.calls) == len(result.transcript.steps)
        for step, call in zip(result.transcript.steps, result.graph.calls, strict=True):
            assert call.spans[-1].sha256 == step.frame_sha256
            assert run.frames.rgb(step.frame_sha256).shape == (fake_desktop.HEIGHT, fake_desktop.WIDTH, 3)


async def test_a_groups_mean_is_over_all_its_scored_members_and_stale_ones_give_no_rows(trained):
    run, _, _, _ = trained
    name = run.episodes(TRAIN, "trained")[0].group_id
    members = [load_result(run, row.id) for row in run.episodes(TRAIN, "trained", name)]
    group = Group(name, 0, fake_desktop.square_task(0), 4, 0, scored=members)
    samples = group_to_samples(group, get_algorithm("dr_grpo"), lambda result: result is not members[0])
    assert {sample.episode_id for sample in samples} == {result.episode_id for result in members[1:]}
    advantages = {sample.episode_id: sample.advantage for sample in samples}
    mean = np.mean([result.reward for result in members])
    assert all(advantages[result.episode_id] == pytest.approx(result.reward - mean) for result in members[1:])


async def test_slow_tasks_are_trained_as_often_as_they_are_started(tmp_path):
    """A quarter of the tasks takes more than four times as long."""
    said = []
    config = training_fixture.small(total_steps=24, group_size=2, max_concurrent_episodes=8, save_every=50)
    pool = fake_desktop.PaintedPool(8)
    async with training_fixture.assembled(
        tmp_path / "run", config, pool=pool, progress=said.append, algorithm="ppo"
    ) as parts:
        groups = parts.loop.source.groups
        plain = groups.make_task

        def mixed(number):
            task, slow = plain(number), number % 4 == 0

            async def setup(desktop):
                desktop.delay_s = 0.8 if slow else 0.0
                await task.setup(desktop)

            return dataclasses.replace(task, setup=setup, family="slow" if slow else "fast")

        groups.make_task = mixed
        await parts.loop.run()
        shares = said[-1].metrics
        trained, started = (shares[f"family/slow/{name}_frac_total"] for name in ("trained", "started"))
        print(
            f"share of the slow family: {100 * started:.1f} % of started groups, {100 * trained:.1f} % of trained ones"
        )
        assert trained == pytest.approx(started, rel=0.1)
        states = collections.Counter((row.family, row.state) for row in parts.run.episodes(TRAIN))
        assert states["slow", "stale"] == states["fast", "stale"] == 0
        assert states["slow", "trained"] == pytest.approx(24 * 2 * 2 / 4, abs=2)


async def test_nothing_but_outages_ends_the_run_with_one_line(tmp_path):
    pool = fake_desktop.PaintedPool(3, fail_at=0)
    async with training_fixture.assembled(tmp_path / "run", training_fixture.small(), pool=pool) as parts:
        with pytest.raises(
            InfrastructureError, match="consecutive episodes failed; last error: painted desktop: told to fail"
        ):
            await parts.loop.run()
        counts = parts.run.episode_counts()
        assert counts["trained"] == counts["queued"] == 0
        assert counts["errored"]["infrastructure"] >= 9
        assert not pool.leased


async def test_a_canceled_run_keeps_ended_episodes_and_resumes(tmp_path):
    folder, said = tmp_path / "run", []
    stopping = asyncio.Event()

    def progress(report):
        said.append(report.step)
        if report.step == 2:
            stopping.set()

    config = training_fixture.small(total_steps=50)
    async with training_fixture.assembled(folder, config, progress=progress) as parts:
        work = asyncio.create_task(parts.loop.run())
        await stopping.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert not parts.pool.leased
        counts = parts.run.episode_counts()
        assert counts["in_flight"] == 0
        assert counts["errored"]["cancelled"] > 0
        at = parts.run.checkpoint().step
        unfinished = {group.id for group in parts.run.groups() if group.state != "closed"}
        assert unfinished
    async with training_fixture.assembled(
        folder, training_fixture.small(total_steps=at + 1), progress=progress
    ) as parts:
        await parts.loop.run()
        assert parts.run.episode_counts()["started"] > counts["started"]
        assert said[-1] == at + 1
        left = {group.id for group in parts.run.groups() if group.state != "closed"}
        assert left == set(parts.loop.source.groups.live), "a group of the earlier process was forgotten"


async def test_two_processes_cannot_train_one_run(tmp_path):
    with Run.create(tmp_path / "run", {}), pytest.raises(ConfigError, match="in use"):
        Run.open(tmp_path / "run")
