"""A run that was interrupted and resumed is the same run, bit for bit: weights, optimizer, tasks, samples.

One episode at a time and `max_staleness` 0, so that nothing depends on which episode ends first.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools

import fake_desktop
import pytest
import training_fixture

from deskhand.config.trainer import LoraConfig, PolicyConfig
from deskhand.errors import HealthError
from deskhand.recipes import training_loop
from deskhand.rollout.curriculum import Curriculum
from deskhand.rollout.run_writer import load_result
from deskhand.store.run import TRAIN, Run
from deskhand.tasks.checks.base import CheckResult
from deskhand.tasks.task import seed_for
from deskhand.trainer import checkpoint
from deskhand.trainer.checkpoint import CheckpointManager
from deskhand.trainer.policy import Policy

STEPS = 2
LORA = PolicyConfig(lora=LoraConfig(rank=4, alpha=16))


def config(steps: int = STEPS, **changes):
    one = {"groups_per_step": 2, "max_staleness": 0, "max_concurrent_episodes": 1}
    return training_fixture.small(total_steps=steps, **one, **changes)


def family_task(family: str, seed: int):
    """Two families; "hopeless" is never solved."""
    task = fake_desktop.square_task(seed)

    async def check(desktop):
        return CheckResult(0.0) if family == "hopeless" else await task.check(desktop)

    return dataclasses.replace(task, id=f"painted/{family}/{seed}", family=family, seed=seed, check=check)


def frontier():
    seeds = functools.partial(seed_for, "train")
    return Curriculum(["square", "hopeless"], family_task, seeds, uniform_share=0.1)


OPTIONS = {
    "ppo with minibatches": {"algorithm": "ppo", "settings": {"num_minibatches": 2}},
    "lora": {"policy": LORA, "settings": {"learning_rate": 1e-3}},
    "a teacher": {"settings": {"distillation": {"teacher": "TEACHER", "rl_loss_weight": 0.0}}},
}


async def train(folder, steps=STEPS, stop_after=None, loop=None, families=None, **options):
    """Train; with `stop_after`, cancel the run as a user does, when that step is reported."""
    if families is not None:
        options["make_task"] = families()

    def progress(report):
        if report.step == stop_after:
            work.cancel()

    async with training_fixture.assembled(folder, config(steps, **(loop or {})), progress=progress, **options) as parts:
        is_kept = parts.trainer.algorithm.uses_critic or parts.trainer.teacher is not None
        assert parts.loop.source.groups.keep_zero_variance == is_kept, "a critic or a teacher trains equal rewards"
        work = asyncio.create_task(parts.loop.run())
        try:
            await work
        except asyncio.CancelledError:
            assert stop_after is not None
        assert parts.trainer.steps == (stop_after or steps)
        return {
            f"{prefix}{name}/{key}": value.detach().clone()
            for prefix, parameters, optimizer in parts.trainer.parts()
            for name, parameter in parameters.items()
            for key, value in {"weight": parameter, **optimizer.state[parameter]}.items()
        }


def trained(folder):
    """(step, task, member, reward, sampled tokens and log-probs) of every trained episode."""
    with Run.open(folder, read_only=True) as run:
        rows = run.episodes(TRAIN, "trained")
        results = {row.id: load_result(run, row.id) for row in rows}
    return sorted(
        (
            row.step,
            row.task_id,
            row.member,
            row.reward,
            [(call.completion.token_ids, call.completion.logprobs) for call in results[row.id].graph.calls],
        )
        for row in rows
    )


@pytest.mark.parametrize("name", OPTIONS)
async def test_a_resumed_run_is_the_continuous_run_bit_for_bit(name, tmp_path):
    options = copy.deepcopy(OPTIONS[name])
    if "distillation" in options["settings"]:
        options["settings"]["distillation"]["teacher"] = str(training_fixture.checkpoint(tmp_path / "teacher", seed=1))
    continuous = await train(tmp_path / "continuous", **options)
    await train(tmp_path / "stopped", stop_after=1, **options)
    resumed = await train(tmp_path / "stopped", **options)
    assert trained(tmp_path / "stopped") == trained(tmp_path / "continuous")
    assert resumed.keys() == continuous.keys()
    assert not [key for key, value in continuous.items() if not value.equal(resumed[key])]


def own_variant(task, member):
    return family_task(task.family, task.seed + 100 * member)


@pytest.mark.parametrize("member_task", [None, own_variant])
async def test_curriculum_and_replay_are_resumed_bit_for_bit_with_groups_and_statistics(tmp_path, member_task):
    options = {"loop": {"early_stop_probability": 0.5, "replay_groups": 1}, "families": frontier, "steps": 3}
    options["member_task"] = member_task
    continuous = await train(tmp_path / "continuous", **options)
    await train(tmp_path / "stopped", stop_after=2, **options)
    resumed = await train(tmp_path / "stopped", **options)
    assert trained(tmp_path / "stopped") == trained(tmp_path / "continuous")
    assert not [key for key, value in continuous.items() if not value.equal(resumed[key])]
    groups, learned = [], []
    for name in ("continuous", "stopped"):
        with Run.open(tmp_path / name, read_only=True) as run:
            # Whether one more group is opened at the end depends on timing.
            groups.append([(group.number, group.family, group.seed) for group in run.groups("closed")])
            lines = run.metrics()
        ends = ("success_mean", "group_signal")
        learned.append([{key: line[key] for key in line if key.endswith(ends)} for line in lines])
        assert sum(line["groups/stopped_early"] for line in lines) > 0
        assert [line["episodes/replayed"] > 0 for line in lines] == [False, True, True]
        assert "train/replay_approx_kl" in lines[-1]
    assert groups[0] == groups[1]
    assert learned[0] == learned[1]
    last = learned[0][-1]
    if member_task is None:
        assert last["family/hopeless/success_mean"] < last["family/square/success_mean"]


async def test_members_that_a_stop_interrupted_run_again_with_their_seeds(tmp_path):
    await train(tmp_path / "run", stop_after=1)
    with Run.open(tmp_path / "run", read_only=True) as run:
        lost = [(row.task_id, row.member) for row in run.episodes(TRAIN, "errored")]
    assert lost, "the stop interrupted nothing"
    await train(tmp_path / "run", steps=2)
    with Run.open(tmp_path / "run", read_only=True) as run:
        again = {(row.task_id, row.member) for row in run.episodes(TRAIN) if row.state != "errored"}
    assert set(lost) <= again


async def test_an_engine_without_the_restored_weights_stops_the_resume(tmp_path, monkeypatch):
    await train(tmp_path / "run", steps=1)

    async def version_only(policy: Policy, engine, version, executor):
        await engine.update_weights(version, {"lm_head.weight": policy.snapshot()["lm_head.weight"]})

    monkeypatch.setattr(training_loop, "push_weights", version_only)
    with pytest.raises(HealthError, match="invariant published_weights: after the resume"):
        await train(tmp_path / "run", steps=2)


async def test_moments_that_are_not_the_stored_ones_stop_the_resume(tmp_path, monkeypatch):
    await train(tmp_path / "run", steps=1)
    monkeypatch.setattr(checkpoint, "_state_of", lambda *given: {})
    async with training_fixture.assembled(tmp_path / "run", config()) as parts:
        with pytest.raises(HealthError, match="invariant resumed_state: exp_avg"):
            CheckpointManager(tmp_path / "run" / "checkpoints").load(parts.trainer, 1)
