"""A stored run as a report: what was recorded is what is shown, and an unfinished run has a report too."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import episode_results
import numpy as np
import pytest

from deskhand.desktop.remote import quota, quota_file
from deskhand.desktop.remote.quota_errors import QuotaExceeded, QuotaSignal
from deskhand.errors import ConfigError
from deskhand.reporting.build_report import build_report_view
from deskhand.reporting.html_report import render
from deskhand.reporting.run_view import evaluation_views, families_without_signal, open_run, with_total_time
from deskhand.reporting.select_episodes import select_episodes
from deskhand.rollout.episode_record import EpisodeResult, to_record
from deskhand.rollout.groups import EpisodeRequest
from deskhand.rollout.run_writer import new_row, row_of
from deskhand.store.run import TRAIN, EpisodeRow, Run
from deskhand.tasks.suites import basics
from deskhand.tasks.task import Split, seed_for


def keep(run: Run, result: EpisodeResult, phase: str) -> None:
    task = basics.make_task("dialog_choice", result.seed)
    run.start_episode(new_row(EpisodeRequest(result.episode_id, task), phase))
    scored = result.reward is not None
    state = ("queued" if phase == TRAIN else "scored") if scored else "errored"
    run.finish_episode(row_of(result, phase, state), *to_record(result))


def stored(tmp_path: Path) -> Run:
    run = Run.create(tmp_path / "run", {"title": "A run", "facts": {"model": "tiny"}, "config": {}})
    run.frames.put("f" * 64, np.full((100, 200, 3), (1, 2, 3), np.uint8))
    for index in range(4):
        reward = float(index == 0)
        keep(
            run,
            episode_results.result(reward, episode_id=f"b{index}", task_id=f"t{index}", version=0, version_max=0),
            "version-0",
        )
        keep(
            run,
            episode_results.result(1 - reward, episode_id=f"a{index}", task_id=f"t{index}", version_max=7),
            "version-7",
        )
    keep(run, episode_results.result(0.5, episode_id="t0"), TRAIN)
    keep(run, episode_results.result(None, episode_id="t1"), TRAIN)
    return run


def test_evaluations_are_before_and_after_by_version(tmp_path: Path) -> None:
    with stored(tmp_path) as run:
        views = list(evaluation_views(run).values())
    found = [(view.label, view.version, view.report.success.hits, view.report.success.total) for view in views]
    assert found == [("before", 0, 1, 4), ("after", 7, 3, 4)]


@pytest.mark.parametrize(
    ("split", "shown", "absent"),
    [("train", "Success on training tasks", "Held-out success"), ("test", "Held-out success", "Success on training")],
)
def test_only_success_on_held_out_tasks_is_called_so(tmp_path: Path, split: Split, shown: str, absent: str) -> None:
    with Run.create(tmp_path / "run", {"title": "A run", "facts": {}, "config": {}}) as run:
        for version in (0, 7):
            seed = seed_for(split, 0)
            played = episode_results.result(
                1.0, episode_id=f"v{version}", seed=seed, version=version, version_max=version
            )
            keep(run, played, f"version-{version}")
        page = render(build_report_view(run))
    assert shown in page
    assert absent not in page


def test_before_and_after_are_of_the_same_tries(tmp_path: Path) -> None:
    with stored(tmp_path) as run:
        for index in range(3):
            keep(
                run,
                episode_results.result(0.0, episode_id=f"more{index}", seed=900 + index, version=0, version_max=0),
                "version-0",
            )
        views = evaluation_views(run)
    assert [views[name].report.success.total for name in ("version-0", "version-7")] == [4, 4]


def test_an_episode_is_shown_with_its_marks_tokens_and_errors(tmp_path: Path) -> None:
    with stored(tmp_path) as run:
        checkpoint = run.folder / "checkpoints" / "step-000000"
        checkpoint.mkdir(parents=True)
        (checkpoint / "tokenizer.json").write_text(json.dumps(tokenizer()))
        view = build_report_view(run)
    episode = next(episode for episode in view.episodes if episode["id"] == "t0")
    first, second, _ = episode["steps"]
    assert first["marks"] == [{"kind": "click", "points": [(2, 2)]}]
    assert [(token["text"], token["version"]) for token in first["tokens"]] == [("five", 3), ("six", 3), ("seven", 3)]
    assert [token["logprob"] for token in first["tokens"]] == [-0.1 * (index + 1) / 3 for index in range(3)]
    assert (second["error"], second["marks"]) == ("not JSON", [])
    assert [episode[name] for name in ("phase", "outcome", "value", "target")] == [
        "train",
        "failure",
        0.5,
        (1, 2, 3, 4),
    ]
    assert view.frames.keys() == {"f" * 64}


def tokenizer() -> dict:
    words = {
        word: index
        for index, word in enumerate(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight"])
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "zero"},
    }


def test_an_episode_that_a_kill_cut_off_is_counted_and_not_shown(tmp_path: Path) -> None:
    with stored(tmp_path) as run:
        run.start_episode(new_row(EpisodeRequest("cut off", basics.make_task("dialog_choice", 9)), TRAIN))
        assert run.abandon_in_flight() == 1
        assert ("errored", "infrastructure") in run.count_states()
        assert "cut off" not in {episode["id"] for episode in build_report_view(run).episodes}


def test_an_errored_episode_has_a_cause_and_no_value(tmp_path: Path) -> None:
    with stored(tmp_path) as run:
        view = build_report_view(run)
    episode = next(episode for episode in view.episodes if episode["id"] == "t1")
    assert (episode["outcome"], episode["value"], episode["reward"]) == ("errored", None, None)
    assert episode["cause"] == "infrastructure: it broke"


def test_a_run_without_a_step_is_rendered(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {"config": {}})
    with run:
        assert "No training steps yet." in render(build_report_view(run))


async def test_a_run_that_waits_for_a_quota_says_so_in_its_report(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {"config": {}}) as run:
        lot = quota.QuotaManager(run.folder / quota_file.QUOTA_FILE)

        async def full() -> None:
            raise QuotaExceeded(QuotaSignal("429", 3600.0), "take")

        waiting = asyncio.create_task(lot.gate("https://desktops.example", "secret").desktops.run(full))
        while not lot.num_waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        page = render(build_report_view(run))
        assert "1 waiting at https://desktops.example (desktops) (429, " in page
        assert "secret" not in page
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert "waiting at" not in render(build_report_view(run))


def test_tasks_without_signal_are_named_with_the_reason() -> None:
    def row(family: str, state: str, value: float | None = None, cause: str | None = None) -> EpisodeRow:
        return EpisodeRow("e", TRAIN, "g", 0, f"x/{family}", family, 0, "train", state, cause=cause, value=value)

    rows = [
        *(row("os/1", "zero_variance", 1.0) for _ in range(4)), row("os/1", "errored", cause="infrastructure"),
        row("os/2", "zero_variance", 0.0), row("os/3", "zero_variance", 0.0), row("os/3", "trained", 1.0),
        row("os/4", "zero_variance", 0.0), row("os/4", "zero_variance", 1.0), row("os/5", "errored", cause="evaluator"),
        row("os/6", "in_flight"), row("os/7", "errored", cause="cancelled"), row("os/8", "queued", 0.5),
    ]  # fmt: skip
    said = "os/1 (always solved), os/2 (always failed), os/4 (equal in each group), os/5 (never scored)"
    assert families_without_signal(rows) == said
    assert families_without_signal([]) == ""
    many = families_without_signal([row(f"f{number:02}", "zero_variance", 0.0) for number in range(23)])
    assert many.endswith("f19 (always failed) and 3 more")


def test_reading_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    with stored(tmp_path) as run:
        folder = run.folder
    before = {path: path.read_bytes() for path in folder.rglob("*.png")}
    with open_run(folder) as run:
        build_report_view(run)
    assert {path: path.read_bytes() for path in folder.rglob("*.png")} == before


def test_a_folder_without_a_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pass a run directory"):
        open_run(tmp_path / "absent")


def test_time_goes_on_over_a_resume() -> None:
    entries = [{"step": step, "time/elapsed": elapsed} for step, elapsed in ((1, 10.0), (2, 20.0), (3, 5.0), (4, 9.0))]
    assert [entry["time/elapsed"] for entry in with_total_time(entries)] == [10.0, 20.0, 25.0, 29.0]


def test_selected_episodes_are_spread_and_include_errored_ones(tmp_path: Path) -> None:
    with stored(tmp_path) as run:
        rows = run.episodes()
    chosen = select_episodes(rows * 10, 13)
    assert len(chosen) == 13
    assert sum(row.state == "errored" for row in chosen) == 2
    assert {row.phase for row in chosen} == {TRAIN, "version-0", "version-7"}
