"""Live view: frames, input and the token."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import httpx2
import pytest
from desktops import embedded
from patience import limit
from PIL import Image

from deskhand.actions.ops import Click, Drag, Key, Scroll, Type
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.live_view import create_app, ops_from_event

SMALL = DesktopSpec("plain", 320, 240)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
async def client():
    async with embedded(SMALL) as desktop:
        transport = httpx2.ASGITransport(create_app(desktop, SMALL, "the-token"))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            client.desktop = desktop  # type: ignore[attr-defined]
            yield client


KEY = {"Authorization": "Bearer the-token"}


async def test_the_page_is_public_and_the_desktop_needs_the_token(client):
    assert "<img" in (await client.get("/")).text
    for headers in ({}, {"Authorization": "Bearer another"}, {"Authorization": "the-token"}):
        assert (await client.get("/frame", headers=headers)).status_code == 401
        assert (await client.post("/act", headers=headers, json={"kind": "type", "text": "x"})).status_code == 401
    assert (await client.get("/frame?token=the-token")).status_code == 401


async def test_a_frame_is_sent_when_the_screen_changes(client):
    first = await client.get("/frame", headers=KEY)
    assert Image.open(BytesIO(first.content)).size == (320, 240)
    waiting = asyncio.create_task(client.get(f"/frame?after={first.headers['X-Frame']}", headers=KEY))
    await asyncio.sleep(0.4)
    assert not waiting.done()
    await client.desktop.launch(["xterm"])
    second = await waiting
    assert second.headers["X-Frame"] != first.headers["X-Frame"]


async def test_page_events_are_performed(client):
    script = "read line; echo $line > said; sleep 20"
    await client.desktop.launch(["xterm", "-geometry", "40x12+0+0", "-e", "sh", "-c", script])
    await client.desktop.wait_window("xterm")
    await client.desktop.observe()
    for what in ({"kind": "click", "at": [50, 50], "button": 0, "count": 1}, {"kind": "type", "text": "hällo"}):
        assert (await client.post("/act", headers=KEY, json=what)).status_code == 204
    assert (await client.post("/act", headers=KEY, json={"kind": "key", "keys": ["enter"]})).status_code == 204
    assert (await client.desktop.pull("said")).decode().strip() == "hällo"


async def test_malformed_events_are_rejected(client):
    click = {"kind": "click", "at": [1, 1], "button": 0, "count": 1}
    clicks = [click | changed for changed in ({"at": [1]}, {"button": 9}, {"at": [5000, 1]})]
    for event in ({}, [], {"kind": "run", "text": "x"}, {"kind": "key", "keys": 1}, *clicks):
        assert (await client.post("/act", headers=KEY, json=event)).status_code == 400, event


def test_every_event_becomes_one_op():
    def only(**said):
        (op,) = ops_from_event(said, SMALL)
        return op

    assert isinstance(only(kind="click", at=[1, 2], button=2, count=1), Click)
    assert only(kind="click", at=[1, 2], button=3, count=1).button == "back"
    assert isinstance(only(kind="drag", at=[1, 2], **{"from": [3, 4]}), Drag)
    assert isinstance(only(kind="scroll", at=[1, 2], dx=0, dy=3), Scroll)
    assert only(kind="type", text="x") == Type("x")
    assert only(kind="key", keys=["ctrl", "a"]) == Key(("ctrl", "a"))


def test_desktop_open_prints_a_loopback_url_and_ends_with_ctrl_c():
    command = [sys.executable, "-m", "deskhand", "desktop", "open", "calculator", "--size", "320x240"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    trial = subprocess.Popen(command, **streams, text=True, cwd=ROOT)
    assert trial.stdout is not None
    try:
        found = re.fullmatch(r"(http://127\.0\.0\.1:\d+)/#([\w-]{20,})\n", trial.stdout.readline())
        assert found
        address, token = found.groups()
        frame = httpx2.get(f"{address}/frame", headers={"Authorization": f"Bearer {token}"}, timeout=limit(20))
        assert Image.open(BytesIO(frame.content)).size == (320, 240)
        trial.send_signal(signal.SIGINT)
        _, complaints = trial.communicate(timeout=limit(20))
    finally:
        trial.kill()  # when it was not ended by then
        trial.wait(20)
    assert trial.returncode in (0, 130)
    assert token not in complaints
