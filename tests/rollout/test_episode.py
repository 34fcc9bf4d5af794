"""One episode through the whole recorder with a scripted policy, and who pays when something fails."""

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import fake_desktop
import openai
import pytest

from deskhand.actions.formats import deskhand_json
from deskhand.actions.ops import Click, Drag, Point, Scroll, Type, Wait, screen_px
from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.engines.scripted import ScriptedEngine
from deskhand.errors import (
    AgentError,
    DeliveryUnknown,
    EvaluatorError,
    FrameError,
    GuestFailure,
    InfrastructureError,
    ParseError,
)
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.server import create_app, in_process_client
from deskhand.rollout.episode import run_episode
from deskhand.rollout.groups import EpisodeRequest
from deskhand.rollout.runner import RecordedRunner
from deskhand.rollout.scored_workflow import ScoredWorkflow
from deskhand.store.frames import Frames
from deskhand.tasks.outcome import Errored, Scored
from deskhand.tasks.task import CheckResult


async def oracle(task, desktop):
    async for ops in task.oracle(desktop):
        yield deskhand_json.emit(ops)


def saying(*texts):
    async def script(task, desktop):
        for text in texts:
            yield text

    return script


@pytest.fixture
def stage(tokenizer, image_processor, tmp_path):
    """Makes a runner for a script and a pool."""
    renderer = ChatRenderer(tokenizer)
    engine = ScriptedEngine(lambda text: tokenizer.encode(text, add_special_tokens=False), renderer.stop_ids[0])
    frames = Frames(tmp_path / "frames")
    recorder = Recorder(renderer, engine, ImageCache(image_processor, fetch=frames.png))

    def make(script=oracle, pool=None):
        pool = pool or fake_desktop.PaintedPool(2)
        return RecordedRunner(pool, recorder, DesktopAgent(), frames, script=script, playing=engine.playing)

    yield make
    recorder.close()


def ticket(**changes):
    return EpisodeRequest("e1", replace(fake_desktop.square_task(7), **changes), "g", 2)


async def test_an_oracle_episode_is_solved_recorded_and_rewarded(stage):
    runner = stage()
    result = await runner.run(ticket())
    assert result.outcome == Scored(1.0, {"end_state": 1.0, "milestone: touched": 1.0}, False)
    assert (result.reward, result.success, result.first_click_on_target) == (1.0, True, True)
    assert result.transcript.stop_reason == "done"
    assert [call.text for call in result.graph.calls] == [step.text for step in result.transcript.steps]
    assert len(result.graph.sequences()) == 1, "the second call extends the first"
    assert set(result.seconds) == {"reset", "setup", "solve", "judge", "total", "model", "quota_wait"}
    assert (result.group_id, result.member, result.version_min, result.version_max) == ("g", 2, 0, 0)
    assert {step.frame_sha256 for step in result.transcript.steps} | {result.transcript.last_frame_sha256} == set(
        runner.frames
    )
    assert not runner.pool.leased


async def test_the_wrong_square_is_a_zero_with_its_terms(stage):
    task = fake_desktop.square_task(7)
    wrong = 187 if "red" in task.instruction else 687
    result = await stage(saying(f'{{"op":"click","x":{wrong},"y":800}}', '{"op":"done"}')).run(ticket())
    assert result.outcome == Scored(0.0, {"end_state": 0.0, "milestone: touched": 0.0}, False)
    assert (result.reward, result.first_click_on_target) == (0.0, False)
    assert result.reward_terms == {"final": 0.0, "milestones": 0.0, "baseline": 0.0}
    assert result.milestone_steps == {}


async def test_a_milestone_reached_on_the_way_still_counts_at_the_end(stage):
    async def script(task, desktop):
        async for ops in task.oracle(desktop):
            if len(ops) == 1 and not desktop.clicked:
                yield deskhand_json.emit(ops)
                break
        yield '{"op":"click","x":187,"y":800}' if "red" in task.instruction else '{"op":"click","x":687,"y":800}'
        yield '{"op":"done"}'

    result = await stage(script).run(ticket())
    assert result.outcome.value == 0.0
    assert result.reward == pytest.approx(0.4)
    assert result.first_click_on_target is True
    assert result.milestone_steps == {"touched": 0}, "the step after which it was reached, not the last one"


