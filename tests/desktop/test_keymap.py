"""The keymap of a desktop's X server: the machine's default one, also where it is read from a few short files."""

import os
import re
import subprocess
from pathlib import Path

from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import keymap
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.local.runtime_dir import runtime


def keymap_of(desktop: LocalDesktop) -> str:
    """Return the keymap without the entries that select what is selected anyway."""
    session, _ = desktop._parts()
    server = session.x_server
    variables = {**os.environ, "XAUTHORITY": str(server.authority)}
    command = ["xkbcomp", "-w", "0", server.name, "-"]
    text = subprocess.run(command, env=variables, capture_output=True, check=True, text=True).stdout
    return re.sub(r" *map\[[^]]*\]= Level1;\n", "", text)


def command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")


async def test_a_desktop_has_the_default_keymap_of_the_machine(monkeypatch):
    first, second = LocalDesktop(), LocalDesktop()
    try:
        monkeypatch.setattr(keymap, "components", lambda folder: None)
        await first.reset(DesktopSpec("plain", 320, 240))
        monkeypatch.undo()
        await second.reset(DesktopSpec("plain", 320, 240))
        session, _ = second._parts()
        words = command_line(session.x_server.process.pid)
        assert str(runtime().folder / "xkb") in words
        assert keymap_of(second) == keymap_of(first)
        assert '"pc+us+inet(evdev)"' in keymap_of(second)
    finally:
        await first.close()
        await second.close()


def test_components_that_give_another_keymap_are_not_used(tmp_path):
    text = subprocess.run(
        ["xkbcomp", "-w", "0", "-xkb", "-", "-"],
        input='xkb_keymap { xkb_keycodes { include "evdev" }; xkb_types { include "complete" };'
        ' xkb_compat { include "complete" }; xkb_symbols { include "pc+us" };'
        ' xkb_geometry { include "pc(pc105)" }; };',
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    (tmp_path / "same").mkdir()
    (tmp_path / "other").mkdir()
    assert keymap._write_components(text, tmp_path / "same")
    assert keymap.components(tmp_path) is None
    twice = text.replace('xkb_symbols "pc+us"', 'xkb_symbols "pc+pc(pc105)"')
    assert twice != text
    assert not keymap._write_components(twice, tmp_path / "other")
