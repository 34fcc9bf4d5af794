"""Copy-on-write homes from templates.

A template is a folder written once per content and never changed. `overlay` mounts the home over it (needs mount
rights; a change of owner copies no content), `reflink` shares file blocks (needs file-system support, which tmpfs
lacks), `copy` is the fallback.

Invariant: changes in a home reach neither the template nor another home.
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


def template_folder(base: Path, files: Mapping[str, str], directories: Iterable[str]) -> Path:
    """Return the folder below `base` with `files` (text by path) and empty `directories`; write it if missing."""
    directories = sorted(directories)
    digest = hashlib.sha256(repr((sorted(files.items()), directories)).encode()).hexdigest()[:24]
    target = base / digest
    if target.is_dir():
        return target
    base.mkdir(parents=True, exist_ok=True)
    partial = base / f"{digest}.{secrets.token_hex(4)}"
    partial.mkdir(mode=0o755)
    for name in directories:
        (partial / name).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = partial / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    try:
        partial.rename(target)
    except OSError as error:  # another thread created it first
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        shutil.rmtree(partial)
    return target


def make_home(template: Path, folder: Path, method: Method) -> Path:
    """Create a home in the new `folder` and return its path. Raises `InfrastructureError` if the kernel refuses."""
    home = folder / "home"
    home.mkdir(mode=0o700)
    if method == "overlay":
        _mount_overlay(template, folder, home)
    else:
        copier = _clone if method == "reflink" else shutil.copyfile
        shutil.copytree(template, home, symlinks=True, copy_function=copier, dirs_exist_ok=True)
    home.chmod(0o700)
    return home


def _mount_overlay(template: Path, folder: Path, home: Path) -> None:
    # With xino, files and folders have the same device; otherwise a file manager copies what is dragged, as it does
    # between disks.
    upper, work = folder / "home-written", folder / "home-work"
    for path in (upper, work):
        path.mkdir(mode=0o700)
    for extra in (",metacopy=on,redirect_dir=on,xino=on", ",metacopy=on,redirect_dir=on", ""):
        options = f"lowerdir={template},upperdir={upper},workdir={work}{extra}"
        if _LIBC.mount(b"deskhand", os.fsencode(home), b"overlay", _MS_NOSUID | _MS_NODEV, options.encode()) == 0:
            return
    number = ctypes.get_errno()
    raise InfrastructureError(f"{home}: cannot mount the overlay: {os.strerror(number)}")


def _clone(source: str, target: str) -> str:
    with open(source, "rb") as old, open(target, "wb") as new:
        fcntl.ioctl(new, _FICLONE, old.fileno())
    return target


@functools.cache
def best_method(base: Path) -> tuple[Method, str]:
    """Return the best method for homes below `base`, found by trial, and why better ones are unavailable."""
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
                    return method, "; ".join(reasons) or "overlay file system"
                reasons.append(f"{method}: a write changed the template")
            except (OSError, InfrastructureError) as error:
                reasons.append(f"{method}: {getattr(error, 'strerror', None) or error}")
        return "copy", "; ".join(reasons)
    except OSError as error:
        raise ConfigError(f"{base}: not writable: {error.strerror}") from error
    finally:
        isolation.unmount_below(probe)
        shutil.rmtree(probe, ignore_errors=True)
