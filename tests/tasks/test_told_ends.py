"""Families of `basics` that end in an answer, or in the statement that they cannot be done."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from test_near_misses import SEED, end_of

from deskhand.actions.ops import Answer, Done, Fail, Op, Type
from deskhand.tasks.audit_agents import AUDIT_SESSIONS, applies
from deskhand.tasks.cheats import oracle_variants
from deskhand.tasks.judge import is_accepted, judge
from deskhand.tasks.outcome import Outcome, Scored
from deskhand.tasks.suites.basics import FAMILIES
from deskhand.tasks.suites.basics.terminal_files import archive_of
from deskhand.tasks.task import Task, seed_for

TASKS = {name: family.generate(SEED) for name, family in FAMILIES.items()}
ANSWERED = sorted(name for name, task in TASKS.items() if task.accepted_answers)
INFEASIBLE = sorted(name for name, task in TASKS.items() if task.infeasible_reward is not None)
SEEDS = [seed_for(split, index) for split in ("train", "test") for index in range(6)]
TYPO = next(agent for session in AUDIT_SESSIONS for agent in session if agent.name == "typo")


def value_of(outcome: Outcome) -> float:
    assert isinstance(outcome, Scored)
    return outcome.value


@pytest.mark.parametrize("name", ANSWERED)
def test_only_the_right_answer_is_accepted(name: str) -> None:
    for seed in SEEDS:
        task = FAMILIES[name].generate(seed)
        (answer,) = task.accepted_answers
        for said in (f" {answer.upper()}. ", f'"{answer}"', f"`{answer}`.", f"'{answer}.'"):
            assert is_accepted(said, task.accepted_answers), said
        wrong = [None, "", task.instruction, f"{answer} {answer}", *task.metadata["wrong_answers"]]
        assert len(set(task.metadata["wrong_answers"])) >= 3, seed
        assert not any(is_accepted(text, task.accepted_answers) for text in wrong), seed


@pytest.mark.parametrize("name", ANSWERED)
async def test_an_answer_counts_only_where_the_files_are_as_they_should_be(name: str, tmp_path: Path) -> None:
    task = TASKS[name]
    assert task.example_end_states is not None
    (answer,) = task.accepted_answers

    async def score(files: Any, said: str | None) -> float:
        return value_of(await judge(task, cast(Any, end_of(tmp_path, files, set())), grace_s=0.0, answer=said))

    assert await score(task.metadata["files"], answer) == 1.0
    assert await score(task.metadata["files"], task.metadata["wrong_answers"][0]) == 0.0
    assert await score(task.metadata["files"], None) == 0.0
    for what, files in task.example_end_states().negatives.items():
        assert await score(files, answer) == 0.0, what


@pytest.mark.parametrize("name", INFEASIBLE)
async def test_an_infeasible_task_is_paid_only_if_it_is_declared(name: str, tmp_path: Path) -> None:
    task = TASKS[name]
    state = cast(Any, end_of(tmp_path, task.metadata["files"], set()))
    assert value_of(await judge(task, state, grace_s=0.0)) == 0.0
    assert value_of(await judge(task, state, grace_s=0.0, declared_infeasible=True)) == 1.0
    assert task.example_end_states is not None
    for what, files in task.example_end_states().negatives.items():
        changed = cast(Any, end_of(tmp_path, files, set()))
        assert value_of(await judge(task, changed, grace_s=0.0, declared_infeasible=True)) == 0.0, what


def test_an_infeasible_family_reads_like_a_feasible_one() -> None:
    """A policy must not learn from the words alone that it cannot be done."""

    def words(name: str) -> set[str]:
        return {" ".join(FAMILIES[name].generate(seed).instruction.split()[:7]) for seed in SEEDS}

    assert len(INFEASIBLE) >= 4
    feasible = set().union(*(words(name) for name in FAMILIES if name not in INFEASIBLE))
    for name in INFEASIBLE:
        assert words(name) & feasible, name


async def played(steps: list[list[Op]]) -> list[list[Op]]:
    """What the agent `typo` makes of an oracle."""

    async def oracle(desktop: object) -> Any:
        for ops in steps:
            yield ops

    task = cast(Task, type("Played", (), {"oracle": staticmethod(oracle)}))
    return [ops async for ops in oracle_variants.typo(task, cast(Any, None), steps)]


async def test_a_typo_is_in_the_last_text_even_if_that_is_the_answer() -> None:
    assert await played([[Type("wc -l\n")], [Answer("12")]]) == [[Type("wc -l\n")], [Answer("127")]]
    assert await played([[Type("ls"), Type("\n")], [Done()]]) == [[Type("ls7"), Type("\n")], [Done()]]


def test_a_typo_is_no_mistake_where_the_right_end_is_to_say_that_it_cannot_be_done() -> None:
    facts = {"has_distractors": False, "has_browser": False}
    assert not applies(TYPO, TASKS["shell_lines_missing"], [[Type("wc -l")], [Fail()]], **facts)
    assert applies(TYPO, TASKS["shell_lines"], [[Type("wc -l")], [Answer("3")]], **facts)


def test_an_archive_has_the_same_bytes_at_any_time() -> None:
    """Else two generations of a task would differ."""
    assert archive_of({"a.txt": b"a"})[4:8] == bytes(4), "the time in the header"
