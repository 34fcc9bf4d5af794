"""Counts of a suite's families, for `deskhand tasks stats` and the tables of docs/tasks.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import get_args

from deskhand.tasks.abilities import ABILITIES
from deskhand.tasks.difficulty import POLICY_NAMES, Measured, count_measured
from deskhand.tasks.task import Difficulty, Family, Task

NUM_VARIANTS = 20
"""Variants of each family that are generated to see how its tasks end."""
ENDS = ("state", "answer", "infeasible")


def end_of(task: Task) -> str:
    """Return what decides a task: the end state, the agent's answer, or that it declares the task infeasible."""
    return "infeasible" if task.infeasible_reward else "answer" if task.accepted_answers else "state"


def application_of(family: Family) -> str:
    """Return the application that a family is about: of the suite `web` the web application, else the packages."""
    parts = family.name.split("/")
    return f"{parts[0]}/{parts[1]}" if len(parts) > 2 else ", ".join(family.applications)


def step_limit_of(family: Family) -> int:
    """Return the largest number of steps that variants of a family allow."""
    return max(family.generate(seed).max_steps for seed in range(NUM_VARIANTS))


def count_families(families: Iterable[Family], measured: Measured | None = None) -> list[tuple[str, str, int]]:
    """Return rows of property, value and number of families: ability, application, difficulty, measured success, end,
    step limit.

    A family counts once for each of its abilities.
    """
    families = list(families)
    success = count_measured((family.name for family in families), measured or {})
    counted: dict[str, Counter[str]] = {
        "ability": Counter(ability for family in families for ability in family.abilities),
        "application": Counter(map(application_of, families)),
        "difficulty": Counter(family.difficulty for family in families),
        "measured success": Counter(dict(success)),
        "end": Counter(end_of(family.generate(0)) for family in families),
        "step limit": Counter(_range_of(step_limit_of(family)) for family in families),
    }
    order = {"ability": ABILITIES, "difficulty": get_args(Difficulty), "end": ENDS, "step limit": _RANGES}
    order["measured success"] = [name for name, _ in success]
    return [
        (name, value, counts[value])
        for name, counts in counted.items()
        for value in order.get(name, sorted(counts))
        if counts[value]
    ]


def measured_table(families: Iterable[Family], measured: Measured) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the rows of a table of each family's solved of played episodes, with a column by policy."""
    families = list(families)
    names = {name for family in families for name in measured.get(family.name, {})}
    columns = sorted(names, key=lambda name: ((*POLICY_NAMES, name).index(name), name))
    rows = []
    for family in families:
        counts = measured.get(family.name, {})
        cells = (f"{counts[name].solved}/{counts[name].episodes}" if name in counts else "" for name in columns)
        rows.append((family.name, family.difficulty, *cells))
    return ("family", "difficulty", *columns), rows


_RANGES = ("up to 10", "11 to 20", "more than 20")


def _range_of(steps: int) -> str:
    return _RANGES[0 if steps <= 10 else 1 if steps <= 20 else 2]
