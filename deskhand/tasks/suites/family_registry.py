"""All task families by name. Families of the suite `web` begin with "web/", those of MiniWoB++ with "miniwob/".

Used by the CLI and the suite loader.
"""

from __future__ import annotations

from deskhand.tasks.suites import basics, miniwob, web
from deskhand.tasks.task import Family, Task

DEFAULT = ("terminal_run", "terminal_close", "dialog_choice", "calculator_number")
"""Families that are trained on by default: small screens and few steps."""
SUITES = ("basics", web.SUITE, miniwob.SUITE)
PREFIXES = {miniwob.SUITE: miniwob.PREFIX, web.SUITE: web.PREFIX}
"""Suites whose families have a common beginning, which a config may leave out."""


def families(suite: str) -> dict[str, Family]:
    """Return the families of "basics", "web" or "miniwob" by name.

    Raises `ConfigError` if MiniWoB++ is not installed.
    """
    return miniwob.families() if suite == "miniwob" else web.FAMILIES if suite == web.SUITE else basics.FAMILIES


def expand(name: str, prefix: str = "") -> list[str]:
    """Return the families of a name, which may lack `prefix`; of an application of the suite `web`, all of its."""
    full = name if name.startswith(prefix) else f"{prefix}{name}"
    return [family for family in web.FAMILIES if family.startswith(f"{full}/")] or [full]


def applications_of(family: str) -> tuple[str, ...]:
    """Return the Debian packages of a family."""
    known = (basics.FAMILIES | web.FAMILIES).get(family)
    return known.applications if known is not None else ("chromium-shell",)


def make_task(family: str, seed: int) -> Task:
    """Return the variant of a seed. Raises `ConfigError` for an unknown family."""
    if family.startswith(miniwob.PREFIX):
        return miniwob.make_task(family, seed)
    if family.startswith(web.PREFIX):
        return web.make_task(family, seed)
    return basics.make_task(family, seed)
