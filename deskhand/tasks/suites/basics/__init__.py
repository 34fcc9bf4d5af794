"""The first suite. Invariant: names are unique, and every family's programs are Debian packages."""

from __future__ import annotations

from deskhand.errors import ConfigError
from deskhand.tasks.suites.basics import (
    across,
    calculator,
    dialogs,
    editors,
    files,
    folders,
    forms,
    pages,
    pictures,
    reading,
    sheets,
    shell_work,
    shells,
    sums,
    terminals,
    writing,
)
from deskhand.tasks.task import Family, Task

MODULES = (
    terminals, dialogs, calculator, editors, files, sums, forms, shells, reading,
    sheets, writing, pages, pictures, across, shell_work, folders,
)  # fmt: skip
FAMILIES: dict[str, Family] = {family.name: family for module in MODULES for family in module.FAMILIES}


def make_task(family: str, seed: int) -> Task:
    """The `seed`-th variant of a family. Raises `ConfigError` for an unknown family."""
    if family not in FAMILIES:
        raise ConfigError(f"family {family!r} is not in suite 'basics'; it has: {', '.join(sorted(FAMILIES))}")
    return FAMILIES[family].generate(seed)
