"""`deskhand desktop open`: one local desktop in the viewer's page, with mouse and keyboard."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from desktops import embedded
from patience import limit
from person import HttpPerson

from deskhand.actions.ops import Answer, Click, Done, Drag, Fail, Key, Op, Scroll, Type, Wait
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import ConfigError
from deskhand.server.live_desktops import OpenDesktop
from deskhand.server.page_events import op_from_event

SMALL = DesktopSpec("plain", 320, 240)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
async def desktop() -> AsyncIterator[LocalDesktop]:
    async with embedded(SMALL) as desktop:
        yield desktop


async def test_page_events_are_performed(desktop: LocalDesktop) -> None:
    script = "read line; echo $line > said; sleep 20"
    await desktop.launch(["xterm", "-geometry", "40x12+0+0", "-e", "sh", "-c", script])
    await desktop.wait_window("xterm")
    await desktop.observe()
    live = OpenDesktop(desktop, SMALL)
    key = live.take_over()
    for event in (
        {"kind": "click", "at": [50, 50], "button": 0, "count": 1},
        {"kind": "type", "text": "hällo"},
        {"kind": "key", "keys": ["enter"]},
    ):
        await live.act(key, event)
    assert (await desktop.pull("said")).decode().strip() == "hällo"
    with pytest.raises(ConfigError, match="no task"):
        await live.act(key, {"kind": "done"})


def test_every_event_becomes_one_op() -> None:
    def only(**event: object) -> Op:
        return op_from_event(event, 320, 240)

    assert isinstance(only(kind="click", at=[1, 2], button=2, count=1), Click)
    assert only(kind="click", at=[1, 2], button=3, count=1).button == "back"  # type: ignore[union-attr]
    assert isinstance(only(kind="drag", at=[1, 2], **{"from": [3, 4]}), Drag)
    assert isinstance(only(kind="scroll", at=[1, 2], dx=0, dy=3), Scroll)
    assert only(kind="type", text="x") == Type("x")
    assert only(kind="key", keys=["ctrl", "a"]) == Key(("ctrl", "a"))
    assert only(kind="wait", seconds=1) == Wait(1.0)
    assert only(kind="wait", seconds=1e9).seconds <= 10  # type: ignore[union-attr]
    assert [only(kind="done"), only(kind="fail"), only(kind="answer", text="3")] == [Done(), Fail(), Answer("3")]


def test_malformed_events_are_rejected() -> None:
    click = {"kind": "click", "at": [1, 1], "button": 0, "count": 1}
    clicks = [click | changed for changed in ({"at": [1]}, {"button": 9}, {"at": [320, 1]}, {"at": [0, -1]})]
    clicks += [click | changed for changed in ({"count": 0}, {"count": 10**9}, {"at": ["x", 1]}, {"at": None})]
    for event in ({}, [], None, 5, {"kind": "run", "text": "x"}, {"kind": "key", "keys": 1}, *clicks):
        with pytest.raises(ConfigError, match="invalid event"):
            op_from_event(event, 320, 240)


def test_desktop_open_prints_a_loopback_url_and_ends_with_ctrl_c() -> None:
    command = [sys.executable, "-m", "deskhand", "desktop", "open", "calculator", "--size", "320x240"]
    trial = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert trial.stdout is not None
    try:
        url = trial.stdout.readline()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#token=[\w-]{20,}&control=[\w-]{20,}&page=\S+\n", url)
        person = HttpPerson(url.strip())
        assert (person.facts()["size"], person.facts()["state"]) == ([320, 240], "open")
        trial.send_signal(signal.SIGINT)
        more, complaints = trial.communicate(timeout=limit(20))
    finally:
        trial.kill()  # when it was not ended by then
        trial.wait(20)
    assert trial.returncode in (0, 130)
    assert not any(secret in more + complaints for secret in person.secrets)
