"""Homes from templates by copy-on-write. Invariant: nothing that a guest does to its home reaches the template or another home.

A template is a folder that is written once for each content and never changed. `overlay`: the kernel lays the home over it and
copies what is written to (a change of owner copies no content). `reflink`: files share their blocks until one is written to.
`copy`: neither is to be had. What is possible depends on the machine: mounting needs its right, reflinks a file system that knows
them (tmpfs does not).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from deskhand.desktop.local import isolation
from deskhand.errors import ConfigError, InfrastructureError

Method = Literal["overlay", "reflink", "copy"]

_FICLONE = 0x40049409  # linux/fs.h
_MS_NOSUID, _MS_NODEV = 2, 4
_LIBC = ctypes.CDLL(None, use_errno=True)


def template_folder(base: Path, files: Mapping[str, str], folders: Iterable[str]) -> Path:
    """The folder under `base` that holds `files` (text by relative path) and empty `folders`; written when it is not there yet."""
    folders = sorted(folders)
    digest = hashlib.sha256(repr((sorted(files.items()), folders)).encode()).hexdigest()[:24]
    wanted = base / digest
    if wanted.is_dir():
        return wanted
    base.mkdir(parents=True, exist_ok=True)
    partial = base / f"{digest}.{secrets.token_hex(4)}"
    partial.mkdir(mode=0o755)
    for name in folders:
        (partial / name).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = partial / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    try:
        partial.rename(wanted)
    except OSError as error:  # another thread was quicker
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        shutil.rmtree(partial)
    return wanted


def make_home(template: Path, folder: Path, method: Method) -> Path:
    """A home in `folder`, which must be new; returns where it is. Raises `InfrastructureError` when the kernel refuses."""
    home = folder / "home"
    home.mkdir(mode=0o700)
    if method == "overlay":
        _mount_overlay(template, folder, home)
        os.chmod(home, 0o700)
    else:
        copier = _clone if method == "reflink" else shutil.copyfile
        shutil.copytree(template, home, symlinks=True, copy_function=copier, dirs_exist_ok=True)
        os.chmod(home, 0o700)
    return home


def _mount_overlay(template: Path, folder: Path, home: Path) -> None:
    upper, work = folder / "home-written", folder / "home-work"
    for path in (upper, work):
        path.mkdir(mode=0o700)
    for extra in (",metacopy=on,redirect_dir=on", ""):
        options = f"lowerdir={template},upperdir={upper},workdir={work}{extra}"
        if _LIBC.mount(b"deskhand", os.fsencode(home), b"overlay", _MS_NOSUID | _MS_NODEV, options.encode()) == 0:
            return
    number = ctypes.get_errno()
    raise InfrastructureError(f"the home {home} cannot be laid over its template: {os.strerror(number)}")


def _clone(source: str, target: str) -> str:
    with open(source, "rb") as old, open(target, "wb") as new:
        fcntl.ioctl(new, _FICLONE, old.fileno())
    return target


@functools.cache
def best_method(base: Path) -> tuple[Method, str]:
    """The best way for homes under `base` on this machine, tried out, and in one sentence why not a better one."""
    probe = base / f"probe-{secrets.token_hex(4)}"
    reasons = []
    try:
        template = template_folder(probe / "templates", {"file": "text"}, ())
        for method in ("overlay", "reflink"):
            folder = probe / method
            folder.mkdir()
            try:
                home = make_home(template, folder, method)
                (home / "file").write_text("changed")
                if (template / "file").read_text() == "text":
                    return method, "; ".join(reasons) or "the kernel lays homes over their template"
                reasons.append(f"{method}: the template was changed")
            except (OSError, InfrastructureError) as error:
                reasons.append(f"{method}: {getattr(error, 'strerror', None) or error}")
        return "copy", "; ".join(reasons)
    except OSError as error:
        raise ConfigError(f"{base} cannot be written to: {error.strerror}") from error
    finally:
        isolation.unbound_folders(probe)
        shutil.rmtree(probe, ignore_errors=True)
