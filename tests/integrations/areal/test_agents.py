"""The plain agents without AReaL: any endpoint, settings alone inside, desktops given back with the event loop."""

from __future__ import annotations

import asyncio
import pickle
import secrets

import areal_models
import areal_workflows
import fake_desktop
import pytest
import torch
from fake_sglang import listening

from deskhand.config.schema import EngineConfig
from deskhand.engines.hf import HfEngine
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.integrations.areal import worker_errors
from deskhand.integrations.areal import worker_resources as places
from deskhand.integrations.areal.agent import OSWorldAgent, WAADesktopWorkflow
from deskhand.integrations.areal.settings import WorkflowSettings
from deskhand.models.load import load
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.server import create_app


class TimidPlainAgent(OSWorldAgent):
    def make_agent(self, place):
        config = place.agent(self.settings.agent.temperature).config
        return areal_workflows.TimidAgent(config, action_format=areal_workflows.TimidDialect())


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    """(address, key of a session of a recorder, the recorder, the checkpoint)."""
    torch.set_num_threads(1)
    source = areal_models.save_checkpoint(tmp_path_factory.mktemp("plain") / "model", "qwen3_vl")
    model = load(str(source))
    engine = HfEngine(model, EngineConfig(max_model_len=1024))
    recorder = Recorder(ChatRenderer(model.tokenizer), engine, ImageCache(model.image_processor))
    with listening(create_app(recorder, secrets.token_urlsafe(32))) as address:
        yield f"{address}/v1", recorder.open_session("episode"), recorder, source
    recorder.close()


def settings(endpoint, **changes):
    return {**areal_workflows.SETTINGS, "model": str(endpoint[3]), **changes}


def test_an_agent_returns_a_float_from_a_given_endpoint(endpoint, monkeypatch):
    address, key, recorder, _ = endpoint
    agent = pickle.loads(pickle.dumps(TimidPlainAgent(settings(endpoint))))
    reward = asyncio.run(agent.run({"seed": 1}, base_url=address, api_key=key))
    assert type(reward) is float
    assert reward in (0.0, 0.4, 1.0), "nothing, the right square among others, or it alone"
    calls = len(recorder.session(key).graph.calls)
    assert calls == areal_workflows.TURNS
    monkeypatch.setenv("OPENAI_BASE_URL", address)
    monkeypatch.setenv("OPENAI_API_KEY", key)
    asyncio.run(agent.run({"seed": 2}))
    assert len(recorder.session(key).graph.calls) == 2 * calls
    assert not places._resources


def test_an_outage_raises_and_is_no_reward(endpoint, monkeypatch):
    address, key, _, _ = endpoint
    monkeypatch.setattr(areal_workflows, "pool", lambda: painted_pool(fail_at=2))
    with pytest.raises(InfrastructureError, match="told to fail"):
        asyncio.run(TimidPlainAgent(settings(endpoint)).run({"seed": 1}, base_url=address, api_key=key))
    assert not places._resources


def test_a_score_between_outages_does_not_end_the_run(endpoint, monkeypatch, tmp_path):
    address, key, _, _ = endpoint
    told = settings(endpoint, episode_dir=str(tmp_path), max_errored_groups=1, loop={"group_size": 2})

    def lose():
        with monkeypatch.context() as patch:
            patch.setattr(areal_workflows, "pool", lambda: painted_pool(fail_at=2))
            with pytest.raises(InfrastructureError):
                asyncio.run(TimidPlainAgent(told).run({"seed": 1}, base_url=address, api_key=key))

    lose()
    asyncio.run(TimidPlainAgent(told).run({"seed": 1}, base_url=address, api_key=key))
    lose()
    assert worker_errors.first_error(tmp_path) is None
    lose()
    line = worker_errors.first_error(tmp_path)
    assert line is not None
    assert "2 consecutive episodes without a score; last error: " in line


def painted_pool(fail_at):
    class Pool(fake_desktop.PaintedPool):
        async def close(self):
            assert not self.leased

    return Pool(fail_at=fail_at)


def test_episodes_in_one_loop_share_resources_which_the_last_one_closes(endpoint):
    address, key, _, _ = endpoint

    async def several():
        agents = [TimidPlainAgent(settings(endpoint)) for _ in range(3)]
        work = [
            asyncio.ensure_future(agent.run({"seed": n}, base_url=address, api_key=key))
            for n, agent in enumerate(agents)
        ]
        await asyncio.sleep(0.2)
        shared = len(places._resources)
        await asyncio.gather(*work)
        return shared

    assert asyncio.run(several()) == 1
    assert not places._resources


def test_agents_of_windows_agent_arena_use_its_format_by_default():
    told = {"desktops": {"local": 1}}
    assert WAADesktopWorkflow(told).settings.agent.action_format == "waa_navi"
    assert (
        WAADesktopWorkflow({**told, "agent": {"action_format": "pyautogui"}}).settings.agent.action_format
        == "pyautogui"
    )


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ({}, "desktops"),
        ({"desktops": {}}, "server_url"),
        ({"desktops": {"local": 1, "server_url": "http://h:1"}}, "exactly one of"),
        ({"desktops": {"local": 1}, "groupsize": 2}, "groupsize"),
    ],
)
def test_wrong_settings_are_one_line_that_names_the_key(told, word):
    with pytest.raises(ConfigError, match=word) as caught:
        WorkflowSettings.of(told, {})
    assert "\n" not in str(caught.value)
