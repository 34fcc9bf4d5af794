"""Debian packages of applications: which are missing, and how to install them."""

from __future__ import annotations

import os
import shutil
import subprocess

from deskhand.desktop.applications.profile import Profile
from deskhand.errors import ConfigError

_APT = ("apt-get", "-o", "DPkg::Lock::Timeout=300")


def missing(packages: list[str]) -> list[str]:
    """Return the packages that dpkg does not list as installed. Raises `ConfigError` without dpkg."""
    if shutil.which("dpkg-query") is None:
        raise ConfigError(f"not a Debian system; install the equivalents of: {' '.join(packages)}")
    command = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages]
    listing = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    installed = {line.split()[0] for line in listing.splitlines() if line.endswith(" installed")}
    return [name for name in packages if name not in installed]


def packages_of(profiles: list[Profile]) -> list[str]:
    """Return the packages of the profiles without duplicates."""
    return list(dict.fromkeys(package for profile in profiles for package in profile.packages))


def without_source(profiles: list[Profile]) -> list[Profile]:
    """Return the profiles whose packages are missing and in no source that apt knows."""
    wanted = [profile for profile in profiles if profile.package_source and missing(list(profile.packages))]
    return [profile for profile in wanted if not all(map(_is_available, profile.packages))]


def _is_available(package: str) -> bool:
    command = ["apt-cache", "show", "--no-all-versions", package]
    return (
        shutil.which(command[0]) is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


def install_command(packages: list[str]) -> list[str]:
    """Return the apt-get command that installs them."""
    return ["apt-get", "install", "-y", "--no-install-recommends", *packages]


def install(packages: list[str]) -> None:
    """Install packages with visible apt-get output. Raises `ConfigError` without root or apt-get, or if it fails."""
    if shutil.which("apt-get") is None:
        raise ConfigError(f"not a Debian system; install the equivalents of: {' '.join(packages)}")
    if os.getuid() != 0:
        raise ConfigError(f"missing Debian packages; run as root: {' '.join(install_command(packages))}")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for argv in ([*_APT, "update", "-qq"], [*_APT, *install_command(packages)[1:]]):
        result = subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, check=False)
        if result.returncode != 0:
            raise ConfigError(f"{' '.join(argv)}: exit code {result.returncode}; see its output above")
