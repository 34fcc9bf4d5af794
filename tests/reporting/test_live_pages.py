"""Live desktops in a real browser: the wall, one desktop large, taking over, a task by hand, recordings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import fake_desktop
import pytest
from live_canvas import Canvas, until
from person import playing
from recorded_folder import REPLIES, talk
from serving import on_a_port
from takeover_stage import open_stage

from benchmarks.browser import CHROMIUM, Page, browser
from deskhand.actions.ops import Click, Key, Type
from deskhand.reporting.viewer.app import create_app
from deskhand.rollout.groups import EpisodeRequest
from deskhand.server.live_app import serve_live
from deskhand.server.live_desktops import LiveDesktops
from deskhand.store.run import DEMONSTRATIONS, Run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
TOKEN, CONTROL = "the-token", "the-control"
HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
TILES = "document.querySelectorAll('.wall .tile').length"
PICTURE = "document.querySelector('.screen img')?.naturalWidth"
HOLDS = "document.querySelector('.screen.held')"


@asynccontextmanager
async def opened(folder: Path, *sources: Any, page: str, control: str | None = CONTROL) -> AsyncIterator[Page]:
    """The browser at a page of the viewer, as the printed URL opens it."""
    secrets = {"token": TOKEN, "page": page, **({"control": CONTROL} if control else {})}
    async with on_a_port(create_app(sources, TOKEN, control=control)) as address, browser(folder) as tab:
        await tab.size(1280, 800)
        await tab.open(f"{address}/#{urlencode(secrets)}")
        yield tab
        assert await tab.evaluate("problems") == []
        assert TOKEN not in await tab.evaluate("location.href")
        assert CONTROL not in await tab.evaluate("location.href")


async def click_at(page: Page, x: int, y: int, *, count: int = 1) -> None:
    """Click a pixel of the desktop, wherever the page shows it."""
    box = await page.evaluate(
        "(box => [box.left, box.top, box.width, box.height])(document.querySelector('.screen img')"
        ".getBoundingClientRect())"
    )
    size = await page.evaluate(f"(image => [image.naturalWidth, image.naturalHeight])({PICTURE[:-14]})")
    at = [box[k] + (value + 0.5) * box[k + 2] / size[k] for k, value in enumerate((x, y))]
    for number in range(1, count + 1):
        for kind in ("mousePressed", "mouseReleased"):
            await page.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=number)


UNNAMED = """[...document.querySelectorAll('main button, main a, main input, main [role=application]')].filter(node =>
    !(node.innerText || node.getAttribute('aria-label'))).map(node => node.outerHTML.slice(0, 90))"""


async def press_button(page: Page, text: str) -> None:
    """Press a button of the page as soon as it can be pressed."""
    found = f"[...document.querySelectorAll('main button')].find(node => node.innerText === {text!r} && !node.disabled)"
    await page.until(found)
    await page.evaluate(f"{found}.click()")


async def test_tiles_are_wide_and_follow_the_desktops(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        desktops = LiveDesktops()
        screens = [Canvas(f"e{k}", family="square", instruction=HOSTILE, task=f"t/{k}") for k in range(5)]
        for screen in screens:
            desktops.add(screen)
        async with serve_live(desktops, run.folder), opened(tmp_path, run, page="/run/0/live") as page:
            loaded = "[...document.querySelectorAll('.tile img')].filter(image => image.naturalWidth).length"
            await page.until(f"{loaded} === 5")
            assert await page.evaluate(UNNAMED) == []
            for width in (1280, 390):
                await page.size(width, 800)
                narrowest = "Math.min(...[...document.querySelectorAll('.tile img')].map(n => n.clientWidth))"
                assert await page.evaluate(narrowest) >= 320
                assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            first = "document.querySelector('.tile img').src"
            before = await page.evaluate(first)
            screens[0].screen[:] = 200
            await page.until(f"{first} !== {before!r}")
            assert HOSTILE in await page.text(".tile")
            assert await page.evaluate("document.title") != "owned"
            desktops.remove(screens[1], {"reward": 0.5, "errored": "", "episode": "e1", "task": "t/1"})
            await page.until("document.querySelectorAll('.tile')[1].innerText.includes('last reward 0.5')")
            assert "idle" in await page.evaluate("document.querySelectorAll('.tile')[1].className")
            assert await page.evaluate(TILES) == 5
            await page.evaluate("document.querySelector('.tile a').click()")
            await page.until(f"location.hash.includes('live/e0') && {PICTURE} === 1280")


async def test_a_run_without_a_process_says_so(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        async with opened(tmp_path, run, page="/run/0/live") as page:
            await page.until("document.querySelector('main').innerText.includes('no process works on this run')")


async def test_mouse_and_keyboard_arrive_where_they_were_and_the_lock_shows(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        desktops, screen = LiveDesktops(), Canvas("e1", 640, 400, waits_for_action=True)
        desktops.add(screen)
        async with serve_live(desktops, run.folder), opened(tmp_path, run, page="/run/0/live/e1") as page:
            await page.until(f"{PICTURE} === 640")
            await press_button(page, "Take over")
            await page.until(HOLDS)
            assert await page.evaluate(UNNAMED) == []
            await click_at(page, 100, 30)
            await asyncio.sleep(0.4)  # it may not become a double click
            await click_at(page, 101, 31, count=2)
            for key, code in (("a", 65), ("b", 66)):
                await page.press(key, code)
            await page.press("Enter", 13)
            await until(lambda: len(screen.performed) == 4)
            one, two, text, enter = screen.performed
            assert isinstance(one, Click)
            assert isinstance(two, Click)
            assert one.point is not None
            assert (one.point.x, one.point.y, one.count) == (100, 30, 1)
            assert two.count == 2
            assert (text, enter) == (Type("ab"), Key(("enter",)))
            await page.evaluate("document.querySelector('main').replaceChildren(); location.reload()")
            await page.until(HOLDS)  # the tab keeps its takeover
            await press_button(page, "Return to the agent")
            await page.until(f"!{HOLDS}")
            assert not screen.is_held
            screen.take_over()
            await page.until("document.querySelector('main').innerText.includes('another page has taken over')")


async def test_without_the_second_token_the_page_only_shows(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        desktops = LiveDesktops()
        desktops.add(Canvas("e1"))
        watching = opened(tmp_path, run, page="/run/0/live/e1", control=None)
        async with serve_live(desktops, run.folder), watching as page:
            await page.until(f"{PICTURE} && document.querySelector('main').innerText.includes('--takeover')")
            assert await page.evaluate("document.querySelectorAll('main button').length") == 0


async def test_a_task_by_hand_ends_with_the_judges_findings(tmp_path: Path) -> None:
    task = fake_desktop.square_task(7)
    with Run.create(tmp_path / "run", {}) as run:
        async with open_stage(run, human_only=True) as stage, serve_live(stage.pool.desktops, run.folder):
            episode = asyncio.create_task(stage.runner.run(EpisodeRequest("e1", task)))
            live = await playing(stage.pool)
            assert live.desktop is not None
            target, _ = await task.first_click_targets(live.desktop)
            assert target is not None
            async with opened(tmp_path, run, page="/run/0/live/e1") as page:
                await page.until(f"{HOLDS} && document.querySelector('main').innerText.includes('waiting for your')")
                assert task.instruction == await page.text("h1")
                await click_at(page, *target.center)
                await page.until("document.querySelector('.action').innerText.includes('step 1 of 4')")
                await press_button(page, "Done")
                await episode
                (row,) = run.episodes(DEMONSTRATIONS)
                await page.until(f"location.hash.includes('{row.id}') && document.querySelector('.verdict.success')")
    assert row.value == 1.0


async def test_recorded_sessions_are_read(tmp_path: Path) -> None:
    talk(tmp_path / "rec", "session-1", reward=1.0)
    async with opened(tmp_path, tmp_path / "rec", page="/run/0") as page:
        await page.until("document.querySelector('table a')")
        await page.evaluate("document.querySelector('table a').click()")
        await page.until("document.querySelector('.turn img')?.naturalWidth")
        shown = await page.text("main")
        assert all(reply in shown for reply in REPLIES)
        assert "reward 1" in shown
        await page.size(390, 844, dark=True)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
