"""The desktops of a running process over HTTP: tiles, tokens, the lock of a takeover, and the file that names it."""

from __future__ import annotations

import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
from live_canvas import Canvas, click, unframed

from deskhand.actions.ops import Click
from deskhand.server import live_desktops
from deskhand.server.live_app import KEY_HEADER, LIVE_FILE, create_live_app, serve_live
from deskhand.server.live_desktops import LiveDesktops
from deskhand.server.loopback import CONTROL_HEADER

TOKEN = "the-token"
KEY = {"Authorization": f"Bearer {TOKEN}", CONTROL_HEADER: TOKEN}


@pytest.fixture
def desktops(monkeypatch: pytest.MonkeyPatch) -> LiveDesktops:
    monkeypatch.setattr(live_desktops, "TILE_INTERVAL_S", 0.0)
    desktops = LiveDesktops()
    for name in ("one", "two"):
        desktops.add(Canvas(name))
    return desktops


@pytest.fixture
async def client(desktops: LiveDesktops) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(create_live_app(desktops, TOKEN))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=KEY) as client:
        yield client


def canvas(desktops: LiveDesktops, name: str) -> Canvas:
    found = desktops.find(name)
    assert isinstance(found, Canvas)
    return found


async def test_a_tile_is_sent_when_its_screen_changes_and_is_wide_enough(
    client: httpx2.AsyncClient, desktops: LiveDesktops
) -> None:
    head, pictures = unframed((await client.get("/api/wall")).content)
    assert [one["id"] for one in head["desktops"]] == ["one", "two"]
    assert [picture.size for picture in pictures] == [(320, 180)] * 2
    again, pictures = unframed((await client.get(f"/api/wall?since={head['revision']}")).content)
    assert (again["revision"], pictures) == (head["revision"], [])
    canvas(desktops, "two").screen[100:300, 100:500, 2] = 255
    changed, pictures = unframed((await client.get(f"/api/wall?since={head['revision']}")).content)
    assert [one["image"] for one in changed["desktops"]] == [None, 0]
    red, _, blue = pictures[0].getpixel((60, 50))  # type: ignore[misc]
    assert red > 200
    assert blue < 60
    everything, pictures = unframed((await client.get("/api/wall?since=0")).content)
    assert len(pictures) == 2
    ahead, pictures = unframed((await client.get(f"/api/wall?since={10**15}")).content)
    assert len(pictures) == 2, "a page that knows a later process gets all tiles"
    assert ahead["revision"] == everything["revision"]


@pytest.mark.parametrize(("width", "height"), [(64, 48), (320, 240), (800, 600), (1280, 720), (1920, 1080)])
def test_tiles_of_every_screen_are_at_least_320_pixels_wide_or_whole(width: int, height: int) -> None:
    desktops, screen = LiveDesktops(), Canvas("one", width, height)
    desktops.add(screen)
    desktops._read_tiles([(tile, tile.desktop) for tile in desktops._tiles])
    _, (picture,) = unframed(live_desktops.framed({}, [desktops._tiles[0].jpeg]))
    assert min(width, 320) <= picture.width < 2 * 320 or picture.width == width
    assert abs(picture.width / picture.height - width / height) < 0.02


async def test_viewers_share_one_reading(
    client: httpx2.AsyncClient, desktops: LiveDesktops, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_desktops, "TILE_INTERVAL_S", 3600.0)
    for _ in range(5):
        await client.get("/api/wall")
    assert canvas(desktops, "one").reads == 1


async def test_places_are_kept_and_results_stay(client: httpx2.AsyncClient, desktops: LiveDesktops) -> None:
    desktops.remove(canvas(desktops, "one"), {"reward": 0.5})
    head, _ = unframed((await client.get("/api/wall")).content)
    assert "id" not in head["desktops"][0]
    assert (head["desktops"][0]["last"], head["desktops"][1]["id"]) == ({"reward": 0.5}, "two")
    desktops.add(Canvas("three"))
    head, _ = unframed((await client.get("/api/wall")).content)
    assert [one["id"] for one in head["desktops"]] == ["three", "two"]
    assert head["desktops"][0]["last"] == {"reward": 0.5}
    assert (await client.get("/api/desktops/one")).status_code == 404


