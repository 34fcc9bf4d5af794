"""Probes of what the commands of foreign tasks need, tried on a local desktop; and what that leaves of OSWorld."""

from __future__ import annotations

import shutil
from collections import Counter

import pytest
from task_files import SHARED

from deskhand.tasks.formats.compatibility import check_compatibility
from deskhand.tasks.formats.probes import DesktopProbe, probes_of

SET = "gsettings set org.gnome.desktop.session idle-delay 300"
OSWORLD = SHARED / "osworld"


def script_of(command: str) -> str:
    (probe,) = probes_of(command)
    return probe.script


@pytest.mark.parametrize(
    ("command", "probes"),
    [
        (SET, [("gnome", "gsettings org.gnome.desktop.session idle-delay")]),
        ("a=$(timeout 10 gsettings get org.x y 2>/dev/null | grep -c true)", [("gnome", "gsettings org.x y")]),
        ("gsettings list-schemas", [("gnome", "gsettings")]),
        ("gio trash a.webp; gio open a", [("gnome", "gio trash")]),
        ("echo {CLIENT_PASSWORD} | sudo -S timedatectl set-timezone x", [("root", "sudo"), ("systemd", "timedatectl")]),
        ("pulseaudio --start\npactl list sinks | grep x", [("sound", "pulseaudio"), ("sound", "pactl")]),
        ("echo sudo gsettings set a b", []),
        ("python3 -c \"import os; os.system('pactl info')\"", [("sound", "pactl")]),
    ],
)
def test_the_probes_of_a_command_are_those_of_its_programs(command: str, probes: list[tuple[str, str]]) -> None:
    assert [(probe.kind, probe.subject) for probe in probes_of(command, shell=True)] == probes


def test_a_desktop_answers_by_what_its_programs_do() -> None:
    probe = DesktopProbe()
    works, trash = script_of(SET), script_of("gio trash a")
    unknown = script_of("gsettings get org.gnome.desktop.session no-such-key")
    forgets, sudo = f"export GSETTINGS_BACKEND=memory\n{works}", script_of("sudo true")
    systemd = script_of("timedatectl status")
    probe.run([works, trash, unknown, forgets, sudo, systemd])
    assert (probe(works), probe(trash)) == (None, None)
    assert "no-such-key" in (probe(unknown) or "")
    assert probe(forgets) == "settings are not kept"
    assert probe(sudo)
    assert probe(systemd)


@pytest.mark.skipif(not OSWORLD.is_dir(), reason="OSWorld's task files are not beside the checkout (../shared)")
def test_osworld_s_tasks_are_counted_by_cause() -> None:
    """On a machine with every package of Debian's that they name, and so without VS Code."""

    def which(program: str) -> str | None:
        return None if program in ("code", "sudo") else f"/usr/bin/{program}"

    def fails(script: str) -> str | None:
        return "not in a guest" if "sudo" in script or "--no-pager" in script else None

    report = check_compatibility("osworld", OSWORLD, which, fails)
    assert report.verdicts() == {"runnable": 33, "missing files": 173, "unsupported": 87}
    causes = Counter[str]()
    for task in report.tasks:
        causes.update([" and ".join(sorted({each.kind for each in task.requirements} - {"file"}))])
    assert causes == {
        "": 206, "web": 42, "application": 23, "packages and root": 7, "account and web": 6, "packages": 3,
        "application and web": 2, "application and packages and web": 2, "systemd": 1, "root": 1,
    }  # fmt: skip


@pytest.mark.skipif(shutil.which("pulseaudio") is None, reason="PulseAudio is not installed")
def test_a_sound_server_answers() -> None:
    assert DesktopProbe()(script_of("pactl list sinks")) is None
