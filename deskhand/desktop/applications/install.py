"""Debian packages of applications. Invariant: nothing is installed that was not asked for and named before."""

from __future__ import annotations

import os
import shutil
import subprocess

from deskhand.desktop.applications.profile import Profile
from deskhand.errors import ConfigError

_APT = ("apt-get", "-o", "DPkg::Lock::Timeout=300")


def missing(packages: list[str]) -> list[str]:
    """Those that dpkg does not know as installed. Raises `ConfigError` where there is no dpkg."""
    if shutil.which("dpkg-query") is None:
        raise ConfigError(f"this is no Debian system; install what your system calls: {' '.join(packages)}")
    command = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages]
    answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    there = {line.split()[0] for line in answer.splitlines() if line.endswith(" installed")}
    return [name for name in packages if name not in there]


def packages_of(profiles: list[Profile]) -> list[str]:
    """Their packages, each once."""
    return list(dict.fromkeys(package for profile in profiles for package in profile.packages))


def command(packages: list[str]) -> list[str]:
    """What installs them."""
    return ["apt-get", "install", "-y", "--no-install-recommends", *packages]


def install(packages: list[str]) -> None:
    """Install packages, showing what apt-get says. Raises `ConfigError` without root, without apt-get, and when apt-get fails."""
    if shutil.which("apt-get") is None:
        raise ConfigError(f"this is no Debian system; install what your system calls: {' '.join(packages)}")
    if os.getuid() != 0:
        raise ConfigError(
            f"these Debian packages are missing and only root can install them: sudo {' '.join(command(packages))}"
        )
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for words in ([*_APT, "update", "-qq"], [*_APT, *command(packages)[1:]]):
        done = subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise ConfigError(f"{' '.join(words)} ended with {done.returncode}; its reason is above")
