"""Health alerts state metric, cause and hint; the vision probe stops runs that ignore their images, and no others."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
from pathlib import Path

import episode_results
import fake_desktop
import pytest
import structlog.testing
import training_fixture
from patience import limit

from deskhand.actions.ops import Done, Wait
from deskhand.agents.episode_context import Transcript
from deskhand.config.loop import HealthConfig
from deskhand.errors import HealthError
from deskhand.recipes.health import check_probes, find_alerts, new_alerts, no_signal_alert, resolve_bounds
from deskhand.recipes.health_rules import RULES, Alert
from deskhand.recipes.step_report import StepAccumulator
from deskhand.rollout.groups import Group
from deskhand.tasks.task import seed_for

HEALTHY = {
    "replies/completed": 200,
    "groups/completed": 32,
    "episodes/completed": 128,
    "replies/parse_rate": 0.95,
    "replies/truncation_rate": 0.01,
    "groups/zero_variance_frac": 0.4,
    "episodes/errored_frac": 0.0,
    "reward/mean": 0.4,
    "train/engine_kl_text": 1e-6,
    "train/engine_kl_images": 1e-6,
    "train/ratio_max": 1.3,
    "train/clip_frac": 0.05,
    "train/masked_frac": 0.0,
    "train/grad_norm": 0.8,
    "train/entropy": 0.5,
    "train/num_rejected": 0,
    "train/num_tokens": 500,
    "train/explained_variance": 0.3,
    "train/num_updates": 1,
    "train/approx_kl": 1e-3,
    "train/importance_weight_mean": 1.0,
    "policy/image_sensitivity": 0.8,
    "policy/publish_kl": 1e-6,
    "episodes/stale_frac": 0.0,
    "groups/completed_total": 240,
    "groups/trained_total": 120,
    "groups/stale_total": 40,
    "groups/zero_variance_total": 80,
    "replies/mean_tokens": 20.0,
    "family/slow/completed_frac_total": 0.5,
    "family/slow/trained_frac_total": 0.45,
    "family/slow/stale_frac_total": 0.6,
    "family/slow/zero_variance_frac_total": 0.4,
}
EARLIER = [HEALTHY] * 6
BOUNDS = resolve_bounds(HealthConfig(), "vllm", "bfloat16", "token")
UNHEALTHY = {
    "replies/parse_rate": (0.2, "agent.action_format"),
    "replies/truncation_rate": (0.5, "agent.max_new_tokens"),
    "groups/zero_variance_frac": (0.95, "easier families"),
    "episodes/errored_frac": (0.5, "episode.errored"),
    "train/engine_kl_text": (0.1, "benchmarks.exactness"),
    "train/engine_kl_images": (0.1, "one image preprocessing"),
    "train/clip_frac": (0.8, "trainer.learning_rate"),
    "train/ratio_max": (300.0, "trainer.dual_clip"),
    "train/masked_frac": (0.3, "loop.max_staleness"),
    "train/grad_norm": (float("inf"), "float16"),
    "train/entropy": (1e-5, "trainer.clip_ratio_high"),
    "train/num_rejected": (2, "train/rejected/*"),
    "policy/image_sensitivity": (0.0, "the engine receives images"),
    "policy/publish_kl": (0.1, "adapter"),
    "train/num_updates": (0, "trainer.algorithm"),
    "train/approx_kl": (0.5, "loop.max_staleness"),
    "train/importance_weight_mean": (0.8, "benchmarks.exactness"),
    "replies/mean_tokens": (2.0, "agent.max_new_tokens"),
    "family/slow/trained_frac_total": (0.1, "suite.exclude: [slow]"),
    "family/slow/stale_frac_total": (0.9, "loop.max_staleness"),
}


def test_a_healthy_run_raises_no_alert():
    assert find_alerts(HEALTHY, EARLIER, BOUNDS) == []


def test_metrics_that_were_not_measured_raise_no_alert():
    unmeasured = ("replies/", "groups/", "episodes/", "reward/", "policy/", "train/engine_kl")
    measured = {name: value for name, value in HEALTHY.items() if not name.startswith(unmeasured)}
    assert find_alerts(measured, EARLIER, BOUNDS) == []


@pytest.mark.parametrize("metric", UNHEALTHY)
def test_each_metric_raises_its_own_alert_with_a_hint(metric):
    value, hint = UNHEALTHY[metric]
    (alert,) = find_alerts({**HEALTHY, metric: value}, EARLIER, BOUNDS)
    assert alert.metric == metric
    assert alert.value == value
    assert hint in alert.hint
    assert "\n" not in alert.line()
    assert alert.line().startswith(metric)


@pytest.mark.parametrize(("metric", "value"), [("train/grad_norm", 100.0), ("train/entropy", 3.0)])
def test_spikes_are_judged_against_earlier_steps_only(metric, value):
    metrics = {**HEALTHY, metric: value}
    assert [alert.metric for alert in find_alerts(metrics, EARLIER, BOUNDS)] == [metric]
    assert find_alerts(metrics, EARLIER[:3], BOUNDS) == []


@pytest.mark.parametrize(
    ("metric", "value", "hint"),
    [("episodes/stale_frac", 0.5, "loop.max_staleness"), ("train/explained_variance", -0.9, "critic")],
)
def test_noisy_metrics_are_judged_over_some_steps(metric, value, hint):
    wrong = {**HEALTHY, metric: value}
    assert find_alerts(wrong, EARLIER, BOUNDS) == [], "one step"
    (alert,) = find_alerts(wrong, [*EARLIER, *[wrong] * 4], BOUNDS)
    assert alert.metric == metric
    assert hint in alert.hint


def test_a_falling_reward_is_judged_against_its_best_past():
    noise = [0.02 * (-1) ** n for n in range(60)]
    steps = [{**HEALTHY, "reward/mean": 0.5 + each} for each in noise]
    assert not [
        find_alerts(steps[at], steps[:at], BOUNDS) for at in range(60) if find_alerts(steps[at], steps[:at], BOUNDS)
    ]
    falling = [{**HEALTHY, "reward/mean": 0.5 - 0.01 * n + each} for n, each in enumerate(noise[:40])]
    raised = [at for at in range(40) if find_alerts(falling[at], falling[:at], BOUNDS)]
    assert raised, "a reward that falls from 0.5 to 0.1 was not noticed"
    assert {alert.metric for at in raised for alert in find_alerts(falling[at], falling[:at], BOUNDS)} == {
        "reward/mean"
    }


def test_a_divergence_far_above_this_runs_own_past_is_an_alert_below_the_bound():
    quiet = {**HEALTHY, "train/engine_kl_images": 1e-8}
    (alert,) = find_alerts({**HEALTHY, "train/engine_kl_images": 1e-3}, [quiet] * 6, BOUNDS)
    assert alert.metric == "train/engine_kl_images"
    assert find_alerts({**HEALTHY, "train/engine_kl_images": 1e-5}, [quiet] * 6, BOUNDS) == [], (
        "a hundredth of the bound"
    )


def test_the_bound_on_the_divergence_follows_engine_and_dtype():
    exact = resolve_bounds(HealthConfig(), "hf", "float32", "token")
    assert exact.max_engine_kl_text == exact.max_engine_kl_images
    assert exact.max_engine_kl_text is not None
    assert exact.max_engine_kl_text <= 1e-6 < (BOUNDS.max_engine_kl_text or 0)
    own = resolve_bounds(HealthConfig(max_engine_kl_text=0.5), "hf", "float32", "token")
    assert own.max_engine_kl_text == 0.5


def test_publish_probes_that_fail_in_a_row_stop_the_run():
    bad, good = {"policy/publish_kl": 0.1}, {"policy/publish_kl": 1e-5}
    check_probes([bad, bad, good, bad, bad], 5, BOUNDS)
    with pytest.raises(HealthError, match="invariant published_weights"):
        check_probes([good, bad, bad, bad], 4, BOUNDS)


def test_steps_with_overflowed_gradients_are_no_baseline():
    overflowed = {**HEALTHY, "train/grad_norm": float("nan")}
    alerts = find_alerts(overflowed, [overflowed] * 6, BOUNDS)
    assert [alert.metric for alert in alerts] == ["train/grad_norm"]
    assert find_alerts(HEALTHY, [overflowed] * 6, BOUNDS) == []


def test_a_run_without_signal_is_reported_before_its_first_step():
    bounds = HealthConfig(no_signal_groups=4)
    assert no_signal_alert(3, 3, 0.0, bounds) is None, "too few groups to judge"
    assert no_signal_alert(3, 4, 0.0, bounds) is None, "some groups have a signal"
    for count in (4, 8):
        alert = no_signal_alert(count, count, 0.0, bounds)
        assert alert is not None
        assert (alert.metric, alert.value) == ("groups/zero_variance_frac", 1.0)
        assert "easier families" in alert.line()


async def test_groups_that_end_together_do_not_hide_a_run_without_signal(tmp_path):
    told: list[Alert] = []
    config = training_fixture.small(total_steps=1, health=HealthConfig(no_signal_groups=4))
    async with training_fixture.assembled(tmp_path / "run", config) as parts:
        alerts, since = parts.loop.source.alerts, parts.loop.source.since_step
        alerts.on_alert = told.append
        results = []
        for number in range(10):
            group = Group("g", number, fake_desktop.square_task(seed_for("train", number)), 2, 0, state="closed")
            group.scored = [episode_results.result(0.0), episode_results.result(0.0)]
            results.append((group.scored[1], group))
        for pair in (results[0:3], results[3:5], results[5:9]):  # 3, 5 and 9 groups when their results are judged
            for result, group in pair:
                since.add(result, group)
            for result, group in pair:
                alerts.episode_ended(result, group, since)
    assert [alert.rule for alert in told] == ["no_signal", "no_signal"]


def test_a_group_emptied_by_outages_is_not_counted_as_zero_variance():
    since = StepAccumulator()
    for rewards, group_state in (([0.0, 0.0], "closed"), ([1.0], "closed"), ([], "closed"), ([0.0, 1.0], "queued")):
        group = Group("g", 0, fake_desktop.square_task(seed_for("train", 0)), 2, 0, state=group_state)
        group.scored = [episode_results.result(reward) for reward in rewards]
        since.add(episode_results.result(0.0), group)
    assert (since.num_groups, since.num_zero_variance) == (4, 1)


def test_ratios_of_whole_replies_may_be_clipped_often():
    clipped = {**HEALTHY, "train/clip_frac": 0.9}
    whole = resolve_bounds(HealthConfig(), "vllm", "bfloat16", "reply")
    assert [alert.metric for alert in find_alerts(clipped, [], BOUNDS)] == ["train/clip_frac"]
    assert find_alerts(clipped, [], whole) == []


async def test_endless_zero_variance_raises_an_alert_without_a_step(tmp_path, monkeypatch):
    told: list[Alert] = []
    heard = asyncio.Event()
    monkeypatch.setattr(Group, "has_signal", property(lambda self: False))
    health = HealthConfig(no_signal_groups=2, max_zero_variance_fraction=0.0)
    config = training_fixture.small(total_steps=1, groups_per_step=1, group_size=2, health=health)
    async with training_fixture.assembled(tmp_path / "run", config) as parts:
        parts.loop.source.alerts.on_alert = lambda alert: (told.append(alert), heard.set())
        with structlog.testing.capture_logs() as lines:
            work, hearing = asyncio.create_task(parts.loop.run()), asyncio.create_task(heard.wait())
            await asyncio.wait({work, hearing}, return_when=asyncio.FIRST_COMPLETED, timeout=limit(60))
            for task in (work, hearing):
                task.cancel()
            await asyncio.gather(work, hearing, return_exceptions=True)
        assert parts.trainer.steps == 0
    assert [alert.metric for alert in told][:1] == ["groups/zero_variance_frac"]
    assert [line["step"] for line in lines if line["event"] == "health.alert"][:1] == [0]


async def test_tasks_solved_by_a_noop_or_never_scored_are_named_once(tmp_path):
    told: list[Alert] = []
    nothing = Transcript((episode_results.step(2, (Wait(1.0),)), episode_results.step(3, (Done(),))), "done")
    gave_up = dataclasses.replace(nothing, stop_reason="fail")
    async with training_fixture.assembled(tmp_path / "run", training_fixture.small(total_steps=1)) as parts:
        parts.loop.source.alerts.on_alert = told.append
        group = Group("g", 0, fake_desktop.square_task(seed_for("train", 0)), 2, 0)
        ended = functools.partial(parts.loop.source.alerts.episode_ended, since=parts.loop.source.since_step)
        for transcript, reward in ((None, 1.0), (nothing, 0.5), (gave_up, 1.0)):
            changes = {"transcript": transcript} if transcript else {}
            ended(episode_results.result(reward, **changes), None)
        assert told == [], "acted, not solved, or declared infeasible"
        for _ in range(2):
            ended(episode_results.result(1.0, transcript=nothing, family="os/1"), None)
        lost = Group("h", 1, group.task, 0, 0, state="closed")
        lost.errored = ["a", "b"]
        for cause in ("cancelled", "evaluator", "evaluator"):
            ended(episode_results.result(None, cause=cause, family="os/2"), lost)
    assert [alert.metric for alert in told] == ["tasks/solved_at_start", "episodes/errored_frac"]
    assert "os/1: a no-op episode scored 1" in told[0].line()
    assert "suite.exclude: [os/1]" in told[0].line()
    assert "os/2: all 2 episodes of a group errored; last error: it broke" in told[1].line()


@pytest.mark.parametrize(
    ("metric", "count", "usual", "wrong"),
    [
        ("groups/zero_variance_frac", "groups/completed", 0.2, 1.0),
        ("episodes/errored_frac", "episodes/completed", 0.0, 1.0),
        ("replies/truncation_rate", "replies/completed", 0.0, 1.0),
        ("replies/parse_rate", "replies/completed", 1.0, 0.0),
    ],
)
def test_fractions_of_a_few_are_judged_over_several_steps(metric, count, usual, wrong):
    """One small step is no evidence: a run of GSPO raised an alert when the only group since the last step had equal
    rewards."""
    small = {name: value for name, value in HEALTHY.items() if not name.endswith("/completed")}
    good, bad = ({**small, metric: value, count: 2} for value in (usual, wrong))
    assert find_alerts(bad, [], BOUNDS) == []
    assert find_alerts(bad, [good] * 30, BOUNDS) == []
    (alert,) = find_alerts(bad, [bad] * 30, BOUNDS)
    assert (alert.metric, alert.value) == (metric, wrong)
    assert find_alerts({**good, count: 0}, [bad] * 30, BOUNDS) == [], "nothing new ended"


def test_shares_of_families_are_judged_over_enough_groups_of_this_process():
    """A resumed run begins to count its groups anew, and open groups of a slow family say nothing."""
    wrong = {**HEALTHY, "family/slow/trained_frac_total": 0.0, "family/slow/stale_frac_total": 1.0}
    assert {alert.rule for alert in find_alerts(wrong, EARLIER, BOUNDS)} == {"family_trained", "family_stale"}
    few = {**wrong, "groups/trained_total": 8, "groups/stale_total": 4, "episodes/trained": 10_000}
    assert find_alerts(few, EARLIER, BOUNDS) == []
    equal = {**wrong, "family/slow/zero_variance_frac_total": 1.0, "family/slow/completed_frac_total": 80 / 240}
    assert {alert.rule for alert in find_alerts(equal, EARLIER, BOUNDS)} == {"family_stale"}, "it has no signal"


def test_a_step_that_trains_no_token_is_noticed():
    """All advantages are 0: then there is no token with a gradient, and no update."""
    idle = {**HEALTHY, "train/num_tokens": 0, "train/num_updates": 0, "train/entropy": 0.0, "train/grad_norm": 0.0}
    assert [alert.rule for alert in find_alerts(idle, EARLIER, BOUNDS)] == ["no_update"]


def test_the_docs_have_every_rule():
    lines = (Path(__file__).parents[2] / "docs" / "training.md").read_text().splitlines()
    expected = [f"| `{rule.name}` | `{rule.metric}` | {rule.raised} |" for rule in RULES.values()]
    start = lines.index("| alert | metric | raised if |") + 2
    end = next(at for at in range(start, len(lines)) if not lines[at].startswith("|"))
    assert lines[start:end] == expected, "\n".join(["docs/training.md: the table of the alerts is:", *expected])


def test_equal_rewards_mean_too_easy_or_too_hard():
    easy = {**HEALTHY, "groups/zero_variance_frac": 0.95, "reward/mean": 0.97}
    assert "harder families" in find_alerts(easy, EARLIER, BOUNDS)[0].hint


async def test_every_step_records_its_metrics_once(tmp_path):
    async with training_fixture.assembled(
        tmp_path / "run",
        training_fixture.small(total_steps=2, groups_per_step=1, health=HealthConfig(vision_probe_every=1)),
    ) as parts:
        with structlog.testing.capture_logs() as lines:
            await parts.loop.run()
        records = parts.run.metrics()
    assert len(records) == 2
    assert {"replies/parse_rate", "groups/zero_variance_frac", "episodes/errored_frac"} <= set().union(*records)
    for record in records:
        assert record["schema_version"] == 2
        assert not [name for name in record if "vitals" in name or isinstance(record[name], dict)]
        # A step may train groups that all ended before the step: then there is nothing to divide by.
        assert record.get("replies/parse_rate", 1.0) == 1.0, "this format parses every text"
        assert 0 <= record.get("replies/truncation_rate", 0.0) <= 1
        assert record.get("episodes/errored_frac", 0.0) == record["episodes/errored_frac_total"] == 0
        assert 0 <= record.get("groups/zero_variance_frac", 0.0) <= 1
        assert "train/engine_kl_text" not in record, "every episode starts with an image"
        assert record.get("train/engine_kl_images", 0.0) < 1e-4
        assert record["train/entropy"] > 0
        assert record["policy/image_sensitivity"] > 0.01, "even random weights react to another image"
        raised = {alert["metric"] for alert in record["alerts"]}
        alerts = [line for line in lines if line["event"] == "health.alert" and line["step"] == record["step"]]
        assert raised == {line["metric"] for line in alerts}
        finished = next(line for line in lines if line["event"] == "step.finished" and line["step"] == record["step"])
        assert finished["loss"] == record["train/loss"]
        assert finished["started"] >= finished["trained"] > 0
    assert json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[0]) == records[0]
    (counted,) = [line for line in lines if line["event"] == "episodes.counted"]
    assert counted["started"] == counted["trained"] + counted["queued"] + counted["zero_variance"] + counted[
        "stale"
    ] + (counted["errored_infrastructure"] + counted["errored_evaluator"] + counted["errored_cancelled"])


async def run_blinded(parts):
    """Train with a vision tower that returns equal features for every image."""
    visual = parts.trainer.policy.model.model.visual
    visual.requires_grad_(False)
    for name, parameter in visual.named_parameters():
        if "merger" in name:
            parameter.zero_()
    await parts.loop.run()


async def test_a_run_that_ignores_images_is_stopped_and_keeps_its_checkpoints(tmp_path):
    config = training_fixture.small(
        total_steps=50, groups_per_step=1, health=HealthConfig(vision_probe_every=1, max_failed_vision_probes=2)
    )
    async with training_fixture.assembled(tmp_path / "run", config) as parts:
        with pytest.raises(HealthError, match="the policy ignores its screenshots: in the last 2 vision probes"):
            await run_blinded(parts)
        assert parts.run.checkpoint().step == 2
        assert parts.run.metrics()[-1]["policy/image_sensitivity"] == 0
        assert "policy/image_sensitivity" in {alert["metric"] for alert in parts.run.metrics()[-1]["alerts"]}
        assert not parts.pool.leased


async def test_a_resumed_run_remembers_its_vision_probes(tmp_path):
    """A failed probe before a restart and one after it are two in a row."""
    health = HealthConfig(vision_probe_every=1, max_failed_vision_probes=2)
    async with training_fixture.assembled(
        tmp_path / "run", training_fixture.small(total_steps=1, groups_per_step=1, health=health)
    ) as parts:
        await run_blinded(parts)
    async with training_fixture.assembled(
        tmp_path / "run", training_fixture.small(total_steps=50, groups_per_step=1, health=health)
    ) as parts:
        with pytest.raises(HealthError, match="in the last 2 vision probes"):
            await run_blinded(parts)
        assert parts.run.checkpoint().step == 2


def test_an_alert_is_new_when_another_rule_raised_one_about_the_same_metric():
    """The bound of `engine_kl_images` is reported although its jump rule spoke at the step before."""

    def alert(rule: str) -> Alert:
        return Alert("train/engine_kl_images", 1.0, "", "", "", rule)

    jump, bound = alert("engine_kl_images_jump"), alert("engine_kl_images")
    assert new_alerts([jump, bound], [jump]) == [bound]
    assert new_alerts([jump], []) == [jump]
    assert new_alerts([bound], [bound]) == []
