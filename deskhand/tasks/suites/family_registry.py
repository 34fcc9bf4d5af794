"""All task families by name. MiniWoB++ families begin with "miniwob/". Used by the CLI and suite loader."""

from __future__ import annotations

from deskhand.tasks.suites import basics, miniwob
from deskhand.tasks.task import Family, Task

DEFAULT = ("terminal_run", "terminal_close", "dialog_choice", "calculator_number")
"""Families that are trained on by default: small screens and few steps."""


def families(suite: str) -> dict[str, Family]:
    """Return the families of "basics" or "miniwob" by name. Raises `ConfigError` if MiniWoB++ is not installed."""
    return miniwob.families() if suite == "miniwob" else basics.FAMILIES


def make_task(family: str, seed: int) -> Task:
    """Return the variant of a seed. Raises `ConfigError` for an unknown family."""
    if family.startswith(miniwob.PREFIX):
        return miniwob.make_task(family, seed)
    return basics.make_task(family, seed)
