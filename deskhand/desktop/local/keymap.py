"""The keymap of X servers, read from a few short files: `components`, `prepare`.

Every X server has its keymap compiled by xkbcomp, from files that describe all keyboards of the world. The first server
of a process compiles it from there; the others find the same keymap in a folder in which each file has only what the
keymap needs. Used by `desktop_session`.

Invariant: the keymap is the same, with the same names of its components. If it is not, or if anything else is unusual
about this machine, there is no such folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from pathlib import Path

BASE = Path("/usr/share/X11/xkb")
"""Where X servers look for rules and components."""
SECTIONS = {
    "keycodes": "xkb_keycodes",
    "types": "xkb_types",
    "compat": "xkb_compatibility",
    "symbols": "xkb_symbols",
    "geometry": "xkb_geometry",
}
"""Folder of each kind of component, and the kind's name in a keymap."""
TIMEOUT_S = 10.0
_PART = re.compile(r"([\w.-]+)(?:\(([\w.-]+)\))?")
_REDUNDANT = re.compile(r" *map\[[^]]*\]= Level1;\n")
"""Level 1 is what modifiers without an entry select, and xkbcomp leaves such entries out when it compiles a keymap."""
_lock = threading.Lock()


def components(folder: Path) -> Path | None:
    """Return the folder for an X server's `-xkbdir`, which `prepare` made in `folder`; None if it has made none."""
    found = folder / "xkb"
    return found if found.exists() else None


def prepare(folder: Path, display: str, authority: Path) -> None:
    """Make the folder of components from the keymap of a running X server, unless another thread makes it."""
    if not _lock.acquire(blocking=False):
        return
    try:
        hidden = folder / ".xkb"
        if hidden.exists():  # made, or tried in vain
            return
        _make_folder(hidden)
        keymap = _xkbcomp(display, "-", environment={"XAUTHORITY": str(authority)})
        if not (BASE / "rules").is_dir() or not _write_components(keymap, hidden):
            return
        (hidden / "rules").symlink_to(BASE / "rules")
        (folder / "xkb").symlink_to(hidden)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return
    finally:
        _lock.release()


def _make_folder(folder: Path) -> None:
    """Make a folder that the X servers' user can read, whatever the umask."""
    folder.mkdir()
    folder.chmod(0o755)


def _xkbcomp(*arguments: str, environment: dict[str, str] | None = None) -> str:
    """Return the output of xkbcomp. Raises `OSError` or `SubprocessError`."""
    command = ["xkbcomp", "-w", "0", *arguments]
    variables = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")} | (environment or {})
    done = subprocess.run(
        command, capture_output=True, check=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, env=variables
    )
    return done.stdout.decode()


def _write_components(keymap: str, folder: Path) -> bool:
    """Write the files of a keymap; return whether they give the same keymap.

    A section "pc+us+inet(evdev)" is included from three files: the first has all of it, and the others nothing.
    """
    included = []
    for kind, name in SECTIONS.items():
        section = re.search(rf'^{name} "([^"]*)" \{{\n(.*?)^\}};\n', keymap, re.MULTILINE | re.DOTALL)
        if section is None:
            return False
        included.append(f'{name} {{ include "{section[1]}" }};')
        _make_folder(folder / kind)
        for index, part in enumerate(re.split(r"[+|]", section[1])):
            place = _PART.fullmatch(part)
            if place is None or (folder / kind / place[1]).exists():
                return False
            file = folder / kind / place[1]
            file.write_text(f'default {name} "{place[2] or "basic"}" {{\n{"" if index else section[2]}}};\n')
            file.chmod(0o644)
    source = folder / "keymap"
    source.write_text("xkb_keymap {\n" + "\n".join(included) + "\n};\n")
    again = _xkbcomp("-I", f"-I{folder}", "-xkb", str(source), "-")
    return _REDUNDANT.sub("", again) == _REDUNDANT.sub("", keymap)
