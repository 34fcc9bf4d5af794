"""Config files that Deskhand ships, by name: `tiny_cpu`, `areal/tiny_cpu`.

Used by `config.load`, and by the launcher of AReaL for its experiments.
"""

from __future__ import annotations

from pathlib import Path

from deskhand.venvs import shipped_path

SUFFIX = ".yaml"
AREAL = "areal/"
"""Prefix of AReaL's experiments."""


def list_configs(prefix: str = "") -> tuple[str, ...]:
    """Return the names of the shipped configs; those of AReaL's experiments begin with `AREAL`."""
    folder = shipped_path("configs")
    names = (path.relative_to(folder).with_suffix("").as_posix() for path in sorted(folder.rglob(f"*{SUFFIX}")))
    return tuple(name for name in names if name.startswith(prefix) and ("/" in name) == bool(prefix))


def find_config(path: Path, prefix: str = "") -> Path:
    """Return `path` if the file exists, else the shipped config of that name, else `path`.

    `tiny_cpu`, `tiny_cpu.yaml` and, outside of a checkout, `configs/tiny_cpu.yaml` name a shipped config. `prefix` is
    `AREAL` for experiments, whose names are given with or without it.
    """
    if path.is_file():
        return path
    name = path.as_posix().removeprefix("configs/").removesuffix(SUFFIX)
    known = list_configs(prefix)
    return next((shipped_path("configs") / f"{each}{SUFFIX}" for each in (name, prefix + name) if each in known), path)