async def test_unparsable_replies_are_scored(stage):
    result = await stage(saying("a", "b", "c", "d")).run(ticket())
    assert isinstance(result.outcome, Scored)
    assert result.transcript.stop_reason == "too_many_errors"
    assert (result.reward, result.first_click_on_target) == (0.0, False)


async def test_a_task_that_has_ended_is_judged_without_a_further_reply(stage):
    async def is_clicked(desktop):
        return bool(desktop.clicked)

    result = await stage(saying('{"op":"wait","seconds":0.01}', '{"op":"click","x":687,"y":800}', "not asked for")).run(
        ticket(terminated=is_clicked)
    )
    assert (result.transcript.stop_reason, len(result.transcript.steps)) == ("terminated", 2)
    assert isinstance(result.outcome, Scored)
    ended = await stage().run(ticket(terminated=is_clicked))
    assert (ended.success, ended.transcript.stop_reason, len(ended.transcript.steps)) == (True, "terminated", 1)


async def test_the_format_penalty_is_subtracted_per_unparsable_reply(stage):
    async def script(task, desktop):
        yield "I click the square."
        yield "Like this!"
        async for ops in task.oracle(desktop):
            yield deskhand_json.emit(ops)

    result = await stage(script).run(ticket(format_penalty=0.05))
    assert result.success
    assert result.reward_terms["format"] == pytest.approx(-0.1)
    assert result.reward == pytest.approx(0.9)
    result = await stage(saying("a", "b", "c")).run(ticket(format_penalty=0.05))
    assert result.reward == pytest.approx(-0.15)
    assert (await stage(script).run(ticket())).reward == 1.0


async def test_the_step_cost_is_subtracted_per_step(stage):
    result = await stage().run(ticket(step_cost=0.01))
    assert result.reward_terms["steps"] == pytest.approx(-0.01 * len(result.transcript.steps))
    assert result.reward == pytest.approx(1.0 + result.reward_terms["steps"])
    assert "steps" not in (await stage().run(ticket())).reward_terms


async def test_an_end_state_that_cannot_be_saved_changes_no_outcome(stage, tmp_path):
    runner = stage()
    runner.end_states = tmp_path  # painted desktops have no files
    assert (await runner.run(ticket())).success
    assert list(tmp_path.glob("*.json")) == []


async def raises(error):
    raise error


@pytest.mark.parametrize(
    ("changes", "cause", "part"),
    [
        ({"check": lambda desktop: raises(KeyError("gone"))}, "evaluator", "gone"),
        ({"check": lambda desktop: raises(InfrastructureError("no disk"))}, "infrastructure", "no disk"),
        ({"check": lambda desktop: asyncio.sleep(0, CheckResult(float("nan")))}, "evaluator", "nan"),
        ({"setup": lambda desktop: raises(InfrastructureError("no window came"))}, "infrastructure", "no window came"),
        ({"setup": lambda desktop: raises(ValueError("a mistake"))}, "infrastructure", "a mistake"),
    ],
)
async def test_an_outage_is_never_a_zero(stage, changes, cause, part):
    runner = stage()
    result = await runner.run(ticket(**changes))
    assert isinstance(result.outcome, Errored)
    assert result.outcome.cause == cause
    assert part in result.outcome.message
    assert (result.reward, result.first_click_on_target, result.reward_terms) == (None, None, {})
    assert not runner.pool.leased
    assert (await runner.run(ticket())).episode_id == "e1", "the session was ended, so its name is free again"


