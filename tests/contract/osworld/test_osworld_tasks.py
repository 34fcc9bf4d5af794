"""OSWorld's own task files on the embedded desktop: our scripted solution scores 1 by OSWorld's metrics, and doing
nothing 0.

A few of them, one for each application; `python -m benchmarks.osworld_tasks --full` plays all.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from task_files import SHARED

from benchmarks.osworld.solutions import REASONS, SOLUTIONS
from benchmarks.osworld_tasks import FIRST, candidates, play
from deskhand.desktop.applications.catalog import PROFILES
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import ConfigError
from deskhand.osworld.official_evaluators import OfficialEvaluators
from deskhand.osworld.task import load_task
from deskhand.rollout.episode import desktop_spec
from deskhand.tasks.formats import osworld
from deskhand.tasks.judge import judge
from deskhand.tasks.outcome import Scored

FILES = SHARED / "osworld"
PLAYED = (
    FIRST,
    pytest.param(
        "a5bbbcd5-b398-4c91-83d4-55e1e31bbb81",
        marks=pytest.mark.skipif(
            not PROFILES["vlc"].installed, reason="VLC is not installed; as root: deskhand desktop install vlc"
        ),
    ),
)
pytestmark = pytest.mark.skipif(
    not FILES.is_dir(), reason="OSWorld's task files are not beside the checkout (../shared)"
)


def path_of(task_id: str) -> Path:
    return next(FILES.rglob(f"{task_id}.json"))


@pytest.mark.parametrize("task_id", PLAYED)
async def test_a_scripted_solution_scores_one_and_doing_nothing_scores_zero(
    official: OfficialEvaluators, task_id: str
) -> None:
    task = load_task(path_of(task_id), evaluators=lambda: official, accessibility=True)
    solved = await play(task, SOLUTIONS[task_id])
    assert (solved.score, solved.note) == (1.0, "")
    assert solved.ops > 0
    nothing = await play(task, None)
    assert (nothing.score, nothing.note) == (0.0, "")


async def test_an_infeasible_task_is_solved_by_saying_so_alone(official: OfficialEvaluators) -> None:
    loaded = next(each for each in osworld.load_folder(FILES).tasks if each.task.infeasible and not each.task.config)
    task = load_task(loaded.path, evaluators=lambda: official)
    desktop = LocalDesktop()
    try:
        await desktop.reset(desktop_spec(task))
        await task.setup(desktop)
        assert await judge(task, desktop, declared_infeasible=True) == Scored(1.0, {"end_state": 1.0})
        outcome = await judge(task, desktop)
        assert isinstance(outcome, Scored)
        assert outcome.value == 0.0
    finally:
        await desktop.close()


def test_every_candidate_has_a_solution_or_a_reason_and_none_has_both() -> None:
    ids = {task.loaded.task.id for task in candidates(FILES)}
    told = {task.loaded.task.id for task in candidates(FILES) if task.reasons}
    assert ids - SOLUTIONS.keys() - REASONS.keys() - told == set()
    assert SOLUTIONS.keys() & REASONS.keys() == set()
    assert SOLUTIONS.keys() <= ids
    assert len(SOLUTIONS) >= 15
    assert FIRST in SOLUTIONS


def test_a_task_that_cannot_be_scored_here_is_refused_with_the_reason(
    official: OfficialEvaluators, tmp_path: Path
) -> None:
    value = json.loads(path_of(FIRST).read_text())
    value["evaluator"]["result"] = {"type": "active_tab_info"}
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(value))
    with pytest.raises(ConfigError, match="getter active_tab_info: reads live web pages"):
        load_task(path, evaluators=lambda: official)
    value = json.loads(path_of(FIRST).read_text())
    value["evaluator"]["func"] = "compare_table"
    path.write_text(json.dumps(value))
    with pytest.raises(ConfigError, match="metric compare_table: needs OSWorld's own evaluators"):
        load_task(path, evaluators=lambda: None)
    load_task(path, evaluators=lambda: official)
