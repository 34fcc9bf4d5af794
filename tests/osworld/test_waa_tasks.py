"""Windows Agent Arena and OpenAdapt tasks, from set-up to reward."""

from __future__ import annotations

import json

import pytest
from fake_waa import FakeEvaluate, FakeWaa
from serving import on_a_port
from task_files import SHARED

from deskhand.actions.ops import Done, Type
from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.desktop.remote.screenshots import ScreenPolling
from deskhand.desktop.remote.waa_desktop import WaaDesktop
from deskhand.desktop.remote.waa_server import WaaEvaluatorClient
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.integrations.openadapt.vagen_env import VagenDesktopEnv
from deskhand.rollout.episode import run_episode
from deskhand.rollout.groups import EpisodeRequest
from deskhand.tasks.formats import waa
from deskhand.tasks.formats.openadapt import load_task
from deskhand.tasks.formats.waa import task_of
from deskhand.tasks.outcome import Errored, Scored

TIMES = RemoteTimeouts(connect_s=2, read_s=5, max_attempts=3, initial_backoff_s=0.01)
LOOKING = ScreenPolling(pause_s=0.0, max_screenshots=1)
NOTES = """\
name: Write hello in the editor
id: notes
max_steps: 3
setup:
  - launch: notepad
milestones:
  - {name: editor is open, check: command, run: tasklist, expect: notepad, match: contains}
  - {name: text is there, check: command, run: show-text, expect: "hello, wörld"}
evaluate:
  - {check: command, run: show-text, expect: "^hello, w.rld$", match: regex}
  - {check: file, path: "C:\\\\Users\\\\Docker\\\\Desktop\\\\junk.txt", exists: false}
"""


class Machine:
    """A fake of WAA's two servers, and our desktop on it."""

    def __init__(self, tmp_path) -> None:
        self.fake = FakeWaa(tmp_path)
        self.evaluate = FakeEvaluate(self.fake.guest)
        guest = self.fake.guest
        guest.commands = {"tasklist": lambda: "\n".join(guest.windows), "show-text": lambda: guest.text}
        close = self.fake.close_all

        async def close_all(request):
            guest.text = ""
            return await close(request)

        self.fake.close_all = close_all
        self.fake.app = type(self.fake.app)(routes=self.fake.routes())


class Replies:
    """An agent that performs fixed ops."""

    def __init__(self, *steps) -> None:
        self.steps = steps

    async def run(self, episode):
        await episode.observe()
        for ops in self.steps:
            await episode.act(ops)


async def test_a_task_with_command_milestones_scores_end_to_end(tmp_path):
    file = tmp_path / "notes.yaml"
    file.write_text(NOTES, encoding="utf-8")
    task = load_task(file, 320, 240)
    machine = Machine(tmp_path / "vm")
    async with on_a_port(machine.fake.app) as address:
        rewards = []
        for steps in ((), ([Type("hello")],), ([Type("hello, ")], [Type("wörld"), Done()])):
            desktop = WaaDesktop(RetryingClient(address, timeouts=TIMES), polling=LOOKING, ready_s=5)
            result = await run_episode(EpisodeRequest("e", task), desktop, Replies(*steps), None)  # type: ignore[arg-type]
            assert isinstance(result.outcome, Scored), result.outcome
            assert result.outcome.guest_trusted
            rewards.append((result.outcome.value, result.reward_terms["milestones"], result.reward))
            await desktop.close()
        assert rewards[0] == (0.0, 0.5, 0.0), "what the start state is worth earns nothing"
        assert rewards[1] == (0.0, 0.5, 0.0)
        assert rewards[2] == (1.0, 1.0, 1.0)
        windows = [body for body in machine.fake.requests if body[1] == "/execute_windows"]
        assert windows, "actions go to /execute_windows"
        machine.fake.running.clear()
        desktop = WaaDesktop(
            RetryingClient(address, timeouts=RemoteTimeouts(read_s=0.2, max_attempts=1)), polling=LOOKING, ready_s=0.5
        )
        lost = await run_episode(EpisodeRequest("e", task), desktop, Replies(), None)  # type: ignore[arg-type]
        assert isinstance(lost.outcome, Errored)
        assert lost.reward is None
        await desktop.close()
        machine.fake.running.set()


