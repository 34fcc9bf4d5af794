"""`deskhand desktop`: applications of local desktops, and one desktop in the browser."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from cyclopts import App

from deskhand.cli.common import Flag, parse_size
from deskhand.cli.output import Json, print_columns
from deskhand.errors import ConfigError

if TYPE_CHECKING:
    from deskhand.desktop.applications.profile import Profile
    from deskhand.desktop.base import DesktopSpec

desktop_app = App(name="desktop", help="Local desktops and their applications.")


@desktop_app.command(name="list")
def list_applications(*, as_json: Json = False) -> None:
    """List applications, their Debian packages, and whether they are installed."""
    from deskhand.desktop.applications.catalog import PROFILES

    rows = [
        (each.name, each.summary, ", ".join(each.groups), " ".join(each.packages), "yes" if each.installed else "no")
        for each in PROFILES.values()
    ]
    print_columns(("application", "description", "groups", "packages", "installed"), rows, as_json=as_json)


@desktop_app.command
def install(names: list[str], /, *, dry_run: Annotated[bool, Flag] = False) -> None:
    """Install applications with apt-get, as root.

    Says how to add the source of packages that are not in Debian (vscode).

    Parameters
    ----------
    names
        Applications or groups from `deskhand desktop list`, or "all".
    dry_run
        Only print what would be installed.
    """
    from deskhand.desktop.applications import catalog
    from deskhand.desktop.applications.install import install as install_packages
    from deskhand.desktop.applications.install import install_command, missing, packages_of, without_source

    profiles = catalog.resolve_profiles(names)
    unavailable = without_source(profiles)
    for profile in unavailable:
        print(
            f"{profile.name}: {' '.join(profile.packages)} is not in Debian; first, as root: {profile.package_source}"
        )
    packages = packages_of([profile for profile in profiles if profile not in unavailable])
    wanted = missing(packages)
    print(f"installed: {' '.join(name for name in packages if name not in wanted) or 'none'}")
    print(f"missing:   {' '.join(wanted) or 'none'}", flush=True)
    if wanted and dry_run:
        print(f"as root:   {' '.join(install_command(wanted))}")
    elif wanted:
        install_packages(wanted)
        if failed := missing(wanted):
            raise ConfigError(f"apt-get did not install {' '.join(failed)}")
    if asked := [profile.name for profile in unavailable if profile.name in names]:
        raise ConfigError(
            f"not installed: {', '.join(asked)}; add the source of its packages as shown above, and repeat"
        )


@desktop_app.command(name="open")
def open_desktop(
    names: list[str] | None = None,
    /,
    *,
    size: str = "1280x720",
    theme: str = "plain",
    port: int = 0,
    max_minutes: float = 60.0,
) -> None:
    """Open one desktop and show it in a web page on this machine, until Ctrl-C.

    Parameters
    ----------
    names
        Applications or groups to start.
    size
        Screen size, WIDTHxHEIGHT.
    theme
        Theme of the desktop.
    port
        Port of the page on 127.0.0.1; 0 selects a free one.
    max_minutes
        Close the desktop after this many minutes.
    """
    import asyncio

    from deskhand.desktop.applications import catalog
    from deskhand.desktop.base import DesktopSpec

    width, height = parse_size("--size", size)
    profiles = catalog.resolve_profiles(names or [])
    if absent := [entry.name for entry in profiles if not entry.installed]:
        raise ConfigError(
            f"not installed: {', '.join(absent)}; run as root: deskhand desktop install {' '.join(absent)}"
        )
    asyncio.run(_serve_desktop(DesktopSpec(theme, width, height), profiles, port, max_minutes))


async def _serve_desktop(spec: DesktopSpec, profiles: list[Profile], port: int, max_minutes: float) -> None:
    import asyncio

    from deskhand.desktop.local.desktop import LocalDesktop
    from deskhand.reporting.viewer.app import serve_viewer
    from deskhand.server.live_desktops import LiveDesktops, OpenDesktop

    desktop, desktops = LocalDesktop(), LiveDesktops()
    with suppress(TimeoutError):
        async with asyncio.timeout(60 * max_minutes):
            try:
                await desktop.reset(spec)
                for profile in profiles:
                    await desktop.launch(list(profile.argv))
                    await desktop.wait_window(profile.window, timeout_s=60.0)
                live = OpenDesktop(desktop, spec)
                desktops.add(live)
                token, control = (secrets.token_urlsafe(24) for _ in range(2))
                await serve_viewer([desktops], port, token, control=control, page=f"/run/0/live/{live.id}")
            finally:
                await desktop.close()
