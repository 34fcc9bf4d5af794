"""Task families of a Python file: the suite format `python`, and what the `deskhand tasks` commands take.

A file defines `FAMILIES`, or functions decorated with `deskhand.task_family`. On the command line `FILE.py` means all
of its families, `FILE.py:NAME` one. The file is imported: its author is the user, not the agent.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deskhand import registry
from deskhand.errors import ConfigError
from deskhand.tasks.family_checks import check_family
from deskhand.tasks.formats.located_yaml import Problem
from deskhand.tasks.task import Family, seed_for

SUFFIX = ".py"
EXPECTED = "must define FAMILIES, or functions decorated with deskhand.task_family"
_LINTED_VARIANTS = 5


def names_python_file(name: str) -> bool:
    """Return whether `name` is FILE.py or FILE.py:FAMILY."""
    return name.endswith(SUFFIX) or f"{SUFFIX}:" in name


def select_families(name: str) -> tuple[Path, list[Family]]:
    """Return the file and the families of FILE.py or FILE.py:FAMILY. Raises `ConfigError`."""
    text, _, family = (name, "", "") if name.endswith(SUFFIX) else name.rpartition(":")
    path = Path(text)
    families = load_families(path, f"cannot import {path}", str(path))
    if not family:
        return path, list(families.values())
    if family not in families:
        close = difflib.get_close_matches(family, families, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"{path} has no family {family!r}{hint}; it has {', '.join(families)}")
    return path, [families[family]]


def load_families(path: Path, failed: str, where: str) -> dict[str, Family]:
    """Import a file and return its families by name. Errors begin with `failed`, or with `where` if it has none."""
    module = registry.import_file(path, failed)
    found = getattr(module, "FAMILIES", None)
    if found is None:
        found = [each for each in vars(module).values() if isinstance(each, Family)]
    return families_by_name(found, where, EXPECTED)


def families_by_name(found: Any, where: str, expected: str) -> dict[str, Family]:
    """Return one family, or a sequence of them, by name. Raises `ConfigError` for anything else."""
    found = (found,) if isinstance(found, Family) else found
    if not isinstance(found, Sequence) or not found or not all(isinstance(family, Family) for family in found):
        raise ConfigError(f"{where} {expected}")
    families = {family.name: family for family in found}
    if len(families) < len(found):
        twice = next(family.name for family in found if sum(each.name == family.name for each in found) > 1)
        raise ConfigError(f"{where}: two families are named {twice!r}; rename one")
    return families


def lint_families(name: str) -> list[Problem]:
    """Return the problems of FILE.py or FILE.py:FAMILY, without starting a desktop."""
    try:
        path, families = select_families(name)
    except ConfigError as error:
        return [Problem(name, "", str(error).removeprefix(f"{name} ").removeprefix(f"{name}: "))]
    return [problem for family in families for problem in _family_problems(str(path), family)]


def _family_problems(file: str, family: Family) -> list[Problem]:
    seeds = [seed_for("train", index) for index in range(_LINTED_VARIANTS)] + [seed_for("test", 0)]
    try:
        found = check_family(family, seeds)
        lacking = family.generate(seeds[0]).oracle_unavailable
    except Exception as error:  # the author's code may raise anything
        reason = f"raised {type(error).__name__}: {' '.join(str(error).split())}"
        return [Problem(file, family.name, reason)]
    problems = [Problem(file, family.name, text.removeprefix(f"{family.name}: ")) for text in found]
    if lacking:
        note = f"{lacking}; deskhand tasks audit, deskhand sft and --policy oracle need one"
        problems.append(Problem(file, family.name, note, note=True))
    return problems