async def test_calls_before_an_outage_stay_recorded(stage):
    result = await stage(pool=fake_desktop.PaintedPool(1, fail_at=1)).run(ticket())
    assert result.outcome == Errored("infrastructure", "painted desktop: told to fail")
    assert len(result.graph.calls) == 1


class Playing:
    """A custom agent, given as a function."""

    def __init__(self, run) -> None:
        self.run = run


async def played(run, *, fail_at=None, failure=GuestFailure, delay_s=0.0, timeout_s=None, **changes):
    desktop = fake_desktop.PaintedDesktop(fail_at=fail_at, failure=failure, delay_s=delay_s)
    return await run_episode(
        ticket(**changes), desktop, Playing(run), openai.AsyncOpenAI(api_key="none"), timeout_s=timeout_s
    )


async def solving(episode):
    for ops in await actions(fake_desktop.square_task(7)):
        await episode.observe()
        await episode.act(ops)


@pytest.mark.parametrize("error", [AgentError("off the screen"), ParseError((0, 3), "not JSON")])
@pytest.mark.parametrize("solved", [True, False])
async def test_an_agent_that_ends_with_its_own_error_is_scored_on_the_end_state(error, solved):
    async def run(episode):
        await episode.observe()
        if solved:
            await episode.act((await actions(fake_desktop.square_task(7)))[0])
        raise error

    result = await played(run, format_penalty=0.05)
    assert isinstance(result.outcome, Scored)
    assert result.outcome.value == float(solved)
    assert result.transcript.stop_reason == "too_many_errors"
    assert result.transcript.num_errors == 1
    assert result.reward_terms["format"] == pytest.approx(-0.05 * isinstance(error, ParseError))


async def test_an_agent_error_of_set_up_is_an_outage():
    result = await played(solving, setup=lambda desktop: raises(AgentError("a mistake of the task")))
    assert isinstance(result.outcome, Errored)


async def test_a_desktop_that_guests_broke_after_the_agent_acted_is_a_zero():
    result = await played(solving, fail_at=1)
    assert result.outcome == Scored(0.0, {"end_state": 0.0, "milestone: touched": 0.0})
    assert result.outcome.failed[0].read == "painted desktop: told to fail"
    assert result.reward == 0.0


@pytest.mark.parametrize(
    ("fail_at", "failure"), [(0, GuestFailure), (1, InfrastructureError), (1, DeliveryUnknown), (1, FrameError)]
)
async def test_a_failure_before_the_agent_acts_or_without_evidence_is_an_outage(fail_at, failure):
    result = await played(solving, fail_at=fail_at, failure=failure)
    assert result.outcome == Errored("infrastructure", "painted desktop: told to fail")


async def test_a_guest_that_fails_while_the_agent_only_looks_is_an_outage():
    async def run(episode):
        await episode.observe()
        raise GuestFailure("the application crashed")

    assert (await played(run)).outcome == Errored("infrastructure", "the application crashed")


async def test_an_agent_that_waits_until_the_time_limit_is_scored():
    async def run(episode):
        await solving(episode)
        while True:
            await episode.desktop.perform([Wait(0.2)], action_id=f"{time.monotonic()}")

    assert (await played(run, delay_s=0.2, timeout_s=1.5)).success


async def test_an_episode_that_is_too_long_for_another_reason_is_an_outage():
    async def run(episode):
        await solving(episode)
        await asyncio.sleep(60)

    result = await played(run, timeout_s=0.2)
    assert isinstance(result.outcome, Errored)
    assert "longer than 0.2 s" in result.outcome.message


async def test_a_step_that_asks_to_wait_beyond_its_limit_is_the_agents_error():
    async def run(episode):
        await episode.observe()
        await episode.act([Wait(5.0)])

    result = await played(run, step_timeout_s=2.0)
    assert isinstance(result.outcome, Scored)
    assert result.transcript.steps[0].error == "a step may take 2 s, and this one waits 5 s"


