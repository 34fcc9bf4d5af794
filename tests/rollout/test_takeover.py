"""A person takes over an episode: the agent waits, the actions become a demonstration, and RL never trains on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import fake_desktop
import pytest
import training_fixture
from live_canvas import click, until
from person import do, playing
from takeover_stage import NOWHERE, Stage, open_stage

from deskhand.actions.ops import Done
from deskhand.agents.desktop_agent import AgentConfig
from deskhand.engines.takeover import TakeoverEngine
from deskhand.errors import AgentError, ConfigError
from deskhand.recipes.sft import load_demonstrations
from deskhand.rollout.groups import EpisodeRequest
from deskhand.rollout.live_episode import LiveEpisode, WatchedPool
from deskhand.rollout.run_writer import load_result
from deskhand.server.http_errors import HttpError
from deskhand.server.live_desktops import LiveDesktops
from deskhand.store.run import DEMONSTRATIONS, Run
from deskhand.tasks.outcome import Errored, Scored


@pytest.fixture
def run(tmp_path: Any) -> Iterator[Run]:
    with Run.create(tmp_path / "run", {}) as run:
        yield run


@pytest.fixture
async def stage(run: Run) -> AsyncIterator[Stage]:
    async with open_stage(run) as stage:
        yield stage


def request(**changes: Any) -> EpisodeRequest:
    return EpisodeRequest("e1", replace(fake_desktop.square_task(7), **changes), "g", 2)


async def square(live: LiveEpisode) -> tuple[int, int]:
    """Where the wanted square is."""
    assert live.desktop is not None
    target, _ = await live.request.task.first_click_targets(live.desktop)
    assert target is not None
    return target.center


async def test_the_agent_waits_and_the_persons_actions_become_a_demonstration(stage: Stage) -> None:
    episode = asyncio.create_task(stage.runner.run(request()))
    live = await playing(stage.pool)
    await stage.asked.wait()
    key = live.take_over()
    stage.may_reply.set()  # the call in flight is still the model's
    await until(lambda: live.facts()["waits_for_action"])
    assert live.facts()["step"] == 1
    assert live.state == "waiting for a person"
    await do(live, key, **click(await square(live)))
    await do(live, key, kind="done")
    result = await episode
    assert isinstance(result.outcome, Errored)
    assert (result.outcome.cause, result.reward) == ("taken_over", None)
    (row,) = stage.run.episodes(DEMONSTRATIONS)
    assert (row.state, row.value, row.group_id, row.split) == ("scored", 1.0, None, "train")
    kept = load_result(stage.run, row.id)
    assert kept.outcome == Scored(1.0, {"end_state": 1.0, "milestone: touched": 1.0}, False)
    assert kept.steps[0].text == NOWHERE
    assert list(kept.graph.untrained.values()) == ["human", "human"]


async def test_only_the_persons_replies_are_learned_and_none_by_rl(stage: Stage) -> None:
    episode = asyncio.create_task(stage.runner.run(request()))
    live = await playing(stage.pool)
    await stage.asked.wait()
    key = live.take_over()
    stage.may_reply.set()
    await do(live, key, **click(await square(live)))
    await do(live, key, kind="done")
    await episode
    (demonstration,) = load_demonstrations(stage.run)
    assert demonstration.source == f"a person in the run {stage.run.folder.name}"
    texts = []
    for row in demonstration.rows:
        learned = [token for token, is_target in zip(row.token_ids, row.target, strict=True) if is_target]
        texts += stage.renderer.text_of(tuple(learned)).split("<|im_end|>")
    steps = load_result(stage.run, demonstration.episode_id).steps
    assert [text for text in texts if text] == [steps[1].text, steps[2].text]
    graph = load_result(stage.run, demonstration.episode_id).graph
    assert all(set(one.call_ids) == {graph.ids[0]} for one in graph.sequences())


async def test_one_person_at_a_time_and_no_other_key(stage: Stage) -> None:
    episodes = [asyncio.create_task(stage.runner.run(replace(request(), episode_id=name))) for name in ("e1", "e2")]
    await playing(stage.pool)
    live, other = (stage.pool.desktops.find(name) for name in ("e1", "e2"))
    assert isinstance(live, LiveEpisode)
    assert isinstance(other, LiveEpisode)
    await until(lambda: not live.refusal() and not other.refusal())
    key, others = live.take_over(), other.take_over()
    with pytest.raises(HttpError, match="another page"):
        live.take_over()
    for wrong in ("", "x", others):
        with pytest.raises(HttpError, match="not that of this desktop") as refused:
            await live.act(wrong, {"kind": "done"})
        assert refused.value.status == 403
        with pytest.raises(HttpError):
            live.release(wrong)
    assert live.is_held
    live.release(key)
    other.release(others)
    with pytest.raises(HttpError):
        await live.act(key, {"kind": "done"})
    stage.may_reply.set()
    assert [result.outcome.value for result in await asyncio.gather(*episodes)] == [1.0, 1.0]  # type: ignore[union-attr]
    assert not stage.run.episodes(DEMONSTRATIONS)


async def test_the_model_continues_when_the_page_is_gone(stage: Stage) -> None:
    episode = asyncio.create_task(stage.runner.run(request()))
    live = await playing(stage.pool)
    live.idle_s = 0.3
    await stage.asked.wait()
    live.take_over()
    stage.may_reply.set()
    result = await episode
    assert isinstance(result.outcome, Scored)
    assert result.outcome.value == 1.0
    assert live.num_human_replies == 0


async def test_a_person_is_no_timeout_of_the_episode(stage: Stage) -> None:
    episode = asyncio.create_task(stage.runner.run(request(episode_timeout_s=2.0)))
    live = await playing(stage.pool)
    await stage.asked.wait()
    key = live.take_over()
    stage.may_reply.set()
    await until(lambda: live.facts()["waits_for_action"])
    await asyncio.sleep(2.5)  # longer than the limit
    await do(live, key, **click(await square(live)))
    await do(live, key, kind="done")
    result = await episode
    assert isinstance(result.outcome, Errored)
    assert result.outcome.cause == "taken_over"


async def test_what_cannot_be_a_reply_is_refused_and_the_person_may_try_again(stage: Stage) -> None:
    episode = asyncio.create_task(stage.runner.run(request()))
    live = await playing(stage.pool)
    await stage.asked.wait()
    key = live.take_over()
    stage.may_reply.set()
    await until(lambda: live.facts()["waits_for_action"])
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (AgentError, {"kind": "type", "text": "word " * 400}),
        (ConfigError, click((64, 2))),
        (ConfigError, {"kind": "run", "text": "x"}),
        (ConfigError, {}),
    ]
    for kind, event in wrong:
        with pytest.raises(kind):
            await live.act(key, event)
    assert live.facts()["waits_for_action"]
    await live.act(key, click(await square(live)))
    with pytest.raises(HttpError, match="still at its last step"):
        await live.act(key, {"kind": "done"})
    await do(live, key, kind="done")
    await episode
    assert stage.run.episodes(DEMONSTRATIONS)[0].value == 1.0


async def test_a_takeover_needs_an_agent_at_work_that_replies_in_an_action_format(stage: Stage) -> None:
    live = stage.pool.watch(request())
    assert live.state == "waiting for a desktop"
    with pytest.raises(HttpError, match="no agent is at work"):
        live.take_over()
    stage.pool.ended(live, None)

    class Own:
        async def run(self, episode: Any) -> None:
            await episode.observe()
            await stage.may_reply.wait()

    stage.runner.agent = Own()
    episode = asyncio.create_task(stage.runner.run(request()))
    live = await until(lambda: stage.pool.desktops._by_id.get("e1") and stage.pool.desktops.find("e1"))
    await until(lambda: live.context is not None and live.phase == "solve")
    with pytest.raises(HttpError, match="not recorded in an action format"):
        live.take_over()
    stage.may_reply.set()
    await episode


async def test_an_episode_for_a_person_alone_waits_until_one_comes(run: Run) -> None:
    async with open_stage(run, human_only=True) as stage:
        episode = asyncio.create_task(stage.runner.run(request()))
        live = await playing(stage.pool)
        await until(lambda: live.facts()["waits_for_action"])
        key = live.take_over()
        await do(live, key, **click(await square(live)))
        live.idle_s = 0.0  # its page was closed
        await until(lambda: not live.is_held)
        live.idle_s = 60.0
        key = live.take_over()
        await do(live, key, kind="done")
        await episode
    assert [row.value for row in run.episodes(DEMONSTRATIONS)] == [1.0]
    (demonstration,) = load_demonstrations(run)
    assert sum(sum(row.target) for row in demonstration.rows) > 0


async def test_the_wall_shows_task_state_step_and_the_last_reward(stage: Stage) -> None:
    episode = asyncio.create_task(stage.runner.run(request()))
    live = await playing(stage.pool)
    facts = live.facts()
    assert (facts["task"], facts["instruction"], facts["step"]) == (
        "painted/square/7", live.request.task.instruction, 0,
    )  # fmt: skip
    assert facts["state"] == "waiting for the model"
    stage.may_reply.set()
    await episode
    (tile,) = stage.pool.desktops._tiles
    assert tile.desktop is None
    assert tile.last == {"episode": "e1", "task": "painted/square/7", "reward": 1.0, "errored": ""}


class Writable(training_fixture.ChanceFormat):
    """The tests' format, in which a person's actions can be written, too."""

    @staticmethod
    def emit(ops: list[Any], view: object) -> str:
        (op,) = ops
        wanted = 0 if isinstance(op, Done) else 1 if op.point.x < fake_desktop.WIDTH // 2 else 2
        return next(text for text in map(str, range(99)) if crc32(text.encode()) % 3 == wanted)


async def test_training_replaces_what_a_person_played_and_all_episodes_are_accounted_for(tmp_path: Path) -> None:
    trained: list[str] = []
    config = training_fixture.small(total_steps=2, max_concurrent_episodes=2)
    async with training_fixture.assembled(
        tmp_path / "run", config, on_step=lambda step, ids: trained.extend(ids)
    ) as parts:
        renderer = parts.recorder.renderer
        parts.recorder.engine = TakeoverEngine(parts.engine, renderer.encode_text, renderer.end_id)
        parts.runner.agent = training_fixture.BabblingAgent(AgentConfig(max_new_tokens=3), action_format=Writable())
        # No model answers before the person takes over: what it said would decide the value of the demonstration.
        pool = parts.runner.pool = WatchedPool(parts.pool, LiveDesktops(), parts.run, human_only=True)  # type: ignore[arg-type]
        training = asyncio.create_task(parts.loop.run())
        live = await playing(pool)
        key = live.take_over()
        pool.human_only = False
        for tile in pool.desktops._tiles:
            if isinstance(tile.desktop, LiveEpisode):
                tile.desktop.human_only = False
        await do(live, key, **click(await square(live)))
        await do(live, key, kind="done")
        await training
        counts = parts.run.episode_counts()
        (demonstration,) = parts.run.episodes(DEMONSTRATIONS)
    assert counts["errored"]["taken_over"] == 1
    assert counts["trained"] >= 2 * 2 * 2
    assert demonstration.value == 1.0
    assert live.id not in trained
    assert demonstration.id not in trained
