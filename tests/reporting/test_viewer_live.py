"""The viewer and the process of a run: what passes on to its desktops, with which tokens, and what never does."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import painted_run
import pytest
from live_canvas import Canvas, click, unframed
from serving import on_a_port
from starlette.applications import Starlette

from deskhand.reporting.viewer.app import create_app
from deskhand.server.live_app import LIVE_FILE, serve_live
from deskhand.server.live_desktops import LiveDesktops
from deskhand.store.run import Run

TOKEN, CONTROL = "the-token", "the-control"
READ = {"Authorization": f"Bearer {TOKEN}"}
MAY_ACT = {**READ, "X-Control-Token": CONTROL}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Run.create(tmp_path / "run", {}) as run:
        yield run


@asynccontextmanager
async def viewer(*sources: Any, control: str | None = CONTROL) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(create_app(sources, TOKEN, control=control))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=READ) as client:
        yield client


async def test_the_viewer_shows_and_uses_the_desktops_of_the_runs_process(run: Run) -> None:
    desktops, screen = LiveDesktops(), Canvas("one", family="square")
    desktops.add(screen)
    async with serve_live(desktops, run.folder), viewer(run) as client:
        head, (picture,) = unframed((await client.get("/api/runs/0/live")).content)
        assert (head["desktops"][0]["family"], picture.width) == ("square", 320)
        token = json.loads((run.folder / LIVE_FILE).read_bytes())["token"]
        for path in ("/api/runs", "/api/runs/0", "/api/runs/0/live", "/api/runs/0/live/one"):
            reply = await client.get(path)
            assert reply.status_code == 200, path
            assert token not in reply.text + str(reply.headers)
        key = (await client.post("/api/runs/0/live/one/takeover", headers=MAY_ACT)).json()["key"]
        mine = {**MAY_ACT, "X-Takeover-Key": key}
        assert (await client.post("/api/runs/0/live/one/act", headers=mine, json=click((1, 2)))).status_code == 204
        assert len(screen.performed) == 1
        refused = await client.post("/api/runs/0/live/one/act", headers=MAY_ACT, json=click((1, 2)))
        assert (refused.status_code, "take over again" in refused.json()["error"]) == (403, True)
        assert (await client.post("/api/runs/0/live/one/release", headers=mine)).status_code == 204
        gone = await client.get("/api/runs/0/live/absent")
        assert (gone.status_code, "not on a desktop now" in gone.json()["error"]) == (404, True)
    assert not screen.is_held


async def test_taking_over_needs_a_token_of_its_own(run: Run) -> None:
    desktops, screen = LiveDesktops(), Canvas("one")
    desktops.add(screen)
    async with serve_live(desktops, run.folder):
        async with viewer(run) as client:
            assert (await client.get("/api/runs")).json()["has_takeover"] is True
            for headers in ({}, {"X-Control-Token": TOKEN}, {"X-Control-Token": "x"}):
                for action in ("takeover", "act", "release"):
                    reply = await client.post(f"/api/runs/0/live/one/{action}", headers={**READ, **headers})
                    assert (reply.status_code, list(reply.json())) == (403, ["error"])
            without = {"Authorization": "", "X-Control-Token": CONTROL}
            assert (await client.post("/api/runs/0/live/one/takeover", headers=without)).status_code == 401
            foreign = {**MAY_ACT, "Origin": "http://evil.example"}
            assert (await client.post("/api/runs/0/live/one/takeover", headers=foreign)).status_code == 403
        async with viewer(run, control=None) as client:
            assert (await client.get("/api/runs")).json()["has_takeover"] is False
            reply = await client.post("/api/runs/0/live/one/takeover", headers=MAY_ACT)
            assert (reply.status_code, "--takeover" in reply.json()["error"]) == (403, True)
            assert (await client.get("/api/runs/0/live")).status_code == 200
    assert not screen.is_held


async def test_a_path_reaches_nothing_else_of_the_process(run: Run) -> None:
    desktops = LiveDesktops()
    desktops.add(Canvas("one"))
    async with serve_live(desktops, run.folder), viewer(run) as client:
        for name in ("..%2fwall", "one%2ftakeover", "one%3fafter=1", "%2e%2e%2fwall"):
            assert (await client.get(f"/api/runs/0/live/{name}")).status_code in (404, 405), name


async def test_a_run_without_a_process_is_one_line(run: Run) -> None:
    async def said(client: httpx2.AsyncClient) -> str:
        reply = await client.get("/api/runs/0/live")
        assert (reply.status_code, list(reply.json())) == (404, ["error"])
        return reply.json()["error"]

    path = run.folder / LIVE_FILE
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]  # nothing listens there
        where = {"host": socket.gethostname(), "port": port, "token": "x", "pid": os.getpid()}
        async with viewer(run) as client:
            assert "no process works on this run" in await said(client)
            for text in ("", "{", "[]", '{"host": 5}', json.dumps({**where, "port": "x"}), json.dumps(where)):
                path.write_text(text)
                assert "no process works on this run" in await said(client), text
            path.write_text(json.dumps({**where, "host": "another-machine"}))
            assert "in progress on another-machine" in await said(client)


async def test_another_program_at_the_port_of_a_killed_process_is_not_shown(run: Run) -> None:
    desktops = LiveDesktops()
    async with serve_live(desktops, run.folder), viewer(run) as client:
        path = run.folder / LIVE_FILE
        where = json.loads(path.read_bytes())
        path.write_text(json.dumps({**where, "token": "that of a killed process"}))
        reply = await client.get("/api/runs/0/live")
        assert (reply.status_code, "no process" in reply.json()["error"]) == (404, True)
    async with on_a_port(Starlette()) as address, viewer(run) as client:
        path.write_text(json.dumps({**where, "port": int(address.rpartition(":")[2])}))
        assert (await client.get("/api/runs/0/live")).status_code == 404


async def test_desktops_of_this_process_are_shown_without_a_run() -> None:
    desktops = LiveDesktops()
    desktops.add(Canvas("desktop", 320, 240))
    async with viewer(desktops) as client:
        assert (await client.get("/api/runs")).json()["runs"][0]["kind"] == "desktop"
        _, (picture,) = unframed((await client.get("/api/runs/0/live/desktop")).content)
        assert picture.size == (320, 240)
        reply = await client.get("/api/runs/0/episodes")
        assert (reply.status_code, reply.json()["error"]) == (404, "a desktop has no episodes")


async def test_a_training_command_offers_its_desktops_while_it_works(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = painted_run.command("train", str(painted_run.config_file(tmp_path, evaluations=0)), str(folder))
    training = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, env=painted_run.environment()
    )
    seen: list[dict[str, Any]] = []

    async def watch() -> bool:
        with Run.open(folder, read_only=True) as run:
            async with viewer(run) as client:
                reply = await client.get("/api/runs/0/live")
        if reply.status_code == 200:
            seen.extend(unframed(reply.content)[0]["desktops"])
        return any(one["last"] for one in seen)

    try:
        while training.returncode is None:
            if (folder / LIVE_FILE).exists() and await watch():
                break
            await asyncio.sleep(0.02)
        assert await training.wait() == 0
    finally:
        if training.returncode is None:
            training.kill()
            await training.wait()
    assert any(one["last"] and one["last"]["task"].startswith("painted/square/") for one in seen)
    assert not (folder / LIVE_FILE).exists()