async def test_a_waa_file_is_set_up_and_scored_by_the_evaluate_server(tmp_path):
    document = {
        "id": "a-wos", "snapshot": "s", "instruction": "Write yes into a.txt", "source": "x",
        "related_apps": ["notepad"],
        "config": [{"type": "launch", "parameters": {"command": "notepad"}}],
        "evaluator": {"func": "exact_match",
                      "result": {"type": "vm_file", "path": "C:\\Users\\Docker\\a.txt", "dest": "a.txt"},
                      "expected": {"type": "rule", "rules": {"expected": "yes"}}},
    }  # fmt: skip
    file = tmp_path / "a.json"
    file.write_text(json.dumps(document))
    machine = Machine(tmp_path / "vm")
    async with on_a_port(machine.fake.app) as address, on_a_port(machine.evaluate.app) as judge_address:
        evaluator = WaaEvaluatorClient(RetryingClient(judge_address, timeouts=TIMES))
        task = task_of(waa.load(file), lambda _: evaluator, 320, 240)
        desktop = WaaDesktop(RetryingClient(address, timeouts=TIMES), polling=LOOKING, ready_s=5)
        result = await run_episode(EpisodeRequest("e", task), desktop, Replies(), None)  # type: ignore[arg-type]
        assert isinstance(result.outcome, Scored)
        assert result.outcome.value == 0.0
        assert machine.evaluate.asked[0] == document, "the whole file is judged, as it was written"

        class Writer:
            async def run(self, episode):
                await episode.desktop.push("C:\\Users\\Docker\\a.txt", b"yes")

        result = await run_episode(EpisodeRequest("e", task), desktop, Writer(), None)  # type: ignore[arg-type]
        assert result.reward == 1.0
        machine.evaluate.broken = True
        result = await run_episode(EpisodeRequest("e", task), desktop, Replies(), None)  # type: ignore[arg-type]
        assert isinstance(result.outcome, Errored)
        assert result.outcome.cause == "evaluator"
        await desktop.close()
        await evaluator.client.close()


def test_tasks_that_cannot_be_scored_are_rejected_at_load(tmp_path):
    for fix, check in (
        ("set DESKHAND_JUDGE_BASE_URL", "{check: screenshot, description: a red circle}"),
        ("suite.allow_python_checks", "{check: python, code: pass}"),
    ):
        file = tmp_path / "a.yaml"
        file.write_text(f"name: a\nevaluate:\n  - {check}\n")
        with pytest.raises(ConfigError, match=fix):
            load_task(file, 320, 240)
    infeasible = tmp_path / "b.json"
    infeasible.write_text(json.dumps({"id": "b-wos", "instruction": "no", "evaluator": {"func": "infeasible"}}))
    with pytest.raises(ConfigError, match="infeasible tasks are not supported"):
        task_of(waa.load(infeasible), None, 320, 240)  # type: ignore[arg-type]


def test_two_files_with_one_id_are_two_tasks(tmp_path):
    files = [tmp_path / "a-WOS.json", tmp_path / "a-2-WOS.json"]
    for file in files:
        file.write_text(json.dumps({"id": "a-WOS", "instruction": "go", "evaluator": {"func": "exact_match"}}))
    made = [task_of(waa.load(file), None, 320, 240) for file in files]  # type: ignore[arg-type]
    assert [(task.id, task.family) for task in made] == [("waa/a-WOS/0", "a-WOS"), ("waa/a-2-WOS/0", "a-2-WOS")]


def test_every_waa_file_becomes_a_task():
    if not (SHARED / "waa").is_dir():
        pytest.skip(f"{SHARED}/waa is not there")
    corpus = waa.load_folder(SHARED / "waa")
    assert not corpus.unreadable
    assert len(corpus.tasks) > 0
    made = [task_of(loaded, None, 1280, 720) for loaded in corpus.tasks if not loaded.task.infeasible]  # type: ignore[arg-type]
    assert len({task.id for task in made}) == len(made)


async def test_the_gym_interface_plays_an_episode(tmp_path):
    file = tmp_path / "notes.yaml"
    file.write_text(NOTES, encoding="utf-8")
    task = load_task(file, 320, 240)
    machine = Machine(tmp_path / "vm")
    async with on_a_port(machine.fake.app) as address:
        env = VagenDesktopEnv(WaaDesktop(RetryingClient(address, timeouts=TIMES), polling=LOOKING, ready_s=5), [task])
        assert await env.health_check() == {"status": "not_initialized"}
        with pytest.raises(ConfigError):
            await env.step("DONE()")
        assert "CLICK" in await env.system_prompt()
        seen, info = await env.reset(seed=7)
        assert seen["obs_str"].startswith("Write hello")
        assert seen["multi_modal_input"]["<image>"][0].size == (320, 240) == info["screen_size"]
        assert await env.health_check() == {"status": "ready"}
        seen, reward, done, info = await env.step("I am not sure")
        assert (reward, done, info["is_action_valid"]) == (0.0, False, False)
        assert "error:" in seen["obs_str"]
        _, reward, done, info = await env.step('TYPE(text="hello, wörld")')
        assert (reward, done, info["is_action_valid"], info["milestones"]["text is there"]) == (0.0, False, True, 1.0)
        _, reward, done, info = await env.step("DONE()")
        assert (reward, done, info["success"]) == (1.0, True, True)
        await env.reset(seed=0)
        assert machine.fake.guest.text == ""
        machine.fake.guest.picture = lambda: b""  # type: ignore[method-assign]
        with pytest.raises(InfrastructureError):
            await env.step('TYPE(text="x")')
        assert await env.health_check() == {"status": "needs_recovery"}
        await env.close()
    with pytest.raises(ConfigError):
        VagenDesktopEnv(env.desktop, [])
