"""Alarms say what was measured, why it is so and what to do; the canary ends a run that is blind and no other."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import episode_results
import fake_desktop
import pytest
import structlog.testing
import training_fixture
from patience import limit

from deskhand.actions.ops import Done, Wait
from deskhand.agents.desktop_agent import Transcript
from deskhand.config.loop import HealthConfig
from deskhand.errors import HealthError
from deskhand.recipes.health import Alert, HealthMetrics, find_alerts, no_signal_alert
from deskhand.recipes.step_report import StepAccumulator
from deskhand.rollout.groups import Group
from deskhand.tasks.task import seed_for

WELL = HealthMetrics(
    parse_rate=0.95,
    truncation_rate=0.01,
    zero_variance_share=0.4,
    unscored_share=0.0,
    reward=0.4,
    mismatch_kl_text=1e-6,
    mismatch_kl_images=1e-6,
    ratio_max=1.3,
    clip_fraction=0.05,
    dropped_fraction=0.0,
    gradient_norm=0.8,
    entropy=0.5,
    rejected=0,
    tokens=500,
    explained_variance=0.3,
    sight=0.8,
)
EARLIER = [WELL] * 6
SICK = {
    "parse_rate": (0.2, "agent.action_format"),
    "truncation_rate": (0.5, "agent.max_new_tokens"),
    "zero_variance_share": (0.95, "easier families"),
    "unscored_share": (0.5, "episode.unscored"),
    "mismatch_kl_text": (0.1, "benchmarks.exactness"),
    "mismatch_kl_images": (0.1, "one preprocessing"),
    "clip_fraction": (0.8, "trainer.learning_rate"),
    "ratio_max": (300.0, "trainer.dual_clip"),
    "dropped_fraction": (0.3, "loop.max_staleness"),
    "gradient_norm": (float("inf"), "float16"),
    "entropy": (1e-5, "clip_high"),
    "rejected": (2, "the step's record"),
    "explained_variance": (-0.5, "critic"),
    "sight": (0.0, "the engine gets the pictures"),
}


def test_a_run_that_is_well_raises_no_alarm():
    assert find_alerts(WELL, EARLIER, HealthConfig()) == []


def test_signs_that_were_not_measured_raise_no_alarm():
    names = ("parse_rate", "truncation_rate", "zero_variance_share", "unscored_share", "reward", "sight")
    names += ("mismatch_kl_text", "mismatch_kl_images")
    assert find_alerts(dataclasses.replace(WELL, **dict.fromkeys(names)), EARLIER, HealthConfig()) == []


@pytest.mark.parametrize("sign", SICK)
def test_each_sign_raises_its_own_alarm_and_says_the_mend(sign):
    value, mend = SICK[sign]
    (alarm,) = find_alerts(dataclasses.replace(WELL, **{sign: value}), EARLIER, HealthConfig())
    assert alarm.metric == sign
    assert alarm.value == value
    assert mend in alarm.hint
    assert "\n" not in alarm.line()
    assert alarm.line().startswith(sign)


@pytest.mark.parametrize(("sign", "value"), [("gradient_norm", 100.0), ("entropy", 3.0)])
def test_some_signs_are_judged_beside_earlier_steps_only(sign, value):
    sick = dataclasses.replace(WELL, **{sign: value})
    assert [alarm.metric for alarm in find_alerts(sick, EARLIER, HealthConfig())] == [sign]
    assert find_alerts(sick, EARLIER[:3], HealthConfig()) == []


def test_steps_whose_gradients_all_overflowed_are_no_measure_and_no_crash():
    overflowed = dataclasses.replace(WELL, gradient_norm=float("nan"))
    assert [alarm.metric for alarm in find_alerts(overflowed, [overflowed] * 6, HealthConfig())] == ["gradient_norm"]
    assert find_alerts(WELL, [overflowed] * 6, HealthConfig()) == []


def test_a_run_in_which_no_group_teaches_is_told_so_without_a_step():
    bounds = HealthConfig(no_signal_groups=4)
    assert no_signal_alert(3, 3, 0.0, bounds) is None, "too few to judge by"
    assert no_signal_alert(3, 4, 0.0, bounds) is None, "some of them teach"
    for count in (4, 8):
        alarm = no_signal_alert(count, count, 0.0, bounds)
        assert alarm is not None
        assert (alarm.metric, alarm.value) == ("zero_variance_share", 1.0)
        assert "easier families" in alarm.line()
    assert no_signal_alert(5, 5, 0.0, bounds) is None, "it is said once for so many groups"


def test_a_group_that_outages_emptied_is_not_one_of_equal_rewards():
    since = StepAccumulator()
    for rewards, group_state in (([0.0, 0.0], "closed"), ([1.0], "closed"), ([], "closed"), ([0.0, 1.0], "queued")):
        group = Group("g", 0, fake_desktop.square_task(seed_for("train", 0)), 2, 0, state=group_state)
        group.scored = [episode_results.result(reward) for reward in rewards]
        since.add(episode_results.result(0.0), group)
    assert (since.groups, since.zero_variance_groups) == (4, 1)


async def test_equal_rewards_without_end_raise_the_alarm_although_no_step_is_taken(tmp_path, monkeypatch):
    told: list[Alert] = []
    heard = asyncio.Event()
    monkeypatch.setattr(Group, "teaches", property(lambda self: False))
    health = HealthConfig(no_signal_groups=2, max_zero_variance_fraction=0.0)
    config = training_fixture.small(steps=1, groups_per_step=1, group_size=2, health=health)
    async with training_fixture.assembled(tmp_path / "run", config) as parts:
        parts.loop.alarmed = lambda alarm: (told.append(alarm), heard.set())
        with structlog.testing.capture_logs() as lines:
            work, hearing = asyncio.create_task(parts.loop.run()), asyncio.create_task(heard.wait())
            await asyncio.wait({work, hearing}, return_when=asyncio.FIRST_COMPLETED, timeout=limit(60))
            for task in (work, hearing):
                task.cancel()
            await asyncio.gather(work, hearing, return_exceptions=True)
        assert parts.trainer.steps == 0
    assert [alarm.metric for alarm in told][:1] == ["zero_variance_share"]
    assert [line["step"] for line in lines if line["event"] == "alarm"][:1] == [0]


async def test_a_task_that_pays_for_nothing_and_one_that_never_has_a_score_are_named_once(tmp_path):
    told: list[Alert] = []
    nothing = Transcript((episode_results.step(2, (Wait(1.0),)), episode_results.step(3, (Done(),))), "done")
    gave_up = dataclasses.replace(nothing, stopped="fail")
    async with training_fixture.assembled(tmp_path / "run", training_fixture.small(steps=1)) as parts:
        parts.loop.alarmed = told.append
        group = Group("g", 0, fake_desktop.square_task(seed_for("train", 0)), 2, 0)
        for transcript, reward in ((None, 1.0), (nothing, 0.5), (gave_up, 1.0)):
            changes = {"transcript": transcript} if transcript else {}
            parts.loop._when_ended(episode_results.result(reward, **changes), None)
        assert told == [], "something was done, or it was not solved, or the word counts that it cannot be done"
        for _ in range(2):
            parts.loop._when_ended(episode_results.result(1.0, transcript=nothing, family="os/1"), None)
        lost = Group("h", 1, group.task, 0, 0, state="closed")
        lost.unscored = ["a", "b"]
        for cause in ("cancelled", "evaluator", "evaluator"):
            parts.loop._when_ended(episode_results.result(None, cause=cause, family="os/2"), lost)
    assert [alarm.metric for alarm in told] == ["unearned", "unscored_share"]
    assert "os/1 was solved by an episode in which nothing was done" in told[0].line()
    assert "suite.exclude: [os/1]" in told[0].line()
    assert "all 2 episodes of a group of os/2 were left without a score; the last: it broke" in told[1].line()


def test_equal_rewards_mean_too_easy_or_too_hard():
    easy = dataclasses.replace(WELL, zero_variance_share=0.95, reward=0.97)
    assert "harder families" in find_alerts(easy, EARLIER, HealthConfig())[0].hint


async def test_every_step_records_its_vital_signs(tmp_path):
    async with training_fixture.assembled(
        tmp_path / "run", training_fixture.small(steps=2, groups_per_step=1, health=HealthConfig(vision_probe_every=1))
    ) as parts:
        with structlog.testing.capture_logs() as lines:
            await parts.loop.run()
        records = parts.run.metrics()
    assert len(records) == 2
    for record in records:
        vitals = record["vitals"]
        assert vitals.keys() == {field.name for field in dataclasses.fields(HealthMetrics)}
        assert vitals["parse_rate"] == 1.0, "this dialect understands every text"
        assert 0 <= vitals["truncation_rate"] <= 1
        assert vitals["unscored_share"] == 0
        assert 0 <= vitals["zero_variance_share"] <= 1
        assert vitals["mismatch_kl_text"] is None, "every episode begins with a picture"
        assert vitals["mismatch_kl_images"] is None or vitals["mismatch_kl_images"] < 1e-4
        assert vitals["entropy"] > 0
        assert vitals["sight"] > 0.01, "even random weights answer otherwise to another picture"
        raised = {alarm["sign"] for alarm in record["alarms"]}
        assert raised == {line["sign"] for line in lines if line["event"] == "alarm" and line["step"] == record["step"]}
    assert json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[0])["vitals"] == records[0]["vitals"]


async def test_a_blind_run_is_stopped_and_keeps_what_it_has(tmp_path):
    """The pictures are lost on the way into the model: its tower says the same of every one."""
    config = training_fixture.small(
        steps=50, groups_per_step=1, health=HealthConfig(vision_probe_every=1, max_failed_vision_probes=2)
    )
    async with training_fixture.assembled(tmp_path / "run", config) as parts:
        import torch

        with torch.no_grad():
            for name, parameter in parts.trainer.policy.model.model.visual.named_parameters():
                if "merger" in name:
                    parameter.zero_()
        parts.trainer.policy.model.model.visual.requires_grad_(False)
        with pytest.raises(HealthError, match="the model does not see: in the last 2 canaries"):
            await parts.loop.run()
        assert parts.run.checkpoint().step == 2
        assert parts.run.metrics()[-1]["vitals"]["sight"] == 0
        assert "sight" in {alarm["sign"] for alarm in parts.run.metrics()[-1]["alarms"]}
        assert not parts.pool.leased


async def test_a_run_that_was_interrupted_remembers_its_canaries(tmp_path):
    """One blind canary before the end of a process and one after it are two in a row."""
    import torch

    def blinded(parts):
        with torch.no_grad():
            for name, parameter in parts.trainer.policy.model.model.visual.named_parameters():
                if "merger" in name:
                    parameter.zero_()
        parts.trainer.policy.model.model.visual.requires_grad_(False)
        return parts.loop.run()

    health = HealthConfig(vision_probe_every=1, max_failed_vision_probes=2)
    async with training_fixture.assembled(
        tmp_path / "run", training_fixture.small(steps=1, groups_per_step=1, health=health)
    ) as parts:
        await blinded(parts)
    async with training_fixture.assembled(
        tmp_path / "run", training_fixture.small(steps=50, groups_per_step=1, health=health)
    ) as parts:
        with pytest.raises(HealthError, match="in the last 2 canaries"):
            await blinded(parts)
        assert parts.run.checkpoint().step == 2
