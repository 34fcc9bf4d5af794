"""CUA-Gym's bundles and CUA-Gym-Hub's applications, with stand-ins in their formats."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cuagym_bundles import GOAL, NEMO_SETUP, REWARD, SETUP, write_bundle, write_hub, write_nemo_bundle
from desktops import ISOLATIONS, desktop_for
from patience import limit

from deskhand.actions.ops import Click, Point, screen_px
from deskhand.config.schema import SuiteConfig
from deskhand.desktop.applications.install import missing
from deskhand.errors import ConfigError
from deskhand.recipes.suite import load_suite
from deskhand.tasks import chromium
from deskhand.tasks.formats import compatibility
from deskhand.tasks.formats.cuagym_programs import run_program
from deskhand.tasks.judge import judge
from deskhand.tasks.outcome import Scored
from deskhand.tasks.subprocess_call import call_in_subprocess
from deskhand.tasks.suites.web import sites
from deskhand.tasks.suites.web.hub import HubSite
from deskhand.tasks.task import Task

APP = "todo-list"
FROM_PAGE = {"sec-fetch-site": "same-origin", "sec-fetch-dest": "empty"}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the server process, which has no rights, may read."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        write_hub(Path(name))
        yield Path(name)


def suite_of(folder: Path, **more: Any) -> SuiteConfig:
    return SuiteConfig(format="cuagym", path=folder, **{"allow_python_checks": True, **more})


def test_the_report_says_which_bundles_run_and_why_the_others_do_not(folder: Path) -> None:
    write_bundle(folder, "a-runs")
    write_bundle(folder, "b-sheet", app_type="libreoffice_calc", suffix=".xlsx")
    write_bundle(folder, "c-empty", reward=" \n")
    write_bundle(folder, "d-unbuilt", SETUP.replace("TODO_LIST", "GMAIL"))
    write_bundle(folder, "e-judge", reward=f"from reward_judge import call_llm_judge\n{REWARD}")
    write_bundle(folder, "f-syntax", reward=f"def :\n{REWARD}")
    write_bundle(folder, "g-silent", reward="print(1)")
    write_bundle(folder, "h-upload", f"{SETUP}\nrequests.post(BASE + '/upload', files={{}})")
    write_bundle(folder, "i-untold", instruction="")
    report = compatibility.check_compatibility("cuagym", folder)
    assert report.verdicts() == {"runnable": 1, "missing files": 0, "unsupported": 7}
    assert report.kinds() == {"broken": 3, "application": 1, "desktop": 1, "library": 1, "upload": 1}
    assert [path.name for path, _ in report.corpus.unreadable] == ["i-untold"]
    suite = load_suite(suite_of(folder), "local")
    assert suite.train_tasks == ("a-runs",)
    assert len(suite.skipped) == 8
    with pytest.raises(ConfigError, match="hub application gmail"):
        load_suite(suite_of(folder, families=("d-unbuilt",)), "local")
    with pytest.raises(ConfigError, match="allow_python_checks"):
        load_suite(suite_of(folder, allow_python_checks=False), "local")


def test_rows_for_nemo_gym_are_played_instead_of_the_programs_beside_them(folder: Path) -> None:
    write_nemo_bundle(folder, "a-row")
    write_nemo_bundle(folder, "b-own-data", None)
    write_nemo_bundle(folder, "c-silent", reward="print(1)")
    write_nemo_bundle(folder, "d-unbuilt", NEMO_SETUP.replace("TODO_LIST", "WEBARENA_GITLAB"))
    write_nemo_bundle(folder, "e-empty", reward="")
    write_nemo_bundle(folder, "f-number", initial_setup=3)
    write_nemo_bundle(folder, "g-cut")
    (folder / "g-cut" / "nemo_task.json").write_text('{"task_payload": {')
    write_nemo_bundle(folder, "h-list")
    (folder / "h-list" / "nemo_task.json").write_text('{"task_payload": []}')
    report = compatibility.check_compatibility("cuagym", folder)
    assert report.verdicts() == {"runnable": 2, "missing files": 0, "unsupported": 2}
    assert report.kinds() == {"broken": 1, "application": 1}
    unreadable = {path.name: str(problems[0]) for path, problems in report.corpus.unreadable}
    assert list(unreadable) == ["e-empty", "f-number", "g-cut", "h-list"]
    assert "nemo_task.json" in unreadable["e-empty"]
    assert "task_payload.cuagym.eval_reward_code" in unreadable["e-empty"]
    assert "task_payload.cuagym.initial_setup" in unreadable["f-number"]
    assert load_suite(suite_of(folder), "local").train_tasks == ("a-row", "b-own-data")


def run(source: str, states: Any = None, files: dict[str, str] | None = None) -> dict[str, Any]:
    source = source.replace("__CUA_GYM_TODO_LIST_URL__", f"http://{APP}.localhost:8080")
    source = source.replace("https://cua-gym-todo-list.xlang.ai", f"http://{APP}.localhost:8080")
    return call_in_subprocess(run_program, json.dumps(states).encode() if states else b"", source, "it.py", files or {})


def test_programs_run_without_a_network_and_only_a_page_of_the_application_may_store_its_state(folder: Path) -> None:
    made = run(SETUP)
    sid = made["files"]["task_web_sid"]
    assert made["error"] is None
    assert made["opened"] == [f"http://{APP}.localhost:8080/?sid={sid}"]
    assert "REWARD: 0.0" in run(REWARD, made["states"], made["files"])["output"]
    for escape in (
        "import socket; socket.create_connection(('127.0.0.1', 1))",
        "import os; os.execv('/bin/true', ['true'])",
        "import requests; requests.get('https://example.org/')",
    ):
        assert run(escape)["error"].startswith(("PermissionError", "ConnectionError"))
    dist = str(folder / "hub" / "websites" / "todo_list_mock" / "dist")
    site = HubSite({APP: {"dist": dist, "start": f"/?sid={sid}", "state": made["states"][APP]}}, "key")

    async def play() -> None:
        transport, goal = httpx2.ASGITransport(site), {"action": "set", "state": {"items": GOAL}}
        base = f"http://{APP}.localhost:8080"
        async with httpx2.AsyncClient(transport=transport, base_url=base) as guest:
            refused = [await guest.post(f"/post?sid={sid}", json=goal, headers=FROM_PAGE)]
            refused += [await guest.get(path) for path in ("/", f"/state?sid={sid}", "/enter/guess")]
            assert (await guest.get("/enter/key")).status_code == 303
            # with the cookie, but typed, from another page, or for the host's own paths
            refused += [await guest.post(f"/post?sid={sid}", json=goal), await guest.get(f"/state?sid={sid}")]
            cross = {**FROM_PAGE, "sec-fetch-site": "cross-site"}
            refused.append(await guest.post(f"/post?sid={sid}", json=goal, headers=cross))
            refused += [
                await guest.get(f"{path}?sid={sid}", headers=FROM_PAGE) for path in ("/go", "/go/1", "/files/1")
            ]
            refused.append(await guest.post("/upload", content=b"1", headers=FROM_PAGE))
            refused.append(await guest.get("http://other.localhost:8080/", headers=FROM_PAGE))
            assert {reply.status_code for reply in refused} == {403}
            assert site.num_refused == len(refused)
            for page in ("/../../../../../etc/passwd", "/goals/3", "/files", "/post/7"):  # pages of the application
                assert "app.js" in (await guest.get(page)).text
            assert "'none'" in (await guest.get("/assets/app.js")).headers["content-security-policy"]
            for what in ({"action": "reset"}, {"action": "set_initial", "state": {}}):
                assert (await guest.post(f"/post?sid={sid}", json=what, headers=FROM_PAGE)).status_code == 400
            await guest.post("/post?sid=another", json=goal, headers=FROM_PAGE)
            assert site.state == made["states"]
            await guest.post(f"/post?sid={sid}", json=goal, headers=FROM_PAGE)

    asyncio.run(play())
    assert site.state[APP]["initial"] == made["states"][APP]["initial"]
    assert "REWARD: 1.0" in run(REWARD, site.state, made["files"])["output"]


GUEST = """
import http.client, json, sys
for headers in ({{}}, {{'Cookie': 'site=1', 'Sec-Fetch-Site': 'same-origin', 'Sec-Fetch-Dest': 'empty'}}):
    link = http.client.HTTPConnection('127.0.0.1', {port}, timeout=5)
    body = json.dumps({{'action': 'set_current', 'state': {{'items': {goal}}}}})
    link.request('POST', '/post?sid={sid}', body, {{'Host': '{app}.localhost:{port}', **headers}})
    print(link.getresponse().status)