async def test_nothing_is_read_or_done_without_the_token(desktops: LiveDesktops) -> None:
    transport = httpx2.ASGITransport(create_live_app(desktops, TOKEN))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for headers in ({}, {"Authorization": "Bearer another"}, {CONTROL_HEADER: TOKEN}):
            assert (await client.get("/api/wall", headers=headers)).status_code == 401
            assert (await client.post("/api/desktops/one/takeover", headers=headers)).status_code == 401
        read = {"Authorization": f"Bearer {TOKEN}"}
        assert (await client.get("/api/wall", headers=read)).status_code == 200
        assert (await client.post("/api/desktops/one/takeover", headers=read)).status_code == 403
        elsewhere = {**KEY, "Host": "evil.example"}
        assert (await client.get("/api/wall", headers=elsewhere)).status_code == 403
        page = {**KEY, "Origin": "http://evil.example"}
        assert (await client.post("/api/desktops/one/takeover", headers=page)).status_code == 403
    assert not canvas(desktops, "one").is_held


async def test_only_the_holder_acts_and_only_on_its_desktop(client: httpx2.AsyncClient, desktops: LiveDesktops) -> None:
    key = (await client.post("/api/desktops/one/takeover")).json()["key"]
    assert (await client.post("/api/desktops/one/takeover")).status_code == 409
    mine = {KEY_HEADER: key}
    for name, headers in (("one", {}), ("one", {KEY_HEADER: "x"}), ("two", mine)):
        reply = await client.post(f"/api/desktops/{name}/act", headers=headers, json=click((5, 6)))
        assert reply.status_code == 403, (name, headers)
        assert (await client.post(f"/api/desktops/{name}/release", headers=headers)).status_code == 403
    assert (await client.post("/api/desktops/one/act", headers=mine, json=click((5, 6)))).status_code == 204
    assert (await client.post("/api/desktops/absent/act", headers=mine, json=click((5, 6)))).status_code == 404
    for wrong in (b"{", b"[]", b'{"kind": "click", "at": [1280, 0], "button": 0, "count": 1}'):
        assert (await client.post("/api/desktops/one/act", headers=mine, content=wrong)).status_code == 400
    head, _ = unframed((await client.get("/api/desktops/one", headers=mine)).content)
    assert (head["held"], head["holds"]) == (True, True)
    assert key not in json.dumps(unframed((await client.get("/api/wall")).content)[0])
    assert (await client.post("/api/desktops/one/release", headers=mine)).status_code == 204
    (op,) = canvas(desktops, "one").performed
    assert isinstance(op, Click)
    assert canvas(desktops, "two").performed == []


async def test_a_takeover_ends_without_its_page_and_lives_with_it(
    client: httpx2.AsyncClient, desktops: LiveDesktops, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(live_desktops, "time", SimpleNamespace(monotonic=lambda: now[0]))
    key = (await client.post("/api/desktops/one/takeover")).json()["key"]
    for _ in range(3):
        now[0] += live_desktops.IDLE_S - 1
        head, _ = unframed((await client.get("/api/desktops/one", headers={KEY_HEADER: key})).content)
        assert head["holds"]
    now[0] += live_desktops.IDLE_S + 1
    head, _ = unframed((await client.get("/api/desktops/one", headers={KEY_HEADER: key})).content)
    assert (head["held"], head["holds"]) == (False, False)
    assert (await client.post("/api/desktops/one/takeover")).status_code == 200


async def test_a_screen_is_sent_once_and_again_when_it_changes(
    client: httpx2.AsyncClient, desktops: LiveDesktops
) -> None:
    head, (picture,) = unframed((await client.get("/api/desktops/one")).content)
    assert picture.size == (1280, 720)
    again, pictures = unframed((await client.get(f"/api/desktops/one?after={head['screen']}")).content)
    assert (again["screen"], again["image"], pictures) == (head["screen"], None, [])
    canvas(desktops, "one").screen[0, 0, 0] = 9
    changed, pictures = unframed((await client.get(f"/api/desktops/one?after={head['screen']}")).content)
    assert changed["screen"] != head["screen"]
    assert len(pictures) == 1


async def test_the_file_of_the_token_is_private_and_goes_with_the_process(tmp_path: Path) -> None:
    desktops = LiveDesktops()
    desktops.add(Canvas("one"))
    path = tmp_path / LIVE_FILE
    path.write_text("what a killed process left")
    async with serve_live(desktops, tmp_path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        where = json.loads(path.read_text())
        address, read = f"http://127.0.0.1:{where['port']}/api/wall", {"Authorization": f"Bearer {where['token']}"}
        async with httpx2.AsyncClient(trust_env=False) as client:
            assert (await client.get(address, headers=read)).status_code == 200
            assert (await client.get(address)).status_code == 401
    assert not path.exists()


async def test_a_run_that_cannot_be_watched_continues(tmp_path: Path) -> None:
    async with serve_live(LiveDesktops(), tmp_path / "absent"):
        pass
