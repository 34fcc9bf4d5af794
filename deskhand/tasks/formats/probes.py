"""Probes: shell scripts that show on a local desktop whether the programs of a task's commands do their work there.

`requirements` asks for the probes of each command with `probes_of`. `DesktopProbe` runs them on one desktop, opened for
the first that it has not answered yet, and keeps the answers: they change with installed packages only.

A probe changes nothing outside its desktop, and says on its last line of output why it fails.
"""

from __future__ import annotations

import asyncio
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import DeskhandError
from deskhand.tasks.formats.shell_programs import simple_commands_of

ProbeKind = Literal["systemd", "gnome", "root", "sound"]
Failure = Callable[[str], str | None]
"""Returns why a script fails in a guest, or None."""
TIMEOUT_S = 30.0
_SPEC = DesktopSpec("plain", 1280, 720)
_SOUND = "pulseaudio --start && pactl list sinks | grep -q '^[[:space:]]Volume:'"
_SYSTEMD = ("systemctl", "timedatectl", "loginctl", "journalctl", "hostnamectl")
_SCRIPTS: dict[str, tuple[ProbeKind, str]] = {
    "sudo": ("root", "echo password | sudo -S true"),
    "useradd": ("root", '[ "$(id -u)" = 0 ]'),
    "chpasswd": ("root", '[ "$(id -u)" = 0 ]'),
    "dconf": ("gnome", "dconf write /probe 1 && [ $(dconf read /probe) = 1 ]"),
    "gsettings": ("gnome", "gsettings list-schemas | grep -q ."),
    **{name: ("systemd", f"{name} --no-pager") for name in _SYSTEMD},
    **dict.fromkeys(("pulseaudio", "pactl"), ("sound", _SOUND)),
}
"""Probe by program. A program without one only has to be installed."""
_SETTING = """\
old=$(gsettings get {schema} {key}) && gsettings set {schema} {key} "$old" || exit
[ "$(gsettings writable {schema} {key})" = true ] || {{ echo "it cannot be written"; exit 1; }}
gsettings set org.gnome.desktop.sound theme-name probe
[ "$(gsettings get org.gnome.desktop.sound theme-name)" = "'probe'" ] || {{ echo "settings are not kept"; exit 1; }}
"""
_TRASH = "touch probe && gio trash probe && [ -e .local/share/Trash/files/probe ]"


@dataclass(frozen=True)
class Probe:
    """One script, and what it shows: `subject` is the part of the command that needs it."""

    kind: ProbeKind
    subject: str
    script: str


def probes_of(command: str | list[str], *, shell: bool = False) -> Iterator[Probe]:
    """Yield the probes of a command; a list is argv unless `shell`."""
    for argv in simple_commands_of(command, shell=shell):
        program, *arguments = argv
        if program == "gsettings" and arguments[:1] in (["get"], ["set"], ["reset"]) and len(arguments) > 2:
            schema, key = arguments[1:3]
            script = _SETTING.format(schema=shlex.quote(schema), key=shlex.quote(key))
            yield Probe("gnome", f"gsettings {schema} {key}", script)
        elif program == "gio" and arguments[:1] == ["trash"]:
            yield Probe("gnome", "gio trash", _TRASH)
        elif program in _SCRIPTS:
            kind, script = _SCRIPTS[program]
            yield Probe(kind, program, script)


class DesktopProbe:
    """A `Failure` that runs scripts on a local desktop of this machine. Any thread may call it."""

    def __init__(self) -> None:
        self._answers: dict[str, str | None] = {}
        self._lock = threading.Lock()

    def __call__(self, script: str) -> str | None:
        self.run([script])
        return self._answers[script]

    def run(self, scripts: Iterable[str]) -> None:
        """Answer scripts on one desktop, so that a corpus needs only one."""
        with self._lock:
            if new := [script for script in dict.fromkeys(scripts) if script not in self._answers]:
                # The caller may be in an event loop.
                thread = threading.Thread(target=lambda: asyncio.run(self._answer(new)), name="deskhand-probe")
                thread.start()
                thread.join()

    async def _answer(self, scripts: list[str]) -> None:
        desktop = LocalDesktop()
        try:
            await desktop.reset(_SPEC)
            for script in scripts:
                done = await desktop.run(["/bin/sh", "-c", script], timeout_s=TIMEOUT_S)
                said = (done.stdout + done.stderr).decode(errors="replace").split("\n")
                lines = [line.strip() for line in said if line.strip()]
                failure = lines[-1] if lines else f"exit code {done.returncode}"
                self._answers[script] = None if done.returncode == 0 else failure
        except DeskhandError as error:
            self._answers.update(dict.fromkeys(scripts, f"no desktop to try it on: {error}"))
        finally:
            await desktop.close()


on_local_desktop = DesktopProbe()
"""The probe of this process."""
