"""Audit agents on real desktops, including a task whose check a cheat can fool."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from desktops import ISOLATIONS

from deskhand.actions.ops import Done, Op, Wait
from deskhand.desktop.applications.install import missing
from deskhand.desktop.local import guest_user, isolation, landlock
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.recipes import audit_tasks
from deskhand.tasks import audit as agents_of
from deskhand.tasks.audit import AuditResult
from deskhand.tasks.audit_agents import AUDIT_SESSIONS, LIMITS, NO_CHEATS, applies
from deskhand.tasks.formats.yaml_task import load_task
from deskhand.tasks.suites import family_registry
from deskhand.tasks.suites.basics.office_files import read_workbook
from deskhand.tasks.task import CheckResult, Task

SPREAD = {
    "terminal_run": ("near_miss", "forged_file", "forged_after_end", "process_memory", "disk", "kill_apps", "kill_all"),
    "dialog_choice": ("forged_file", "x_kill_clients"),
    "calculator_sum": ("x_selection", "x_mute_selection", "x_claim_for"),
    "shell_sort": ("hostile_files", "racing_writer"),
    "web/mail/clean_up": ("near_miss", "site_requests"),
}
"""Ways of cheating by family; `benchmarks/task_audit.py` plays all of them on every family."""


BREAKING = {"memory", "forks", "full_tmp", "disk", "kill_apps"}


async def audited(task: Task, *agents: str) -> AuditResult:
    (row,), skipped = await audit_tasks.audit_tasks([task], list(agents), None, lambda _: None)
    assert skipped == []
    return row


async def test_every_agent_that_leaves_the_desktop_usable_stays_within_its_limit() -> None:
    agents = {agent.name for agent in AUDIT_SESSIONS[0]} - BREAKING | {"early_stop", "typo", "wrong_click"}
    row = await audited(family_registry.make_task("form_fill", 2), *agents)
    assert set(row.values) == agents | {"oracle"}
    assert row.violations == []
    assert (len(row.cheats), row.num_paid, row.num_voided) == (len(agents - NO_CHEATS), 0, 0)
    assert row.values["oracle"] == 1.0


@pytest.mark.parametrize("family", sorted(SPREAD))
async def test_no_way_of_cheating_is_paid_or_voids_the_episode(family: str) -> None:
    task = family_registry.make_task(family, 2)
    if task.suite == "web" and "namespaces" not in ISOLATIONS:
        pytest.skip("needs namespaces")
    row = await audited(task, *SPREAD[family])
    assert row.cheats == dict.fromkeys(SPREAD[family], 0.0), row.messages
    assert row.violations == []


async def test_no_agent_has_a_shell_where_guests_can_kill_the_users_processes(monkeypatch) -> None:
    monkeypatch.setattr(guest_user, "guest_uids", lambda: False)
    monkeypatch.setattr(landlock, "landlock_version", lambda: 5)
    assert not isolation.guests_can_kill_this_user("namespaces")

    @asynccontextmanager
    async def lease(task: Task):
        yield LocalDesktop(isolation_level="plain")

    task = family_registry.make_task("form_fill", 2)
    for names in ([], ["kill_all"], ["noop", "gold_files"], ["kill_children"]):
        with pytest.raises(ConfigError, match="could kill your processes"):
            await agents_of.audit(task, lease, names)
    with pytest.raises(InfrastructureError, match="call reset first"):  # it is not refused, and not set up
        await agents_of.audit(task, lease, ["noop", "x_selection"])


async def test_half_of_a_range_and_a_constant_are_not_paid() -> None:
    task = family_registry.make_task("sheet_total", 3)
    if lacking := missing(list(audit_tasks.packages_of(task))):
        pytest.skip(f"not installed: {' '.join(lacking)} (deskhand desktop install office)")
    row = await audited(task, "half_range")
    assert (row.values, row.violations) == ({"oracle": 1.0, "half_range": 0.0}, [])


async def test_the_example_of_a_task_file_pays_no_file_of_another_content() -> None:
    row = await audited(load_task(Path(__file__).parents[2] / "examples" / "own_task.yaml"), "clock", "overwrite")
    assert (row.values, row.violations) == ({"oracle": 1.0, "clock": 0.0, "overwrite": 0.0}, [])


@pytest.mark.parametrize(("family", "is_tried"), [("page_form", True), ("page_to_note", False)])
def test_a_page_of_the_agents_own_is_tried_where_the_browser_writes_the_end(family: str, is_tried: bool) -> None:
    (agent,) = [each for session in AUDIT_SESSIONS for each in session if each.name == "other_page"]
    task = family_registry.make_task(family, 3)
    assert applies(agent, task, [], has_distractors=False, has_browser=True) is is_tried


def test_there_are_at_least_thirty_ways_of_cheating() -> None:
    assert len(set(LIMITS) - NO_CHEATS) >= 30


async def test_a_correct_file_from_another_program_scores_zero() -> None:
    task = family_registry.make_task("sheet_cell", 2)
    if lacking := missing(list(audit_tasks.packages_of(task))):
        pytest.skip(f"not installed: {' '.join(lacking)} (deskhand desktop install office)")
    row = await audited(task, "forged_file")
    assert (row.values, row.violations) == ({"oracle": 1.0, "forged_file": 0.0}, [])
    (content,) = [make() for make in task.forged_files.values()]
    forged = await read_workbook(content)
    assert forged is not None
    told = task.instruction.split(" to ")[1].split()[0]
    assert told in {str(cell) for rows in forged.values.values() for line in rows for cell in line}


async def test_a_check_that_trusts_a_window_or_file_is_found() -> None:
    good = family_registry.make_task("terminal_run", 3)

    async def by_title(desktop) -> CheckResult:
        return CheckResult(float(any("Success" in window.title for window in await desktop.windows())))

    async def by_result(desktop) -> CheckResult:
        return CheckResult(float("result" in await desktop.listdir("Downloads")))

    assert (await audited(good, "dialogs", "overwrite")).violations == []
    for check, agent in ((by_title, "dialogs"), (by_result, "overwrite")):
        row = await audited(replace(good, check=check), agent)
        assert f"{good.id}: {agent} scores 1" in row.violations


async def test_an_oracle_may_wait_at_the_end() -> None:
    good = family_registry.make_task("terminal_run", 3)

    async def patient(desktop) -> AsyncIterator[list[Op]]:
        async for ops in good.oracle(desktop):
            yield [Wait(1.0)] if isinstance(ops[0], Done) else ops
        yield [Done()]

    row = await audited(replace(good, oracle=patient), "early_stop")
    assert row.violations == []
    assert row.values == {"oracle": 1.0, "early_stop": 0.0}


async def test_a_task_without_an_oracle_is_audited_by_the_others() -> None:
    task = replace(family_registry.make_task("terminal_run", 3), oracle_unavailable="there is none")
    row = await audited(task, "done", "near_miss", "typo", "wrong_click")
    assert (row.values, row.violations) == ({"done": 0.0, "near_miss": 0.0}, [])


async def test_a_task_solved_at_start_is_reported_and_the_others_are_audited() -> None:
    async def check(desktop) -> CheckResult:
        return CheckResult(1.0)

    other = replace(family_registry.make_task("terminal_run", 3), oracle_unavailable="there is none")
    solved = replace(other, id="solved/at/start", check=check)
    (row, fine), _ = await audit_tasks.audit_tasks([solved, other], ["done"], None, lambda _: None)
    assert row.values == {"noop": 1.0}
    (why,) = row.violations
    assert why.startswith("solved/at/start: noop scores 1 (task solved/at/start: the start state already scores 1; ")
    assert (fine.values, fine.violations) == ({"done": 0.0}, [])


def test_an_audit_result_lists_violations() -> None:
    fine = {"oracle": 1.0, "done": 0.0, "early_stop": 0.5, "wrong_click": 0.0, "disk": 0.0}
    assert AuditResult("t", fine, {}).violations == []
    no_score = AuditResult("t", fine | {"disk": None, "clock": None}, {"disk": "(infrastructure: it broke)"})
    assert no_score.violations == ["t: disk has no score (infrastructure: it broke)", "t: clock has no score"]
    assert (no_score.cheats, no_score.num_paid, no_score.num_voided) == ({"disk": None, "clock": None}, 0, 2)
    assert AuditResult("t", fine | {"oracle": 0.5}, {}).violations == ["t: oracle scores 0.5, not 1"]
    assert AuditResult("t", fine | {"oracle": None}, {"oracle": "(evaluator: it broke)"}).violations == [
        "t: oracle scores -, not 1 (evaluator: it broke)"
    ]
    assert AuditResult("t", fine | {"gold_files": 0.1}, {}).num_paid == 1
    assert AuditResult("t", fine | {"early_stop": 1.0, "gold_files": 0.1}, {}).violations == [
        "t: early_stop scores 1",
        "t: gold_files scores 0.1",
    ]


async def test_an_unknown_agent_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'burglar'; agents: oracle, early_stop, noop, done"):
        await audited(family_registry.make_task("terminal_run", 0), "burglar")
