"""Who may read from the viewer: token, host, origin, headers; and that a run from elsewhere executes nothing."""

from __future__ import annotations

import hashlib
import io
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest
from patience import limit
from PIL import Image
from recorded_folder import talk
from viewer_client import TOKEN, client_of, get

from benchmarks.generated_run import generate
from deskhand.store.run import TRAIN, Run

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "deskhand" / "reporting" / "static"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with Run.open(generate(tmp_path_factory.mktemp("viewer") / "run", 8), read_only=True) as run:
        yield run


@pytest.fixture
async def client(run: Run) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(run) as client:
        yield client


async def test_data_needs_the_token_and_pages_hold_none(run: Run) -> None:
    async with client_of(run, headers={}) as client:
        for headers in (
            {},
            {"Authorization": "Bearer another"},
            {"Authorization": TOKEN},
            {"Cookie": TOKEN},
        ):
            for path in ("/api/runs", "/api/runs/0", f"/api/runs/0/frames/{'0' * 64}", "/api/absent"):
                reply = await client.get(path, headers=headers)
                assert (reply.status_code, list(reply.json())) == (401, ["error"])
        assert (await client.get(f"/api/runs?token={TOKEN}")).status_code == 401
        page = await client.get("/")
        assert page.status_code == 200
        assert "Generated run" not in page.text


async def test_other_hosts_and_other_pages_read_nothing(run: Run) -> None:
    async with client_of(run) as client:
        for headers in (
            {"Host": "evil.example"}, {"Host": "evil.example:8000"}, {"Host": "127.0.0.1.evil.example"},
            {"Host": "[::1"}, {"Origin": "http://evil.example"}, {"Origin": "http://127.0.0.1:9999"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
        ):  # fmt: skip
            assert (await client.get("/api/runs", headers=headers)).status_code == 403, headers
        for headers in ({"Host": "localhost:8000"}, {"Host": "[::1]:1"}, {"Origin": "http://127.0.0.1:8000"}):
            assert (await client.get("/api/runs", headers=headers)).status_code == 200, headers
        assert (await client.get("/", headers={"Host": "evil.example"})).status_code == 403


async def test_every_reply_forbids_foreign_scripts_and_frames(client: httpx2.AsyncClient) -> None:
    for path in ("/", "/static/viewer.js", "/static/absent.js", "/api/runs", "/api/runs/9"):
        headers = (await client.get(path)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_the_pages_build_no_markup_from_text_and_load_nothing_from_elsewhere() -> None:
    for path in STATIC.iterdir():
        text = path.read_text()
        assert len(text.splitlines()) <= 400, path.name
        assert not re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|srcdoc", text
        )
        assert not re.findall(r"https?://(?!www\.w3\.org/)|<style| style=|\son\w+=|import\(", text), path.name


async def test_an_algorithm_of_the_run_is_never_imported(tmp_path: Path) -> None:
    """A run from elsewhere names a file; showing the run must not execute it."""
    code = tmp_path / "evil.py"
    code.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    config = {"model": str(tmp_path), "trainer": {"algorithm": f"{code}:mine"}}
    with Run.open(generate(tmp_path / "run", 8, config=config), read_only=True) as run:
        async with client_of(run) as client:
            found = await get(client, f"/runs/0/groups/{run.episodes(TRAIN)[0].group_id}")
    assert "not recomputed" in found["explained"]
    assert not (tmp_path / "ran").exists()


async def test_screenshots_are_the_stored_pixels_and_nothing_else_is_read(client: httpx2.AsyncClient, run: Run) -> None:
    name = next(iter(run.frames))
    whole = Image.open(io.BytesIO((await client.get(f"/api/runs/0/frames/{name}")).content))
    assert hashlib.sha256(whole.tobytes()).hexdigest() == name
    small = Image.open(io.BytesIO((await client.get(f"/api/runs/0/frames/{name}?width=64")).content))
    assert small.width == 64
    for wrong in ("0" * 64, "..%2Frun.sqlite", name[:-1], name.upper(), f"{name}%0A"):
        assert (await client.get(f"/api/runs/0/frames/{wrong}")).status_code == 404, wrong
    for wrong in ("..%2f..%2fviewer%2fapp.py", "../__init__.py", "%2e%2e/build_report.py"):
        assert (await client.get(f"/static/{wrong}")).status_code == 404, wrong
    assert (await client.get(f"/api/runs/0/frames/{name}?width=99999")).status_code == 400


def test_the_command_serves_on_loopback_and_its_token_is_in_no_log(tmp_path: Path) -> None:
    folder = generate(tmp_path / "run", 8)
    command = [sys.executable, "-m", "deskhand", "view", str(folder)]
    viewer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert viewer.stdout is not None
    try:
        found = re.fullmatch(r"(http://127\.0\.0\.1:(\d+))/#token=([\w-]{20,})\n", viewer.stdout.readline())
        assert found
        address, port, token = found.groups()
        reply = httpx2.get(f"{address}/api/runs", headers={"Authorization": f"Bearer {token}"}, timeout=limit(20))
        assert reply.json()["runs"][0]["title"] == "Generated run"
        assert httpx2.get(f"{address}/api/runs", timeout=limit(20)).status_code == 401
        taken = subprocess.run([*command, "--port", port], capture_output=True, text=True, cwd=ROOT, check=False)
        assert (taken.returncode, taken.stderr.count("\n")) == (2, 1)
        assert f"--port {port}: " in taken.stderr
        viewer.send_signal(signal.SIGINT)
        more, complaints = viewer.communicate(timeout=limit(20))
    finally:
        viewer.kill()  # when it was not ended by then
        viewer.wait(20)
    assert viewer.returncode in (0, 130)
    assert token not in more + complaints


def test_the_command_prints_a_second_url_that_may_take_over_and_opens_recordings(tmp_path: Path) -> None:
    folder = generate(tmp_path / "run", 8)
    talk(tmp_path / "recorded", "session-1")
    command = [sys.executable, "-m", "deskhand", "view", str(folder), str(tmp_path / "recorded"), "--takeover"]
    viewer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert viewer.stdout is not None
    try:
        shows = re.fullmatch(r"(http://127\.0\.0\.1:\d+)/#token=([\w-]{20,})\n", viewer.stdout.readline())
        acts = re.fullmatch(r"to take over: (\S+)/#token=([\w-]{20,})&control=([\w-]{20,})\n", viewer.stdout.readline())
        assert shows
        assert acts
        assert shows.groups() == acts.groups()[:2]
        assert acts[3] != acts[2]
        headers = {"Authorization": f"Bearer {acts[2]}"}
        found = httpx2.get(f"{acts[1]}/api/runs", headers=headers, timeout=limit(20)).json()
        assert [one["kind"] for one in found["runs"]] == ["run", "recording"]
        address = f"{acts[1]}/api/runs/0/live/x/takeover"
        assert httpx2.post(address, headers=headers, timeout=limit(20)).status_code == 403
        may = {**headers, "X-Control-Token": acts[3]}
        assert httpx2.post(address, headers=may, timeout=limit(20)).status_code == 404, "no process works on the run"
        viewer.send_signal(signal.SIGINT)
        more, complaints = viewer.communicate(timeout=limit(20))
    finally:
        viewer.kill()  # when it was not ended by then
        viewer.wait(20)
    assert not any(secret in more + complaints for secret in acts.groups()[1:])
