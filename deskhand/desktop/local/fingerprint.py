"""Fingerprint of a desktop, used to check that resets restore the same start state.

Desktops that differ in screen, windows, files, programs, keyboard or clipboard owner have different fingerprints;
times, file owners and process ids are ignored. The host reads everything; guest content is only hashed.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from deskhand.desktop.local import processes, windows
from deskhand.desktop.local.x_connection import XConnection

MAX_FILE_BYTES = 64 * 1024 * 1024
_SELECTIONS = ("PRIMARY", "SECONDARY", "CLIPBOARD")


@dataclass(frozen=True)
class Fingerprint:
    """A short hash or text for each part."""

    screen: str
    pointer: tuple[int, int]
    windows: tuple[str, ...]
    programs: tuple[str, ...]
    home: str
    keyboard: str
    selections: tuple[str, ...]
    """Selections that have an owner."""

    def differs_from(self, other: Fingerprint) -> list[str]:
        """Return one line for each part that differs."""
        return [
            f"{name}: {mine} != {theirs}"
            for name, mine in vars(self).items()
            if mine != (theirs := getattr(other, name))
        ]


def take(connection: XConnection, home: Path, pids: list[int], screen: str) -> Fingerprint:
    """Return the fingerprint; `screen` is the hash of the settled pixels."""
    core = connection.core
    setup = connection.setup
    mapping = core.GetKeyboardMapping(setup.min_keycode, setup.max_keycode - setup.min_keycode + 1).reply()
    owners = [
        core.GetSelectionOwner(core.InternAtom(False, len(name), name).reply().atom).reply().owner
        for name in _SELECTIONS
    ]
    titles = [f"{w.wm_class} '{w.title}' {w.x},{w.y} {w.width}x{w.height}" for w in windows.list_windows(connection)]
    return Fingerprint(
        screen=screen,
        pointer=connection.pointer(),
        windows=tuple(titles),
        programs=tuple(sorted(filter(None, map(_program_name, pids)))),
        home=home_digest(home),
        keyboard=hashlib.sha256(bytes(mapping.keysyms.buf())).hexdigest()[:16],
        selections=tuple(name for name, owner in zip(_SELECTIONS, owners, strict=True) if owner),
    )


def _program_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() if processes.state(pid) not in ("", "Z") else ""
    except OSError:
        return ""


def home_digest(root: Path) -> str:
    """Hash every name, type, mode, link target and content below `root`. Links are not followed."""
    digest = hashlib.sha256()
    for base, folders, files in os.walk(root):
        folders.sort()
        for name in sorted([*files, *folders]):
            path = Path(base, name)
            status = path.lstat()
            relative = os.fsencode(path.relative_to(root))
            digest.update(b"%d:%s:%o:" % (len(relative), relative, status.st_mode))
            if stat.S_ISLNK(status.st_mode):
                digest.update(os.fsencode(os.readlink(path)))
            elif stat.S_ISREG(status.st_mode):
                digest.update(_content(path))
    return digest.hexdigest()[:16]


def _content(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    return hashlib.sha256(data).digest() + len(data).to_bytes(8, "big")
