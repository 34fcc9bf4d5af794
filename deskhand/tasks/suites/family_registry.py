"""All task families by name. Invariant: a name means one family, whichever suites there are; MiniWoB++'s begin with "miniwob/"."""

from __future__ import annotations

from deskhand.tasks.suites import basics, miniwob
from deskhand.tasks.task import Family, Task

DEFAULT = ("terminal_run", "terminal_close", "dialog_choice", "calculator_number")
"""The families that are trained on when none are named: those of small screens and few steps."""


def families(suite: str) -> dict[str, Family]:
    """The families of "basics" or "miniwob" by name. Raises `ConfigError` for MiniWoB++ where it is not installed."""
    return miniwob.families() if suite == "miniwob" else basics.FAMILIES


def make_task(family: str, seed: int) -> Task:
    """The `seed`-th variant of a family. Raises `ConfigError` for an unknown family."""
    if family.startswith(miniwob.PREFIX):
        return miniwob.make_task(family, seed)
    return basics.make_task(family, seed)
