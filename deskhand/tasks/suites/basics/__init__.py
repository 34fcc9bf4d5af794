"""The first suite. Invariant: names are unique, and every family's programs are Debian packages."""

from __future__ import annotations

from deskhand.errors import ConfigError
from deskhand.tasks.suites.basics import (
    calculator,
    calculator_sum,
    code_copy,
    cross_app,
    dialogs,
    editors,
    file_manager,
    folders,
    forms,
    pictures,
    spreadsheets,
    terminal_count,
    terminal_files,
    terminals,
    text_documents,
    web_pages,
)
from deskhand.tasks.task import Family, Task

MODULES = (
    terminals, dialogs, calculator, editors, file_manager, calculator_sum, forms, terminal_count, code_copy,
    spreadsheets, text_documents, web_pages, pictures, cross_app, terminal_files, folders,
)  # fmt: skip
FAMILIES: dict[str, Family] = {family.name: family for module in MODULES for family in module.FAMILIES}


def make_task(family: str, seed: int) -> Task:
    """The `seed`-th variant of a family. Raises `ConfigError` for an unknown family."""
    if family not in FAMILIES:
        raise ConfigError(f"family {family!r} is not in suite 'basics'; it has: {', '.join(sorted(FAMILIES))}")
    return FAMILIES[family].generate(seed)
