"""MiniWoB++ in a real Chromium: every task loads, solutions score, cheats do not."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from desktops import embedded
from patience import limit

from deskhand.actions.ops import Click, Key, Point, screen_px
from deskhand.cli.main import app
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import ConfigError
from deskhand.rollout.run_writer import load_result
from deskhand.store.run import Run
from deskhand.tasks import chromium
from deskhand.tasks.cheats import shell_scripts
from deskhand.tasks.judge import judge
from deskhand.tasks.outcome import Errored, Finding, Scored
from deskhand.tasks.suites import miniwob
from deskhand.tasks.suites.miniwob import solutions

pytestmark = [
    pytest.mark.skipif(
        shutil.which("chromium-shell") is None, reason="not installed: deskhand desktop install chromium-shell"
    ),
    pytest.mark.skipif(
        miniwob.unavailable_reason() is not None, reason="no package miniwob (pip install --no-deps miniwob)"
    ),
]
SIZE = screen_px(miniwob.WIDTH, miniwob.HEIGHT)


def desktop_for_pages() -> AbstractAsyncContextManager[LocalDesktop]:
    return embedded(DesktopSpec("plain", miniwob.WIDTH, miniwob.HEIGHT))


async def go_to(desktop: LocalDesktop, name: str, seed: int) -> chromium.ChromiumSession:
    """Another task in the browser that is open already, which is quicker than a new one."""
    for place, path in miniwob.page_files(name).items():
        await desktop.push(f"{miniwob.FOLDER}/{place}", path.read_bytes())
    page = chromium.session_of(desktop)
    folder = str(await page.evaluate("location.href")).rsplit("/", 1)[0]
    await page.call("Page.navigate", url=f"{folder}/{name}.html")
    await page.wait_loaded()
    await miniwob.begin_episode(page, seed)
    return page


async def test_every_page_loads_with_an_instruction_and_hides_its_reward() -> None:
    wrong: dict[str, object] = {}
    async with desktop_for_pages() as desktop:
        await miniwob.start(desktop, miniwob.task_names()[0], 7)
        for name in miniwob.task_names():
            page = await go_to(desktop, name, 7)
            told = await miniwob.instruction(desktop)
            shown = await page.evaluate(
                "['reward-display', 'click-canvas', 'sync-task-cover'].filter(id => document.getElementById(id)"
                " && getComputedStyle(document.getElementById(id)).display !== 'none')"
            )
            if not told or shown or await miniwob.page_reward(desktop) is not None:
                wrong[name] = (told, shown)
    assert len(miniwob.task_names()) == 130
    assert wrong == {}


async def test_solutions_by_pointer_and_keyboard_earn_the_pages_own_reward() -> None:
    assert len(solutions.STEPS) >= 15
    async with desktop_for_pages() as desktop:
        await miniwob.start(desktop, "click-test", 0)
        for seed, name in enumerate(sorted(solutions.STEPS)):
            task = miniwob.make_task(name, seed)
            await go_to(desktop, name, seed)
            before = await judge(task, desktop, grace_s=0)
            assert before == Scored(0.0, {"end_state": 0.0}, guest_trusted=True), name
            index = 0
            async for ops in task.oracle(desktop):
                await desktop.perform(ops, action_id=f"{task.id}#{index}")
                index += 1
            outcome = await judge(task, desktop)
            reward = await miniwob.page_reward(desktop)
            assert isinstance(outcome, Scored), name
            assert reward == outcome.findings[0].value, name
            assert (outcome.value, reward) == (1.0, 1.0), (name, outcome.findings)


@pytest.mark.parametrize("name", ["click-test", "click-button", "click-dialog-2", "enter-text", "click-shape"])
async def test_a_rearranged_page_asks_as_one_that_was_started_with_that_seed(name: str) -> None:
    async with desktop_for_pages() as desktop:
        task = miniwob.make_task(name, 1)
        assert task.grounding_targets is not None
        assert task.shuffle_windows is not None
        await task.setup(desktop)
        first = await task.grounding_targets(desktop)
        await task.shuffle_windows(desktop, 12)
        asked = await task.grounding_targets(desktop)
        async for ops in task.oracle(desktop):
            click = ops[0]
            break
        assert isinstance(click, Click)
        assert click.point is not None
        x, y = int(click.point.x), int(click.point.y)
        assert any(box.contains(x, y) for _, box in asked), "what the oracle clicks has a name"
        told = await miniwob.instruction(desktop) in dict(asked)
        assert told == (name in {"click-button", "click-shape"}), "what a page wants is asked only without names"
        for _, each in asked:
            assert 0 <= each.left < each.right <= miniwob.WIDTH
            assert 0 <= each.top < each.bottom <= miniwob.HEIGHT
        assert len(dict(asked)) == len(asked), "each question has one answer"
        await go_to(desktop, name, 12)
        assert asked == await task.grounding_targets(desktop) != first


async def test_a_wrong_click_scores_zero_and_its_negative_reward_is_reported() -> None:
    async with desktop_for_pages() as desktop:
        task = miniwob.make_task("click-test-2", 3)
        await task.setup(desktop)
        assert await task.resolve_instruction(desktop) == "Click button ONE."
        box = await chromium.session_of(desktop).evaluate(
            "(() => { const b = document.getElementById('subbtn2').getBoundingClientRect();"
            " return [b.right - 4, b.bottom - 4]; })()"
        )
        await desktop.perform([Click(Point(*box, SIZE))], action_id="wrong")
        outcome = await judge(task, desktop, grace_s=0)
        assert isinstance(outcome, Scored)
        assert (outcome.value, outcome.guest_trusted) == (0.0, True)
        assert (outcome.findings[0].value, outcome.failed[0].read) == (-1.0, "reward -1")


async def test_a_page_has_ended_when_it_has_a_reward() -> None:
    async with desktop_for_pages() as desktop:
        task = miniwob.make_task("click-test", 4)
        await task.setup(desktop)
        assert not await miniwob.has_ended(desktop)
        async for ops in task.oracle(desktop):
            await desktop.perform(ops, action_id="solve")
        assert await miniwob.has_ended(desktop)


async def test_a_page_that_was_killed_has_not_ended() -> None:
    async with desktop_for_pages() as desktop:
        await miniwob.make_task("click-test", 4).setup(desktop)
        await desktop.run(["sh", "-c", shell_scripts.KILL_CHILDREN])
        assert not await miniwob.has_ended(desktop)


async def test_a_seed_is_one_page_and_another_seed_another() -> None:
    async with desktop_for_pages() as desktop:
        frames, told = [], []
        for seed in (11, 11, 12):
            await desktop.reset(DesktopSpec("plain", miniwob.WIDTH, miniwob.HEIGHT))
            await miniwob.start(desktop, "click-checkboxes", seed)
            assert await chromium.session_of(desktop).evaluate("document.hasFocus()")
            frames.append((await desktop.observe()).without_cursor().sha256)
            told.append(await miniwob.instruction(desktop))
    assert frames[0] == frames[1] != frames[2]
    assert told[0] == told[1] != told[2]


async def test_a_page_that_hangs_is_an_outage_unless_the_agent_opened_something_else() -> None:
    hang = "setTimeout(() => { while (true); }, 0)"
    for opens, kind in ((False, Errored), (True, Scored)):
        async with desktop_for_pages() as desktop:
            task = miniwob.make_task("click-test", 5)
            await task.setup(desktop)
            page = chromium.session_of(desktop)
            if opens:
                await page.call("Target.createTarget", browser_wide=True, url="data:text/plain,other")
            await page.evaluate(hang)
            outcome = await judge(task, desktop, grace_s=0, timeout_s=60)
            assert isinstance(outcome, kind), outcome
            assert not isinstance(outcome, Scored) or outcome.value == 0.0


@pytest.mark.parametrize("opens", [False, True], ids=["loading the page anew", "opening another page"])
async def test_leaving_the_page_scores_zero(opens: bool) -> None:
    async with desktop_for_pages() as desktop:
        task = miniwob.make_task("click-test", 5)
        await task.setup(desktop)
        page = chromium.session_of(desktop)
        if opens:
            await page.call("Target.createTarget", browser_wide=True, url="data:text/plain,other")
        else:
            await page.call("Page.reload")  # no key does
        await asyncio.sleep(0.5)
        await page.wait_loaded()
        # as a page whose script was called would have it
        await page.evaluate("core.startEpisodeReal(), core.endEpisode(1.0, false)")
        assert await miniwob.page_reward(desktop) == 1.0
        outcome = await judge(task, desktop, grace_s=0)
        assert isinstance(outcome, Scored)
        assert outcome.value == 0.0
        assert [finding.clause for finding in outcome.failed] == ["pages opened besides"]


async def test_closing_the_page_scores_zero_without_an_error() -> None:
    async with desktop_for_pages() as desktop:
        task = miniwob.make_task("click-test", 8)
        await task.setup(desktop)
        await desktop.perform([Key(("alt", "f4"))], action_id="close")
        for _ in range(round(limit(50))):
            if not await desktop.windows():
                break
            await asyncio.sleep(0.05)
        outcome = await judge(task, desktop, grace_s=0)
        assert isinstance(outcome, Scored), outcome
        assert outcome.value == 0.0
        assert "closed" in outcome.findings[0].read


@pytest.mark.parametrize(
    ("script", "reason"),
    [(shell_scripts.KILL_CHILDREN, "has ended (killed)"), (shell_scripts.STOP_CHILDREN, "has stopped programs")],
)
async def test_a_guest_that_ends_or_stops_the_page_is_no_outage(
    script: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = miniwob.make_task("click-test", 1)
    async with desktop_for_pages() as desktop:
        await task.setup(desktop)
        await desktop.run(["sh", "-c", script])
        monkeypatch.setattr(chromium, "REPLY_TIMEOUT_S", 2.0)
        outcome = await judge(task, desktop, grace_s=0, acted_at=0.0)
        assert isinstance(outcome, Scored), outcome
        assert outcome.value == 0.0
        (finding, *_) = outcome.findings
        assert reason in finding.read


async def test_a_page_that_is_loaded_again_during_a_check_scores_zero_and_is_not_an_outage() -> None:
    async with desktop_for_pages() as desktop:
        task = miniwob.make_task("click-test", 5)
        await task.setup(desktop)
        page = chromium.session_of(desktop)
        with pytest.raises(chromium.PageError, match="another page was loaded while the script ran"):
            await page.evaluate("new Promise(() => location.reload())")
        await page.wait_loaded()
        outcome = await judge(task, desktop, grace_s=0)
        assert isinstance(outcome, Scored)
        assert outcome.value == 0.0


async def test_keys_of_a_browser_do_nothing() -> None:
    async with desktop_for_pages() as desktop:
        task = miniwob.make_task("click-test", 6)
        await task.setup(desktop)
        keys = [("f12",), *(("ctrl", "shift", key) for key in "ijcn"), *(("ctrl", key) for key in "nthujoslwpd+-0")]
        for each in (*keys, ("ctrl", "r"), ("f5",), ("alt", "left"), ("alt", "home"), ("f11",), ("f6",)):
            await desktop.perform([Key(each)], action_id="+".join(each))
        await asyncio.sleep(1.0)
        assert await chromium.session_of(desktop).opened_since_mark() == ""
        async for ops in task.oracle(desktop):
            await desktop.perform(ops, action_id="solve")
        outcome = await judge(task, desktop)
        assert isinstance(outcome, Scored)
        assert outcome.value == 1.0


def test_an_evaluation_stores_the_pages_instruction_and_reward(tmp_path: Path) -> None:
    settings = ["suite.families=[miniwob/click-button]", "evaluation.num_episodes=1", "desktop.prewarm=0"]
    settings = [word for text in (*settings, "loop.max_concurrent_episodes=1") for word in ("--set", text)]
    words = ["eval", str(tmp_path / "run"), "--policy", "oracle", *settings]
    app(words, result_action="return_value")
    with Run.open(tmp_path / "run", read_only=True) as run:
        (row,) = run.episodes("oracle", "scored")
        result = load_result(run, row.id)
    assert result.reward == 1.0
    assert (result.transcript.stop_reason, len(result.transcript.steps)) == ("terminated", 1), "the page has ended"
    assert result.instruction.startswith('Click on the "')
    assert isinstance(result.outcome, Scored)
    assert result.outcome.findings[0] == Finding("the page's reward", 1.0, "reward 1", "above 0")


def test_an_unknown_task_is_named_with_the_way_to_the_list() -> None:
    with pytest.raises(ConfigError, match=r"unknown MiniWoB\+\+ task 'solitaire'.*--suite miniwob"):
        miniwob.make_task("solitaire", 0)
