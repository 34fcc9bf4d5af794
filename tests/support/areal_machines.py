"""Machines of OSWorld and Windows Agent Arena that AReaL's workers lease from desktop servers, their task files, and a
workflow in which the model talks and a script acts.

`machines` runs in the tests' process and yields rows with the address of their desktop server; `SourcesWorkflow` runs
in AReaL's."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import areal_workflows

from deskhand.actions.ops import Done, Type

SIZE = {"width": 320, "height": 240}
WORD = "hello"
MACHINES = 2
READS = {"type": "vm_command_line", "command": "show-text"}
WANTS = {"type": "rule", "rules": {"expected": WORD}}
WAA = {
    "id": "a-wos", "snapshot": "s", "instruction": "Type hello", "source": "x", "related_apps": ["notepad"],
    "config": [{"type": "launch", "parameters": {"command": "notepad"}}],
    "evaluator": {"func": "exact_match", "result": READS, "expected": WANTS,
                  "postconfig": [{"type": "sleep", "parameters": {"seconds": 0.1}}]},
}  # fmt: skip
OSWORLD = {
    "id": "b", "snapshot": "s", "instruction": "Type hello", "source": "x", "trajectory": "", "related_apps": ["os"],
    "config": [{"type": "execute", "parameters": {"command": ["clear-text"]}}],
    "evaluator": {"func": "exact_match", "result": READS | {"command": ["show-text"]}, "expected": WANTS},
    "proxy": False, "fixed_ip": False, "possibility_of_env_change": "low",
}  # fmt: skip
OPENADAPT = f"""\
name: Type {WORD}
id: notes
setup:
  - launch: notepad
milestones:
  - {{name: editor is open, check: command, run: tasklist, expect: notepad, match: contains}}
evaluate:
  - {{check: command, run: show-text, expect: {WORD}}}
"""


@contextmanager
def machines(folder: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield, for each source, its name, its row and the address of its desktop server, while the servers run."""
    loop, started, done = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    found: list[dict[str, Any]] = []

    async def serve() -> None:
        async with _servers(folder) as served:
            found.extend(served)
            started.set()
            await done.wait()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            started.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    started.wait()
    assert found, "the desktop servers did not start"
    try:
        yield found
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()


@asynccontextmanager
async def _servers(folder: Path) -> AsyncIterator[list[dict[str, Any]]]:
    from fake_osworld import FakeOsworld
    from fake_waa import FakeEvaluate, FakeWaa
    from serving import on_a_port

    from deskhand.desktop.base import DesktopSpec
    from deskhand.desktop.factory import build_machine_pool
    from deskhand.desktop.lease_store import LeaseStore
    from deskhand.server.process import ServerConfig, serve_pool

    spec = DesktopSpec("plain", *SIZE.values())
    async with AsyncExitStack() as stack:

        async def server(kind: Any, addresses: list[str], **settings: Any) -> str:
            pool = build_machine_pool(addresses, kind, spec, LeaseStore(), **settings)
            running = await stack.enter_async_context(
                serve_pool(await stack.enter_async_context(pool), ServerConfig(port=0))
            )
            return f"http://127.0.0.1:{running.port}"

        async def machine(made: Any) -> str:
            guest = made.guest
            guest.commands = {
                "show-text": lambda: guest.text,
                "tasklist": lambda: "\n".join(guest.windows),
                "clear-text": lambda: setattr(guest, "text", "") or "",
            }
            return await stack.enter_async_context(on_a_port(made.app))

        linux = [await machine(FakeOsworld(folder / f"linux-{number}")) for number in range(MACHINES)]
        windows = FakeWaa(folder / "windows")
        close = windows.close_all

        async def close_all(request: Any) -> Any:
            windows.guest.text = ""
            return await close(request)

        windows.close_all = close_all  # type: ignore[method-assign]
        windows.app = type(windows.app)(routes=windows.routes())
        judge = await stack.enter_async_context(on_a_port(FakeEvaluate(windows.guest).app))
        at_linux = await server("osworld", linux, skip_reset=True)
        port = int(judge.rpartition(":")[2])
        at_windows = await server("waa", [await machine(windows)], skip_reset=False, evaluator_port=port)
        for name, content in {"a.json": WAA, "b.json": OSWORLD}.items():
            (folder / name).write_text(json.dumps(content), encoding="utf-8")
        (folder / "notes.yaml").write_text(OPENADAPT, encoding="utf-8")
        openadapt = {"task_id": "notes", "task_config_path": str(folder / "notes.yaml"), "server_url": "http://unused"}
        yield [
            {"name": name, "server_url": address, "row": {**row, **SIZE, "max_steps": 2}}
            for name, address, row in (
                ("openadapt", at_windows, openadapt),
                ("waa", at_windows, {"waa": str(folder / "a.json")}),
                ("osworld", at_linux, {"osworld": str(folder / "b.json")}),
            )
        ]


class Typist(areal_workflows.TimidAgent):
    """What the model says is recorded and not understood. Every second episode types the word."""

    episodes: ClassVar[Any] = count()

    async def _act(self, episode, view, text, call_id, truncated):
        ops = (Done(),) if episode.steps else (Type(WORD),) if next(Typist.episodes) % 2 == 0 else ()
        await episode.act(ops, reply=text, call_id=call_id)
        await episode.observe()
        return None, ops


class SourcesWorkflow(areal_workflows.PaintedWorkflow):
    def make_agent(self, resources, temperature):
        return Typist(resources.agent(temperature).config, action_format=areal_workflows.TimidDialect())