"""
THIEF = """
import http.client, http.server, json
class Thief(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        headers = {{'Sec-Fetch-Site': 'same-origin', 'Sec-Fetch-Dest': 'empty'}}
        headers['Cookie'] = self.headers.get('Cookie', '')
        link = http.client.HTTPConnection('127.0.0.1', {port}, timeout=5)
        body = json.dumps({{'action': 'set_current', 'state': {{'items': {goal}}}}})
        link.request('POST', '/post?sid={sid}', body, {{'Host': '{app}.localhost:{port}', **headers}})
        self.send_response(link.getresponse().status)
        self.end_headers()
        self.wfile.write(b'a page, because for an empty one the browser shows an error')
http.server.HTTPServer(('127.0.0.1', 9000), Thief).serve_forever()
"""
"""A server of the guest on the application's host name. It posts the goal with the cookie that a browser sends it."""


async def status_of(desktop: Any, url: str) -> int:
    """Return the status with which a server of the guest, which may still be starting, answers the task's browser."""
    session, deadline = chromium.session_of(desktop), time.monotonic() + limit(20)
    refused = await session.call("Page.navigate", url=url)
    while refused.get("errorText"):
        assert time.monotonic() < deadline, refused
        await asyncio.sleep(0.2)
        refused = await session.call("Page.navigate", url=url)
    return await session.evaluate("performance.getEntriesByType('navigation')[0].responseStatus")


@pytest.mark.skipif(
    bool(missing(["chromium"])) or "namespaces" not in ISOLATIONS, reason="needs Chromium and namespaces"
)
@pytest.mark.parametrize("kind", ["bundle", "row", "row without set-up"])
def test_a_guest_that_posts_the_goal_state_scores_0_and_the_page_and_the_host_score_1(folder: Path, kind: str) -> None:
    if kind == "bundle":
        write_bundle(folder, "todo")
    else:
        write_nemo_bundle(folder, "todo", NEMO_SETUP if kind == "row" else None)
    task = load_suite(suite_of(folder), "local").make("todo", 0)

    async def worth(task: Task, desktop: Any) -> float:
        outcome = await judge(task, desktop)
        assert isinstance(outcome, Scored), outcome
        return outcome.value

    async def play() -> None:
        async with desktop_for(task) as desktop:
            await task.setup(desktop)
            start = await sites.read_state(desktop)
            program = GUEST.format(port=sites.PORT, goal=GOAL, sid=start[APP]["sid"], app=APP)
            done = await desktop.run(["python3", "-c", program], timeout_s=20)
            assert done.stdout.split() == [b"403", b"403"], done
            assert await worth(task, desktop) == 0.0
            await sites.write_state(desktop, {APP: {**start[APP], "current": {"items": GOAL}}})
            assert await worth(task, desktop) == 1.0
            await sites.write_state(desktop, start)
            place = await chromium.session_of(desktop).evaluate(
                "(() => { const at = document.querySelector('button').getBoundingClientRect();"
                "return [screenX + at.x + 9, screenY + outerHeight - innerHeight + at.y + 9] })()"
            )
            click = Click(Point(int(place[0]), int(place[1]), screen_px(task.width, task.height)))
            await desktop.perform([click], action_id="press")
            assert await worth(task, desktop) == 1.0
            await sites.write_state(desktop, start)
            program = THIEF.format(port=sites.PORT, goal=GOAL, sid=start[APP]["sid"], app=APP)
            await desktop.launch(["python3", "-c", program])
            assert await status_of(desktop, f"http://{APP}.localhost:9000/") == 403
            assert await worth(task, desktop) == 0.0

    asyncio.run(play())