SPACE = screen_px(64, 48)
ZIGZAG = Drag(tuple(Point(60 * (index % 2), 0, SPACE) for index in range(64)))
SLOW = {"clicks": Click(count=5), "drags": ZIGZAG, "scrolls": Scroll(dy=100), "types": Type("x" * 500)}


@pytest.mark.parametrize("what", SLOW)
async def test_an_agent_that_spends_the_time_on_its_actions_is_scored(what):
    async def run(episode):
        await solving(episode)
        while True:
            await episode.desktop.perform([SLOW[what]] * 4, action_id=f"{time.monotonic()}")

    assert (await played(run, delay_s=0.5, timeout_s=1.5)).success

    async def at_once(episode):
        await episode.observe()
        await episode.act([SLOW[what]] * 64)

    result = await played(at_once, step_timeout_s=2.0)
    assert isinstance(result.outcome, Scored)
    assert "a step may take 2 s, and this one takes" in result.transcript.steps[0].error


async def test_an_engine_that_fails_is_an_outage(stage):
    result = await stage(saying('{"op":"screenshot"}')).run(ticket())
    assert isinstance(result.outcome, Errored)
    assert result.outcome.cause == "infrastructure"
    assert "no more replies" in result.outcome.message


async def test_canceling_releases_desktop_and_session(stage):
    started = asyncio.Event()

    async def script(task, desktop):
        started.set()
        await asyncio.sleep(60)
        yield ""

    runner = stage(script)
    running = asyncio.create_task(runner.run(ticket()))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not runner.pool.leased
    assert runner.recorder.open_session("e1")


async def test_the_agent_workflow_takes_areals_arguments_and_returns_a_float(stage, monkeypatch):
    runner = stage()
    key = runner.recorder.open_session("outside")
    http = in_process_client(create_app(runner.recorder, "k" * 32))

    @asynccontextmanager
    async def lease():
        yield fake_desktop.PaintedDesktop()

    async def breaks(desktop):
        raise KeyError("x")

    workflow = ScoredWorkflow(lease, lambda family, seed: fake_desktop.square_task(seed))
    said = [deskhand_json.emit(ops) for ops in await actions(fake_desktop.square_task(7))]
    with runner.recorder.engine.playing(saying(*said, *said)(None, None)):
        reward = await workflow.run(
            {"family": "square", "seed": 7}, base_url="http://recorder", api_key=key, http_client=http
        )
        assert type(reward) is float
        assert reward == 1.0
        workflow = ScoredWorkflow(lease, lambda family, seed: replace(fake_desktop.square_task(seed), check=breaks))
        monkeypatch.setenv("OPENAI_BASE_URL", "http://recorder")
        monkeypatch.setenv("OPENAI_API_KEY", key)
        with pytest.raises(EvaluatorError, match="painted/square/7: check raised KeyError"):
            await workflow.run({"family": "square", "seed": 7}, http_client=http)
    assert len(runner.recorder.close_session("outside").calls) == 4
    with pytest.raises(InfrastructureError):
        await workflow.run({"family": "square", "seed": 7}, base_url="http://127.0.0.1:9")


async def actions(task):
    desktop = fake_desktop.PaintedDesktop()
    await desktop.reset(fake_desktop.DesktopSpec("plain", task.width, task.height))
    await task.setup(desktop)
    return [ops async for ops in task.oracle(desktop)]


async def test_the_client_is_the_public_one_and_never_retries(stage):
    runner = stage()
    assert isinstance(runner.client, openai.AsyncOpenAI)
    assert runner.client.max_retries == 0


async def test_zoomed_images_are_recorded(stage):
    result = await stage(saying('{"op":"zoom","x":0,"y":0,"x2":500,"y2":500}', '{"op":"done"}')).run(ticket())
    assert result.transcript.num_errors == 0
    first, second = result.graph.calls
    assert [len(first.spans), len(second.spans)] == [1, 3], "the screen; then the screen twice and a part of it"
    assert second.spans[1].sha256 == result.transcript.steps[1].frame_sha256 != second.spans[2].sha256
