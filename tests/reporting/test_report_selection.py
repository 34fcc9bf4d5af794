"""What a report of one file shows: whole groups, named episodes, why episodes failed, alerts and settings."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from benchmarks.browser import CHROMIUM, browser
from benchmarks.generated_run import GROUP_SIZE, HOSTILE, generate
from deskhand.errors import ConfigError
from deskhand.reporting.build_report import build_report_view
from deskhand.reporting.html_report import render, write
from deskhand.reporting.select_episodes import Selection
from deskhand.reporting.viewer.run_data import group_data
from deskhand.store.run import TRAIN, Run


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Iterator[Run]:
    folder = generate(tmp_path_factory.mktemp("report") / "run", 192)
    with Run.open(folder, read_only=True) as run:
        yield run


def groups_of(run: Run, episodes: list[str]) -> Counter[str | None]:
    """How many of these episodes are of each group."""
    return Counter(row.group_id for row in run.episodes(TRAIN) if row.id in episodes)


def test_training_episodes_are_whole_groups_with_different_rewards(run: Run) -> None:
    view = build_report_view(run)
    shown = [each["id"] for each in view.episodes if each["phase"] == "train"]
    state = {row.id: row.state for row in run.episodes()}
    groups = groups_of(run, shown)
    whole = [name for name, count in groups.items() if count == GROUP_SIZE]
    assert len(whole) > 1
    assert len(shown) <= 36
    more = [name for name in shown if not groups_of(run, [name]).keys() <= set(whole)]
    assert {state[name] for name in more} <= {"errored"}, "besides groups, some episodes without a score"
    for name in whole:
        assert len({row.reward for row in run.episodes(group_id=name) if row.reward is not None}) > 1
        assert name in view.groups
    order = [each["group_id"] for each in view.episodes if each["phase"] == "train"]
    assert [name for at, name in enumerate(order) if at == 0 or order[at - 1] != name] == list(groups), "side by side"
    steps = {row.step for row in run.episodes(TRAIN) if row.id in shown and row.step is not None}
    assert max(steps) - min(steps) > 2, "they are spread over the training"
    assert view.num_hidden_episodes == len([row for row in run.episodes() if run.has_record(row.id)]) - len(
        view.episodes
    )


def test_a_group_is_never_cut(run: Run) -> None:
    shown = [each["id"] for each in build_report_view(run, Selection(per_phase=3)).episodes if each["phase"] == "train"]
    assert list(groups_of(run, shown).values()) == [GROUP_SIZE]
    evaluated = [each for each in build_report_view(run, Selection(per_phase=3)).episodes if each["phase"] == "before"]
    assert len(evaluated) == 3


def test_named_episodes_and_groups_are_shown_alone(run: Run) -> None:
    rows = [row for row in run.episodes(TRAIN) if run.has_record(row.id)]
    first, last = rows[0], rows[-1]
    assert first.group_id != last.group_id
    assert last.group_id is not None
    view = build_report_view(run, Selection(episodes=(first.id,), groups=(last.group_id[:8],)))
    shown = [each["id"] for each in view.episodes]
    assert first.id in shown
    assert set(shown) - {first.id} == {row.id for row in run.episodes(group_id=last.group_id) if run.has_record(row.id)}
    assert set(view.groups) == {first.group_id, last.group_id}
    failed = build_report_view(run, Selection(failed=True))
    assert {each["outcome"] for each in failed.episodes} <= {"failure", "errored"}


def test_members_have_rewards_and_advantages_as_the_trainer_computed_them(run: Run) -> None:
    view = build_report_view(run)
    name, group = next(iter(view.groups.items()))
    wanted = group_data(run, name)
    assert [each["advantage"] for each in group["members"]] == [each["advantage"] for each in wanted["members"]]
    assert group["explained"].startswith("grpo: ")


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(episodes=("absent",)), "--episode absent: no finished episodes have an id that begins so"),
        (Selection(episodes=("",)), "finished episodes have an id that begins so"),
        (Selection(groups=("absent",)), "--group absent: no groups with finished episodes"),
    ],
)
def test_an_id_that_is_unknown_or_not_unique_is_one_line(run: Run, selection: Selection, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_report_view(run, selection)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_page_says_why_episodes_failed_what_was_alerted_and_with_which_settings(run: Run) -> None:
    view = build_report_view(run)
    page = render(view)
    assert HOSTILE not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    text = unescape(re.sub(r"<[^>]*>", "|", page.split('<script type="application/json"')[0]))
    assert "Why episodes failed" in text
    for each in view.failures:
        assert each["family"] in text
    alert = view.alerts[0]
    assert alert["hint"] in text
    assert f"step {alert['steps'][-1]}" in text
    assert "trainer.algorithm" in text
    assert '"grpo"' in text


def test_the_command_takes_the_selection(run: Run, tmp_path: Path, cli, cli_error) -> None:
    name = next(row.id for row in run.episodes(TRAIN) if run.has_record(row.id))
    out = tmp_path / "one.html"
    cli("report", str(run.folder), "--episode", name, "--out", str(out))
    data = json.loads(out.read_text().split('id="data">')[1].split("</script>")[0])
    assert [each["id"] for each in data["episodes"]] == [name]
    assert "must be at least 1" in cli_error("report", str(run.folder), "--episodes", "0")
    assert "no finished episodes" in cli_error("report", str(run.folder), "--episode", "absent")


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
async def test_members_of_a_group_open_each_other(run: Run, tmp_path: Path) -> None:
    path = write(build_report_view(run), tmp_path / "report.html")
    async with browser(tmp_path) as page:
        await page.open(path.as_uri())
        await page.until("document.querySelector('.list li')")
        await page.evaluate(
            "[...document.querySelectorAll('.list li')].find(one => /group/.test(one.innerText)).click()"
        )
        await page.until(f"document.querySelectorAll('.members li').length === {GROUP_SIZE}")
        assert "advantage" in await page.text(".members")
        before = await page.evaluate("location.hash")
        await page.evaluate(
            "document.querySelector('.members button:not([aria-current=true]):not([disabled])').click()"
        )
        await page.until(f"location.hash !== {json.dumps(before)}")
        assert await page.evaluate(f"document.querySelectorAll('.members li').length === {GROUP_SIZE}")
        assert await page.evaluate("problems") == []


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
async def test_both_charts_fit_a_narrow_screen(run: Run, tmp_path: Path) -> None:
    outside = """[...document.querySelectorAll('figure svg text')]
        .map(text => [text.textContent, text.getBoundingClientRect()])
        .filter(([_, box]) => box.left < 0 || box.right > innerWidth || box.height < 8).map(([text]) => text)"""
    path = write(build_report_view(run), tmp_path / "report.html")
    async with browser(tmp_path) as page:
        await page.size(390, 844)
        await page.open(path.as_uri())
        await page.until("document.querySelectorAll('figure svg').length === 2")
        assert await page.evaluate(outside) == []
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
