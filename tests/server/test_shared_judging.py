"""Tasks of OSWorld, Windows Agent Arena and OpenAdapt on machines that several workers share: a desktop server or a
gateway leases them, and only the holder of the lease sets up and judges."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_osworld import FakeOsworld
from fake_waa import FakeEvaluate, FakeWaa
from server_client import OWNER_KEY, serve_gateway, upstream
from serving import on_a_port

from deskhand.actions.ops import Done, Type
from deskhand.config.schema import RemoteTimeouts, SuiteConfig
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.factory import build_machine_pool
from deskhand.desktop.lease_store import LeaseStore
from deskhand.desktop.remote.sandbox_desktop import SandboxPool
from deskhand.desktop.remote.server_desktop import ServerPool
from deskhand.desktop.remote.waa_server import WaaEvaluatorClient
from deskhand.errors import DeskhandError, EvaluatorError
from deskhand.recipes.suite import load_suite
from deskhand.rollout.episode import run_episode
from deskhand.rollout.groups import EpisodeRequest
from deskhand.server.process import RunningServer, ServerConfig, serve_pool
from deskhand.tasks.outcome import Errored, Scored
from deskhand.tasks.task import Task

SCREEN = DesktopSpec("plain", 320, 240)
TIMES = RemoteTimeouts(connect_s=2, read_s=5, max_attempts=3, initial_backoff_s=0.01)
TOKEN = "a-token-of-the-gateway-of-the-tests"
NOTES = """\
name: Write hello in the editor
id: notes
max_steps: 3
setup:
  - launch: notepad
  - execute: show-text
evaluate:
  - {check: command, run: show-text, expect: hello}
