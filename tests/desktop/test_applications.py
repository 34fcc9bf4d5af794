"""Application profiles: installation, and one main window on a fresh home."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import xml.etree.ElementTree as ElementTree
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from desktops import ISOLATIONS, embedded

from deskhand.cli.main import app
from deskhand.desktop.applications import catalog, install
from deskhand.desktop.applications.catalog import PROFILES
from deskhand.desktop.base import DesktopSpec, Window
from deskhand.desktop.local import guest_user, isolation
from deskhand.desktop.local.theme import get_theme, home_files
from deskhand.errors import ConfigError, GuestFailure

SMALL = DesktopSpec("plain", 1280, 720)
STILL_S = 1.0


def needs(name: str):
    profile = PROFILES[name]
    return pytest.mark.skipif(not profile.installed, reason=f"not installed; as root: deskhand desktop install {name}")


async def open_application(desktop, argv: list[str], window: str) -> list[Window]:
    """The windows once the screen has not changed for a while; the application's is the first.

    If the application crashes, the error has the end of its output.
    """
    await desktop.launch(["sh", "-c", 'exec "$0" "$@" 2>.errors', *argv])
    try:
        (opened,) = await desktop.wait_window(window, timeout_s=60.0)
    except GuestFailure as failure:
        raise AssertionError((desktop._session.home.root / ".errors").read_text()[-3000:]) from failure
    last, quiet, waited = "", 0.0, 0.0
    while quiet < STILL_S:
        frame = await desktop.observe()
        quiet = quiet + 0.1 if frame.content_hash == last else 0.0
        last = frame.content_hash
        await asyncio.sleep(0.1)
        waited += 0.1
        assert waited < 30.0
    windows = await desktop.windows()
    assert windows[0].id == opened.id
    return windows


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in PROFILES])
async def test_an_application_shows_only_its_main_window(desktop, name):
    profile = PROFILES[name]
    empty = await desktop.observe()
    windows = await open_application(desktop, list(profile.argv), profile.window)
    assert len(windows) == 1, [each.title for each in windows]
    frame = await desktop.observe()
    assert frame.changed_bbox is None
    assert (frame.bgrx[:, :, :3] != empty.bgrx[:, :, :3]).any(axis=2).mean() > 0.01
    if profile.maximized:
        assert windows[0].width > 1200


@needs("calc")
async def test_a_killed_office_offers_no_recovery(desktop):
    starts = "setsid soffice --nologo --calc & sleep 6; kill -KILL $(pgrep soffice); sleep 0.5"
    await desktop.run(["sh", "-c", starts], timeout_s=30.0)
    windows = await open_application(desktop, ["soffice", "--calc"], "libreoffice-calc")
    assert [window.title for window in windows] == ["Untitled 1 - LibreOffice Calc"]


@needs("chromium")
async def test_a_killed_browser_offers_no_recovery(desktop):
    await desktop.run(["sh", "-c", "setsid chromium & sleep 4; kill -KILL $(pgrep chromium)"], timeout_s=30.0)
    await open_application(desktop, ["chromium"], "chromium")
    first = await desktop.observe()
    async with embedded(SMALL) as fresh:
        await open_application(fresh, ["chromium"], "chromium")
        assert (await fresh.observe()).content_hash == first.content_hash


def user_namespaces_of_renderers(desktop) -> set[str]:
    found = set()
    for pid in desktop.processes():
        with suppress(OSError):  # it may have ended
            if b"--type=renderer" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(os.readlink(f"/proc/{pid}/ns/user"))
    return found


@needs("chromium")
@pytest.mark.skipif("namespaces" not in ISOLATIONS, reason="bubblewrap cannot make namespaces here")
async def test_the_browser_keeps_its_own_sandbox_in_namespaces(desktop):
    await open_application(desktop, ["chromium"], "chromium")
    renderers = user_namespaces_of_renderers(desktop)
    assert renderers
    assert os.readlink(f"/proc/{desktop._session.jail.launched[-1]}/ns/user") not in renderers


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in ("calc", "chromium")])
async def test_office_and_browser_look_the_same_at_the_plain_level(name):
    profile, looks = PROFILES[name], {}
    for level in {"plain", isolation.available_isolation()[0]}:
        async with embedded(SMALL, isolation_level=level) as desktop:
            assert len(await open_application(desktop, list(profile.argv), profile.window)) == 1
            looks[level] = (await desktop.observe()).without_cursor().sha256
    assert len(set(looks.values())) == 1


def test_every_setting_of_the_office_is_well_formed():
    root = ElementTree.fromstring(
        home_files(get_theme("plain"))[".config/libreoffice/4/user/registrymodifications.xcu"]
    )
    assert len(root) > 10
    paths = [item.get("{http://openoffice.org/2001/registry}path") or "" for item in root]
    assert all(path.startswith("/org.openoffice.") for path in paths)


def test_an_application_without_its_component_is_not_installed(tmp_path):
    profile = replace(PROFILES["writer"], argv=("sh",), component=str(tmp_path / "*" / "swriter"))
    assert not profile.installed
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "swriter").touch()
    assert profile.installed
    components = [PROFILES[name].component for name in ("calc", "writer", "impress", "draw", "vlc")]
    assert all(components)
    assert len(set(components)) == 5


def test_profiles_resolve_by_name_and_group_without_duplicates():
    names = [entry.name for entry in catalog.resolve_profiles(["office", "calc", "browser"])]
    assert names == ["calc", "writer", "impress", "draw", "chromium", "chromium-shell"]
    assert len(catalog.resolve_profiles(["all"])) == len(PROFILES)
    with pytest.raises(ConfigError, match=r"unknown application 'word'; use one of .*writer"):
        catalog.resolve_profiles(["calc", "word"])


def test_install_says_how_to_add_a_source_that_debian_lacks(monkeypatch, capsys, tmp_path):
    apt = tmp_path / "apt-cache"
    monkeypatch.setattr(install, "missing", lambda packages: packages)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for knows, code in (("false", 2), ("true", 0)):
        apt.write_text(f"#!/bin/sh\n{knows}\n")
        apt.chmod(0o755)
        refused = pytest.raises(ConfigError, match="not installed: vscode") if code else contextlib.nullcontext()
        with refused:
            app(["desktop", "install", "vscode", "--dry-run"], result_action="return_value")
        said = capsys.readouterr().out
        assert ("packages.microsoft.com" in said) == (code == 2)
        assert ("code" in said.partition("missing:")[2]) == (code == 0)
        app(["desktop", "install", "all", "--dry-run"], result_action="return_value")
        assert "thunderbird" in capsys.readouterr().out.partition("missing:")[2], "the others are not held up"


def test_install_lists_the_packages_and_needs_root(monkeypatch, capsys):
    monkeypatch.setattr(install, "missing", lambda packages: packages)
    app(["desktop", "install", "office", "--dry-run"], result_action="return_value")
    said = capsys.readouterr().out
    for package in ("libreoffice-calc", "libreoffice-writer", "libreoffice-draw", "libreoffice-gtk3"):
        assert package in said
    assert "as root:   apt-get install -y --no-install-recommends libreoffice-calc" in said
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(ConfigError, match=r"missing Debian packages; run as root: apt-get install .*chromium"):
        app(["desktop", "install", "browser"], result_action="return_value")


def test_installed_packages_are_skipped(monkeypatch, capsys):
    monkeypatch.setattr(install, "missing", lambda packages: [])
    monkeypatch.setattr(install.subprocess, "run", lambda *_, **__: pytest.fail("something was run"))
    app(["desktop", "install", "basic"], result_action="return_value")
    assert "missing:   none" in capsys.readouterr().out


def test_unknown_packages_are_missing():
    assert install.missing(["dpkg", "no-such-package-of-any-kind"]) == ["no-such-package-of-any-kind"]


@needs("calc")
async def test_the_office_opens_if_only_landlock_denies_tmp(monkeypatch):
    # As where Deskhand does not run as root: /tmp's rights let guests in.
    monkeypatch.setattr(guest_user, "guest_uids", lambda: False)
    async with embedded(SMALL, isolation_level="plain") as desktop:
        assert len(await open_application(desktop, list(PROFILES["calc"].argv), PROFILES["calc"].window)) == 1


def test_the_plain_office_is_restarted_when_it_asks_and_once_if_its_first_process_aborts(tmp_path):
    program = "/usr/lib/libreoffice/program/soffice.bin"
    starts = PROFILES["calc"].plain_wrappers["soffice"]
    assert program in starts
    for has_profile, codes, expected in (
        (False, "81 0", (2, 0)),
        (False, "134 0", (2, 0)),
        (False, "134 134 0", (2, 134)),
        (False, "81 134 0", (2, 134)),
        (True, "79 81 3", (3, 3)),
        (True, "134 0", (1, 134)),
    ):
        home = tmp_path / f"{has_profile} {codes}"
        (home / (".config/libreoffice/4/user/uno_packages" if has_profile else ".config")).mkdir(parents=True)
        office = home / "soffice.bin"
        office.write_text(
            f'#!/bin/sh\necho . >>"$HOME/starts"\nset -- {codes}\nshift $(($(wc -l <"$HOME/starts") - 1))\nexit $1\n'
        )
        office.chmod(0o755)
        script = starts.replace(program, f'"{office}"').replace("[ -w /tmp ] || [ -w /var/tmp ]", "false")
        done = subprocess.run(["sh", "-c", script], env={"HOME": str(home), "PATH": os.environ["PATH"]}, check=False)
        assert (len((home / "starts").read_text()) // 2, done.returncode) == expected
