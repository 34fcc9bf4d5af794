"""The commands `deskhand desktop ...`. Invariant: what is missing is named with the command that mends it, and exit code 2."""

from __future__ import annotations

import asyncio
from typing import Annotated

from cyclopts import App, Parameter

from deskhand.errors import ConfigError

desktop_app = App(name="desktop", help="Embedded desktops and their applications.")


@desktop_app.command(name="list")
def list_applications() -> None:
    """The applications, what installs them, and whether they are there."""
    from rich.console import Console
    from rich.table import Table

    from deskhand.desktop.applications.catalog import PROFILES

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("application", "what it is", "groups", "packages", "there"):
        table.add_column(name)
    for entry in PROFILES.values():
        there = "yes" if entry.installed else "no"
        table.add_row(entry.name, entry.summary, ", ".join(entry.groups), " ".join(entry.packages), there)
    Console().print(table)


@desktop_app.command
def install(names: list[str], /, *, dry_run: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Install applications with apt-get; needs root, and says what is missing otherwise.

    Parameters
    ----------
    names
        Applications or groups of them, as `deskhand desktop list` gives them; "all" is all.
    dry_run
        Only say what would be installed.
    """
    from deskhand.desktop.applications import catalog
    from deskhand.desktop.applications.install import install as work
    from deskhand.desktop.applications.install import install_command, missing, packages_of

    packages = packages_of(catalog.resolve_profiles(names))
    wanted = missing(packages)
    print(f"there:   {' '.join(name for name in packages if name not in wanted) or 'none'}")
    print(f"missing: {' '.join(wanted) or 'none'}", flush=True)
    if wanted and dry_run:
        print(f"as root: {' '.join(install_command(wanted))}")
    elif wanted:
        work(wanted)
        still = missing(wanted)
        if still:
            raise ConfigError(f"apt-get did not install {' '.join(still)}")


@desktop_app.command(name="try")
def try_desktop(
    names: list[str] | None = None,
    /,
    *,
    size: str = "1280x720",
    template: str = "plain",
    port: int = 0,
    minutes: float = 60.0,
) -> None:
    """Open one desktop and show it in a web page on this machine, until Ctrl-C.

    Parameters
    ----------
    names
        Applications to start, by name or group.
    size
        Width and height of the screen in pixels.
    template
        The look of the desktop.
    port
        Of the page, on 127.0.0.1; any free one if it is 0.
    minutes
        The desktop is closed after so long.
    """
    from deskhand.desktop.applications import catalog
    from deskhand.desktop.base import DesktopSpec
    from deskhand.desktop.live_view import serve_live_view

    width, _, height = size.partition("x")
    if not (width.isdigit() and height.isdigit()):
        raise ConfigError(f"--size {size}: give width and height, as in 1280x720")
    profiles = catalog.resolve_profiles(names or [])
    if absent := [entry.name for entry in profiles if not entry.installed]:
        raise ConfigError(f"not installed: {', '.join(absent)}; as root: deskhand desktop install {' '.join(absent)}")
    asyncio.run(serve_live_view(DesktopSpec(template, int(width), int(height)), profiles, port, minutes * 60))