"""
WAA = {
    "id": "a-wos", "snapshot": "s", "instruction": "Write yes into a.txt", "source": "x", "related_apps": ["notepad"],
    "config": [{"type": "launch", "parameters": {"command": "notepad"}}],
    "evaluator": {"func": "exact_match",
                  "result": {"type": "vm_command_line", "command": "show-text"},
                  "expected": {"type": "rule", "rules": {"expected": "yes"}}},
}  # fmt: skip
OSWORLD = {
    "id": "b", "snapshot": "s", "instruction": "Write yes", "source": "x", "trajectory": "", "related_apps": ["os"],
    "config": [{"type": "execute", "parameters": {"command": ["show-text"]}}],
    "evaluator": {"func": "exact_match",
                  "result": {"type": "vm_command_line", "command": ["show-text"]},
                  "expected": {"type": "rule", "rules": {"expected": "yes"}}},
    "proxy": False, "fixed_ip": False, "possibility_of_env_change": "low",
}  # fmt: skip


class Says:
    """An agent that types one text."""

    def __init__(self, text: str) -> None:
        self.text = text

    async def run(self, episode: Any) -> None:
        await episode.observe()
        await episode.act((Type(self.text), Done()) if self.text else (Done(),))


def forgetful(fake: FakeOsworld) -> None:
    """Make the text that was typed readable by a command, and have a reset forget it."""
    guest = fake.guest
    guest.commands = {"show-text": lambda: guest.text}


def tasks(folder: Path, kind: str, content: str, backend: str) -> Task:
    folder.mkdir(parents=True)
    (folder / ("a.yaml" if kind == "openadapt" else "a.json")).write_text(content, encoding="utf-8")
    suite = SuiteConfig(format=kind, path=folder.parent, screen_size=(320, 240), max_episode_steps=3)  # type: ignore[arg-type]
    loaded = load_suite(suite, backend)
    return loaded.make(loaded.train_tasks[0], 0)


@asynccontextmanager
async def windows_server(tmp_path: Path) -> AsyncIterator[tuple[RunningServer, FakeWaa, FakeEvaluate]]:
    """A desktop server in front of one Windows machine with its evaluate server."""
    fake = FakeWaa(tmp_path / "vm")
    forgetful(fake)
    evaluate = FakeEvaluate(fake.guest)
    close = fake.close_all

    async def close_all(request):
        fake.guest.text = ""
        return await close(request)

    fake.close_all = close_all  # type: ignore[method-assign]
    fake.app = type(fake.app)(routes=fake.routes())
    async with on_a_port(fake.app) as address, on_a_port(evaluate.app) as judge:
        port = int(judge.rpartition(":")[2])
        machines = build_machine_pool(
            [address], "waa", SCREEN, LeaseStore(), skip_reset=False, timeouts=TIMES, evaluator_port=port
        )
        async with machines, serve_pool(machines, ServerConfig(port=0, admin_key=OWNER_KEY)) as running:
            yield running, fake, evaluate


@asynccontextmanager
async def pool_at(running: RunningServer, way: str) -> AsyncIterator[Any]:
    if way == "server":
        async with ServerPool(f"http://127.0.0.1:{running.port}", OWNER_KEY, spec=SCREEN, timeouts=TIMES) as pool:
            yield pool
        return
    async with (
        serve_gateway([upstream(running)], {TOKEN: 4}) as (address, _),
        SandboxPool(address, TOKEN, spec=SCREEN, timeouts=TIMES) as pool,
    ):
        yield pool


async def outcome(pool: Any, task: Task, text: str) -> Any:
    lease = await pool.lease(SCREEN)
    try:
        result = await run_episode(EpisodeRequest("e", task), lease.desktop, Says(text), None)  # type: ignore[arg-type]
        return result.outcome
    finally:
        await pool.release(lease)


@pytest.mark.parametrize("way", ["server", "gateway"])
@pytest.mark.parametrize("kind", ["waa", "openadapt"])
async def test_a_task_of_windows_is_set_up_and_judged_on_a_shared_machine(tmp_path, way, kind):
    content, right = (json.dumps(WAA), "yes") if kind == "waa" else (NOTES, "hello")
    backend = "server" if way == "server" else "sandbox"
    task = tasks(tmp_path / "files" / "domain", kind, content, backend)
    async with windows_server(tmp_path) as (running, fake, evaluate), pool_at(running, way) as pool:
        wrong, solved = await outcome(pool, task, "no"), await outcome(pool, task, right)
        assert isinstance(wrong, Scored), wrong
        assert isinstance(solved, Scored), solved
        assert (wrong.value, solved.value) == (0.0, 1.0)
        assert "notepad" in fake.guest.windows, "the task was set up"
        assert bool(evaluate.asked) == (kind == "waa")


@pytest.mark.parametrize("way", ["server", "gateway"])
async def test_a_task_of_osworld_is_set_up_and_judged_on_a_shared_machine(tmp_path, way):
    fake = FakeOsworld(tmp_path / "vm")
    forgetful(fake)
    task = tasks(tmp_path / "files" / "os", "osworld", json.dumps(OSWORLD), "osworld")
    async with on_a_port(fake.app) as address:
        machines = build_machine_pool([address], "osworld", SCREEN, LeaseStore(), skip_reset=True, timeouts=TIMES)
        settings = ServerConfig(port=0, admin_key=OWNER_KEY)
        async with machines, serve_pool(machines, settings) as running, pool_at(running, way) as pool:
            wrong = await outcome(pool, task, "no")
            fake.guest.text = ""
            solved = await outcome(pool, task, "yes")
    assert isinstance(wrong, Scored), wrong
    assert isinstance(solved, Scored), solved
    assert (wrong.value, solved.value) == (0.0, 1.0)


async def test_nobody_judges_a_machine_that_another_lease_has(tmp_path):
    async with windows_server(tmp_path) as (running, _, evaluate), pool_at(running, "server") as pool:
        first = await pool.lease()
        link = first.desktop.open_evaluator()  # type: ignore[attr-defined]
        await WaaEvaluatorClient(link).setup(WAA["config"])
        await pool.release(first)
        second = await pool.lease()
        with pytest.raises(EvaluatorError, match=r"released|epoch"):
            await WaaEvaluatorClient(link).evaluate(WAA)
        stale = second.desktop.open_evaluator()  # type: ignore[attr-defined]
        stale.headers["x-deskhand-epoch"] = str(first.epoch)
        with pytest.raises(DeskhandError, match="epoch"):
            await WaaEvaluatorClient(stale).evaluate(WAA)
        assert not evaluate.asked
        own = second.desktop.open_evaluator()  # type: ignore[attr-defined]
        with pytest.raises(EvaluatorError, match="404"):
            await WaaEvaluatorClient(own)._send("GET", "/secrets", 5.0)
        assert (await WaaEvaluatorClient(own).evaluate(WAA))[0] == 0.0
        for each in (link, stale, own):
            await each.close()


async def test_a_machine_that_is_solved_at_the_start_is_not_trained_on(tmp_path):
    solved = json.loads(json.dumps(WAA))
    solved["evaluator"]["expected"]["rules"]["expected"] = ""
    solved["evaluator"]["postconfig"] = [{"type": "sleep", "parameters": {"seconds": 0.1}}]
    task = tasks(tmp_path / "files" / "domain", "waa", json.dumps(solved), "server")
    async with windows_server(tmp_path) as (running, _, evaluate), pool_at(running, "server") as pool:
        found = await outcome(pool, task, "")
        assert isinstance(found, Errored)
        assert found.cause == "already_solved"
        assert "postconfig" not in evaluate.asked[0]["evaluator"], "the start state is left as it is"
