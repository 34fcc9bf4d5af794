"""The viewer in a real browser: every view, hostile text, keyboard and links, updates, narrow screens, wrong tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from serving import on_a_port

from benchmarks.browser import CHROMIUM, Page, browser
from benchmarks.generated_run import HOSTILE, extend, generate
from deskhand.reporting.build_report import build_report_view
from deskhand.reporting.html_report import write
from deskhand.reporting.viewer.app import create_app
from deskhand.rollout.run_writer import load_result
from deskhand.store.run import TRAIN, Run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
TOKEN = "the-token"
SCREEN = "[...document.querySelectorAll('.screen img')].some(image => image.naturalWidth)"
ROWS = "document.querySelectorAll('.episodes tbody tr').length"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with Run.open(generate(tmp_path_factory.mktemp("pages") / "run", 192), read_only=True) as run:
        yield run


@asynccontextmanager
async def opened(folder: Path, *runs: Run) -> AsyncIterator[tuple[Page, str]]:
    """The page of the viewer, open, and its address."""
    async with on_a_port(create_app(runs, TOKEN)) as address, browser(folder) as page:
        await page.size(1280, 800)
        await page.open(f"{address}/#token={TOKEN}")
        await page.until("document.querySelector('main').childElementCount && document.querySelector('nav a')")
        yield page, address


async def go(page: Page, fragment: str, expression: str) -> None:
    await page.evaluate("document.querySelector('main').replaceChildren()")
    await page.evaluate(f"location.hash = {fragment!r}")
    await page.until(expression)


def views_of(run: Run) -> dict[str, tuple[str, str]]:
    """Fragment of each view and when it is there."""
    row = next(row for row in run.episodes(TRAIN, "trained") if row.value == 0)
    episode = f"#/run/0/episode/{row.id}"
    return {
        "run": ("#/run/0", "document.querySelectorAll('.charts svg text').length > 9"),
        "episodes": ("#/run/0/episodes", ROWS),
        "episode": (f"{episode}?step=1", f"{SCREEN} && document.querySelector('.reply span')"),
        "messages": (f"{episode}?tab=messages", f"{SCREEN} && document.querySelector('.turn img')"),
        "outcome": (f"{episode}?tab=outcome", f"{SCREEN} && document.querySelector('.detail .findings')"),
        "facts": (f"{episode}?tab=facts", f"{SCREEN} && document.querySelector('.detail .facts')"),
        "group": (f"#/run/0/group/{row.group_id}", "document.querySelector('.aligned .first img')?.naturalWidth"),
    }


async def test_every_view_opens_wide_and_narrow_light_and_dark_without_a_problem(tmp_path: Path, run: Run) -> None:
    async with opened(tmp_path, run) as (page, _):
        for width, height, dark in ((1280, 800, False), (390, 844, True)):
            await page.size(width, height, dark=dark)
            for name, (fragment, expression) in views_of(run).items():
                await go(page, fragment, expression)
                assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, width)
                assert not await page.evaluate("document.querySelector('[role=alert].problem')?.innerText"), name
            background = await page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (background == "rgb(247, 247, 245)") == (not dark)
        assert await page.evaluate("problems") == []


async def test_all_text_of_the_curves_is_on_a_narrow_screen(tmp_path: Path, run: Run) -> None:
    async with opened(tmp_path, run) as (page, _):
        await page.size(390, 844)
        await go(page, *views_of(run)["run"])
        outside = "[...document.querySelectorAll('.charts svg text')].map(node => node.getBoundingClientRect())"
        assert await page.evaluate(f"{outside}.filter(box => box.left < 0 || box.right > innerWidth).length") == 0


async def test_hostile_text_of_guests_and_models_stays_text(tmp_path: Path, run: Run) -> None:
    rows = [row for row in run.episodes(TRAIN) if row.value == 0]
    row = next(row for row in rows if HOSTILE in [one.read for one in load_result(run, row.id).outcome.failed])  # type: ignore[union-attr]
    reply = next(
        (one, step.index)
        for one in (load_result(run, row.id) for row in run.episodes())
        for step in one.steps
        if step.text == HOSTILE
    )
    async with opened(tmp_path, run) as (page, _):
        await go(page, f"#/run/0/episode/{row.id}", SCREEN)
        assert HOSTILE in await page.text(".verdict")
        await go(
            page, f"#/run/0/episode/{reply[0].episode_id}?step={reply[1]}", "document.querySelector('.reply span')"
        )
        assert HOSTILE[:30] in await page.text(".reply")
        await go(page, f"#/run/0/group/{row.group_id}", "document.querySelector('.aligned img')")
        assert HOSTILE[:20] in await page.text("table")
        await go(page, "#/run/0/episodes?outcome=failure", ROWS)
        assert await page.evaluate("document.title") != "owned"
        assert await page.evaluate("document.querySelectorAll('main script, main [onerror], main [src=x]').length") == 0
        assert await page.evaluate("problems") == []


async def test_the_first_screen_of_a_failed_episode_says_what_was_read_and_expected(tmp_path: Path, run: Run) -> None:
    """For ten failed episodes, without a click or scrolling, on a screen of 1280 x 800 pixels."""
    rows = [row for row in run.episodes() if row.value == 0][::7][:10]
    assert len(rows) == 10
    async with opened(tmp_path, run) as (page, _):
        for row in rows:
            await go(page, f"#/run/0/episode/{row.id}", SCREEN)
            for found in load_result(run, row.id).outcome.failed:  # type: ignore[union-attr]
                visible = (
                    "[...document.querySelectorAll('.verdict li')].filter(node => "
                    "node.getBoundingClientRect().bottom <= innerHeight).map(node => node.innerText).join(' ')"
                )
                shown = " ".join((await page.evaluate(visible)).split())
                assert all(" ".join(text.split()) in shown for text in (found.clause, found.read, found.expected))


async def test_keys_step_play_change_tabs_and_follow_the_list(tmp_path: Path, run: Run) -> None:
    async with opened(tmp_path, run) as (page, address):
        await go(page, "#/run/0/episodes?sort=steps&descending=1", ROWS)
        ids = await page.evaluate("JSON.parse(sessionStorage.getItem('deskhand-list')).ids")
        await go(page, f"#/run/0/episode/{ids[0]}", SCREEN)
        await page.press("ArrowRight", 39)
        await page.until(
            "location.hash.includes('step=1') && document.querySelector('.timeline [aria-current]').innerText === '2'"
        )
        await page.press("End", 35)
        await page.until("document.querySelector('.timeline [aria-current]').innerText === 'end'")
        await page.press("Home", 36)
        await page.evaluate("document.querySelector('[aria-label=Speed]').value = '4'")
        await page.evaluate("document.querySelector('[aria-label=Speed]').dispatchEvent(new Event('change'))")
        await page.evaluate("document.activeElement.blur()")
        await page.press(" ", 32)
        await page.until("document.querySelector('.timeline [aria-current]').innerText === 'end'")
        await page.press("3", 51)
        await page.until("document.querySelector('[role=tab][aria-selected=true]').innerText === 'Outcome'")
        await page.press("ArrowDown", 40)
        await page.until(f"location.hash.includes('{ids[1]}') && location.hash.includes('tab=outcome')")
        link = await page.evaluate("location.href")
        await page.open("about:blank")
        await page.open(link)  # a deep link, with the token kept from before
        await page.until(
            f"document.querySelector('[role=tab][aria-selected=true]')?.innerText === 'Outcome' && {SCREEN}"
        )
        assert address in link


async def test_actions_trail_and_changed_region_are_drawn_where_they_were(tmp_path: Path, run: Run) -> None:
    results = (load_result(run, row.id) for row in run.episodes(TRAIN))
    result = next(one for one in results if len(one.steps) > 2 and all(step.changed_bbox for step in one.steps[:2]))
    async with opened(tmp_path, run) as (page, _):
        await go(
            page,
            f"#/run/0/episode/{result.episode_id}?step=1",
            f"{SCREEN} && document.querySelector('.screen .changed')",
        )
        names = ("x", "y", "width", "height")
        found = await page.evaluate(
            f"{list(names)}.map(name => Number(document.querySelector('.screen .changed').getAttribute(name)))"
        )
        left, top, right, bottom = result.steps[0].changed_bbox or (0, 0, 0, 0)
        assert found == [left, top, right - left, bottom - top]
        await page.press("ArrowLeft", 37)
        await page.until("document.querySelector('.screen .target')")
        at = await page.evaluate(
            "['cx', 'cy'].map(name => Number(document.querySelector('.screen .point').getAttribute(name)) - 0.5)"
        )
        point = result.steps[0].ops[0].point  # type: ignore[union-attr]
        assert at == [point.x, point.y]  # type: ignore[union-attr]


async def test_screenshots_of_a_group_are_loaded_when_they_come_into_view(tmp_path: Path) -> None:
    with Run.open(generate(tmp_path / "run", 8, steps=40), read_only=True) as run:
        group = run.episodes(TRAIN)[0].group_id
        async with opened(tmp_path, run) as (page, _):
            loaded = "document.querySelectorAll('.aligned img[src]').length"
            await go(page, f"#/run/0/group/{group}", f"{loaded} > 3")
            total = await page.evaluate("document.querySelectorAll('.aligned img').length")
            assert total > 300
            assert await page.evaluate(loaded) < total / 2
            await page.evaluate("[...document.querySelectorAll('.aligned tr')].at(-3).scrollIntoView()")
            await page.until("[...document.querySelectorAll('.aligned tr')].at(-3).querySelector('img')?.naturalWidth")


async def test_filters_and_pages_reach_every_episode(tmp_path: Path, run: Run) -> None:
    total = len(run.episodes())
    failed = sum(row.value is not None and row.value < 1 for row in run.episodes())
    async with opened(tmp_path, run) as (page, _):
        await go(page, "#/run/0/episodes", f"document.querySelector('.pager').innerText.includes('of {total}')")
        await page.evaluate("document.querySelector('[aria-label=\"Next page\"]').click()")
        await page.until("document.querySelector('.pager').innerText.includes('51–100')")
        await page.evaluate("document.querySelector('select[aria-label=outcome]').value = 'failure'")
        await page.evaluate("document.querySelector('select[aria-label=outcome]').dispatchEvent(new Event('change'))")
        await page.until(f"document.querySelector('.pager').innerText.includes('of {failed}')")
        assert "outcome=failure" in await page.evaluate("location.hash")


async def test_pages_follow_a_run_that_is_written(tmp_path: Path) -> None:
    folder = generate(tmp_path / "run", 16)
    with Run.open(folder, read_only=True) as reading, Run.open(folder) as writing:
        async with opened(tmp_path, reading) as (page, _):
            await go(page, "#/run/0/episodes", ROWS)
            before = len(reading.episodes())
            await page.until(f"document.querySelector('.pager').innerText.includes('of {before}')")
            added = extend(writing, 16, seed=1)
            await page.until(f"document.querySelector('.pager').innerText.includes('of {before + len(added)}')")
            await go(page, "#/run/0", "document.querySelector('.tiles')")
            steps = len(reading.metrics())
            extend(writing, 16, seed=2)
            await page.until(f"document.querySelector('.tiles').innerText.includes('{steps + 1} steps')")


async def test_a_run_in_which_nothing_happened_yet_is_shown(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        async with opened(tmp_path, run) as (page, _):
            await page.until("document.querySelector('.tiles').innerText.includes('no step yet')")
            await go(page, "#/run/0/episodes", "document.querySelector('.pager').innerText.includes('of 0')")
            await go(page, "#/run/0/episode/absent", "document.querySelector('[role=alert]')")
            assert "no episode absent" in await page.text("[role=alert]")
            assert await page.evaluate("problems") == []


async def test_runs_are_compared(tmp_path: Path, run: Run) -> None:
    config = {"model": "tiny", "trainer": {"algorithm": "dr_grpo"}}
    with Run.open(generate(tmp_path / "other", 16, config=config), read_only=True) as other:
        async with opened(tmp_path, run, other) as (page, _):
            await page.until(
                "location.hash.startsWith('#/compare') && document.querySelectorAll('.charts svg text').length"
            )
            shown = await page.text("main")
            assert "trainer.algorithm" in shown
            assert "dr_grpo" in shown
            assert await page.evaluate("document.querySelectorAll('.charts polyline.line').length") == 4
            await page.evaluate("document.querySelector('fieldset input:last-of-type').click()")
            await page.until("document.querySelectorAll('.charts polyline.line').length === 2")
            assert await page.evaluate("problems") == []


async def test_a_wrong_token_shows_no_data_and_the_right_one_is_hidden_from_the_url(tmp_path: Path, run: Run) -> None:
    async with on_a_port(create_app([run], TOKEN)) as address, browser(tmp_path) as page:
        await page.open(f"{address}/#token=wrong")
        await page.until("document.querySelector('[role=alert]')")
        assert "Generated run" not in await page.text()
        await page.evaluate(f"document.querySelector('input[type=password]').value = {TOKEN!r}")
        await page.evaluate("document.querySelector('.problem button').click()")
        await page.until("document.querySelector('.tiles')")
        assert TOKEN not in await page.evaluate("location.href")


async def test_controls_have_names_and_tables_have_heads(tmp_path: Path, run: Run) -> None:
    unnamed = """[...document.querySelectorAll('button, a, input, select, svg[role=img]')].filter(node =>
        !(node.innerText || node.getAttribute('aria-label') || node.closest('label') || node.querySelector('img[alt]')))
        .map(node => node.outerHTML.slice(0, 90))"""
    async with opened(tmp_path, run) as (page, _):
        for name, (fragment, expression) in views_of(run).items():
            await go(page, fragment, expression)
            assert await page.evaluate(unnamed) == [], name
            assert await page.evaluate("document.querySelectorAll('main img:not([alt])').length") == 0, name
            assert await page.evaluate(
                "[...document.querySelectorAll('table')].every(one => one.querySelector('th[scope]'))"
            ), name
            assert await page.evaluate("document.querySelectorAll('h1').length") == 1


async def test_the_one_file_report_shows_the_same_reason(tmp_path: Path, run: Run) -> None:
    path = write(build_report_view(run), tmp_path / "report.html")
    async with browser(tmp_path) as page:
        await page.open(path.as_uri())
        await page.until("document.querySelector('.list li.failure')")
        await page.evaluate("document.querySelector('.list li.failure').click()")
        await page.until(f"document.querySelector('.findings .failed') && {SCREEN}")
        assert "Quarterly report" in await page.text(".findings")
        assert await page.evaluate("problems") == []
