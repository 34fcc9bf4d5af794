"""The suite `web`: its families, the gate of its sites, and what guests can do to them.

`DESKHAND_TEST_FULL=1` plays every family.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from desktops import ISOLATIONS, desktop_for
from full import FULL

from deskhand.actions.ops import Answer, Done, Fail
from deskhand.desktop.applications.install import missing
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.tasks.abilities import ABILITIES
from deskhand.tasks.cheats import site_requests
from deskhand.tasks.end_state import FORMAT, EndState, rescore_states
from deskhand.tasks.family_checks import check_family, check_family_live
from deskhand.tasks.judge import ending, is_accepted, judge
from deskhand.tasks.outcome import Scored
from deskhand.tasks.suites import basics, family_registry, family_stats
from deskhand.tasks.suites.web import FAMILIES, sites
from deskhand.tasks.suites.web.scenario import VARIANTS, changed, same_state
from deskhand.tasks.task import Task, seed_for

SEEDS = [seed_for(split, index) for split in ("train", "test") for index in range(200 if FULL else 6)]
GUEST_PROGRAM = Path(site_requests.__file__).read_text(encoding="utf-8")
KINDS = ("web/shop/order", "web/issues/count", "web/files/share_missing")
"""One family that ends in a state, one in an answer, one infeasible."""
everywhere = pytest.mark.parametrize("name", FAMILIES)
needs_sites = pytest.mark.skipif(
    bool(missing(["chromium"])) or "namespaces" not in ISOLATIONS, reason="needs Chromium and namespaces"
)


def is_same(read: dict[str, Any], expected: dict[str, Any]) -> bool:
    return all(finding.value == 1.0 for finding in same_state(read, expected))


@everywhere
def test_tasks_are_pure_and_well_formed(name: str) -> None:
    assert check_family(FAMILIES[name], SEEDS) == []


@everywhere
def test_only_the_asked_change_is_right(name: str) -> None:
    for seed in SEEDS:
        scenario, goal = VARIANTS[name](seed)
        assert [goal.right is not None, bool(goal.answer), goal.infeasible].count(True) == 1
        if goal.right is None:
            continue
        right = changed(scenario.state, goal.right)
        assert is_same(json.loads(json.dumps(right)), right)
        assert not is_same(scenario.state, right)
        assert len(goal.wrong) >= 3
        for mistake, change in goal.wrong.items():
            assert not is_same(changed(scenario.state, change), right), (seed, mistake)
        for app in right:
            other = changed(right, lambda state, app=app: next(filter(None, state[app].values())).pop())
            assert not is_same(other, right), "what all applications have must stay"


def test_punctuation_at_the_end_of_a_text_is_no_mistake() -> None:
    scenario, goal = VARIANTS["web/mail/reply"](3)
    right = changed(scenario.state, goal.right)
    for written, is_right in (("TEXT.", True), (" TEXT! ", True), ("TEXT, TEXT", False), ("Dear all, TEXT", False)):
        state = json.loads(json.dumps(right))
        message = state["mail"]["messages"][-1]
        message["text"] = written.replace("TEXT", message["text"])
        assert is_same(state, right) is is_right, written


@everywhere
def test_only_the_right_answer_is_accepted(name: str) -> None:
    for seed in SEEDS:
        _, goal = VARIANTS[name](seed)
        if goal.answer:
            accepted = FAMILIES[name].generate(seed).accepted_answers
            assert is_accepted(f" {goal.answer.upper()}. ", accepted)
            assert len(goal.wrong_answers) >= 3
            wrong = [None, "", goal.instruction, f"{goal.answer} {goal.answer}", *goal.wrong_answers]
            assert not any(is_accepted(text, accepted) for text in wrong)


def test_an_infeasible_family_reads_like_a_feasible_one() -> None:
    """A policy must not learn from the words alone that it cannot be done."""

    def words(name: str) -> set[str]:
        return {" ".join(FAMILIES[name].generate(seed).instruction.split()[:3]) for seed in SEEDS}

    infeasible = {name for name in FAMILIES if VARIANTS[name](0)[1].infeasible}
    assert len(infeasible) >= 12
    feasible = set().union(*(words(name) for name in FAMILIES if name not in infeasible))
    for name in infeasible:
        assert words(name) <= feasible, name


@needs_sites
@pytest.mark.parametrize("name", FAMILIES if FULL else KINDS)
async def test_only_the_oracle_solves_the_task(name: str) -> None:
    seeds = [seed_for("train", 0), seed_for("test", 0)] if FULL else [seed_for("test", 0)]
    assert await check_family_live(FAMILIES[name], seeds, desktop_for, max_concurrent=2) == []


async def test_how_an_agent_ends_is_judged(tmp_path: Path) -> None:
    """On saved end states, so that rescoring judges the same."""
    scenario, goal = VARIANTS["web/mail/who"](3)
    task, impossible = FAMILIES["web/mail/who"].generate(3), FAMILIES["web/mail/reply_missing"].generate(3)

    def state(state: dict[str, Any], **end: Any) -> EndState:
        record = {"format": FORMAT, "setup_facts": {sites.STATE: state}, "outcome": {"value": 0.0}, **end}
        return EndState(tmp_path / "end.json", record)

    changed_state = changed(scenario.state, lambda state: state["mail"]["messages"].pop())
    unchanged = VARIANTS["web/mail/reply_missing"](3)[0].state
    emptied = changed(unchanged, lambda state: state["shop"]["goods"].pop())
    cases = [
        (task, state(scenario.state, answer=goal.answer), 1.0),
        (task, state(scenario.state, answer=goal.wrong_answers[0]), 0.0),
        (task, state(scenario.state), 0.0),
        (task, state(changed_state, answer=goal.answer), 0.0),
        (impossible, state(unchanged, declared_infeasible=True), 1.0),
        (impossible, state(unchanged), 0.0),
        (impossible, state(emptied, declared_infeasible=True), 0.0),
    ]
    for each, saved, value in cases:
        [rescored] = [found async for found in rescore_states([saved], lambda _, each=each: each)]
        assert isinstance(rescored.outcome, Scored)
        assert rescored.outcome.value == value
    assert ending([Done()]) == {"declared_infeasible": False, "answer": None}
    assert ending([Answer("x")])["answer"] == "x"
    assert ending([Fail()])["declared_infeasible"]


async def worth(task: Task, desktop: LocalDesktop) -> float | None:
    outcome = await judge(task, desktop)
    return outcome.value if isinstance(outcome, Scored) else None


@needs_sites
async def test_a_guest_that_posts_the_goal_state_is_refused() -> None:
    """By a program of its own, with the very form that does the task."""
    name, seed = "web/mail/reply", seed_for("test", 1)
    (scenario, goal), task = VARIANTS[name](seed), FAMILIES[name].generate(seed)
    assert goal.right is not None
    sent = changed(scenario.state, goal.right)["mail"]["messages"][-1]
    forms = [["/mail/send", {key: sent[key] for key in ("to", "subject", "text")}]]
    async with desktop_for(task) as desktop, desktop_for(task) as other:
        await task.setup(desktop)
        await sites.open_site(other, {"mail": {"messages": []}}, scenario.style, "/")
        tried = await desktop.run(["python3", "-c", GUEST_PROGRAM, json.dumps(forms)])
        assert (tried.returncode, tried.stdout) == (0, b""), tried
        assert await sites.num_refused(desktop) > 20
        assert await sites.read_state(desktop) == scenario.state
        assert await worth(task, desktop) == 0.0
        await sites.write_state(desktop, changed(scenario.state, goal.right))
        assert await worth(task, desktop) == 1.0
        assert await sites.read_state(other) == {"mail": {"messages": []}}, "each desktop has a state of its own"
        await other.reset(DesktopSpec(width=320, height=240))
        with pytest.raises(InfrastructureError):
            await sites.read_state(other)


async def test_a_desktop_without_a_guest_network_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="need a local desktop"):
        await sites.open_site(cast(Any, object()), {}, {}, "/")


def test_families_are_found_by_their_prefix() -> None:
    task = family_registry.make_task("web/mail/reply", 0)
    assert (task.id, task.suite) == ("web/mail/reply/0", "web")
    with pytest.raises(ConfigError, match=r"solitaire.*web/mail/reply"):
        family_registry.make_task("web/solitaire", 0)


def test_the_documentation_lists_every_family_and_counts_every_ability() -> None:
    text = Path(__file__).parents[2].joinpath("docs", "tasks.md").read_text(encoding="utf-8")
    section = text.split("## The suite `web`")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{family.name}` | {family.difficulty} | {family_stats.end_of(family.generate(0))} | "
        f"{family_stats.step_limit_of(family)} | {', '.join(family.abilities[1:])} | {family.summary} |"
        for family in FAMILIES.values()
    ]
    counts = [
        {value: count for name, value, count in family_stats.count_families(suite.values()) if name == "ability"}
        for suite in (basics.FAMILIES, FAMILIES)
    ]
    section = text.split("## Abilities")[1].split("\n## ")[0]
    wanted = [f"| {name} | {counts[0].get(name, 0)} | {counts[1].get(name, 0)} |" for name in ABILITIES]
    assert [line for line in section.splitlines() if line.startswith("| ")][1:] == wanted


def test_every_family_names_abilities_of_the_fixed_list_and_every_ability_is_used() -> None:
    families = [*basics.FAMILIES.values(), *FAMILIES.values()]
    assert all(family.abilities and set(family.abilities) <= set(ABILITIES) for family in families)
    assert {ability for family in families for ability in family.abilities} == set(ABILITIES)
    ends = {"answer": "answer a question", "infeasible": "recognize an infeasible task"}
    for family in families:
        end = family_stats.end_of(family.generate(0))
        assert {name for name in ends.values() if name in family.abilities} == ({ends[end]} if end in ends else set())
