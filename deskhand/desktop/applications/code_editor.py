"""Visual Studio Code profile: its packages are Microsoft's, so their source must be added first."""

from __future__ import annotations

from deskhand.desktop.applications.profile import Profile

_KEY = "/usr/share/keyrings/microsoft.gpg"
_REPOSITORY = "https://packages.microsoft.com"
_WITHOUT_NAMESPACES = """#!/bin/sh
exec /usr/share/code/bin/code --no-sandbox "$@"
"""
"""As for Chromium, its own sandbox needs namespaces."""

VSCODE = Profile(
    name="vscode",
    summary="code editor (Visual Studio Code)",
    packages=("code",),
    argv=("code", "--disable-gpu", "--disable-telemetry", "--skip-welcome", "--skip-release-notes"),
    window="code",
    plain_wrappers={"code": _WITHOUT_NAMESPACES},
    desktop_entry="code.desktop",
    maximized="Code",
    package_source=(
        f"wget -qO- {_REPOSITORY}/keys/microsoft.asc | gpg --dearmor > {_KEY}; "
        f"echo 'deb [arch=amd64,arm64 signed-by={_KEY}] {_REPOSITORY}/repos/code stable main'"
        " > /etc/apt/sources.list.d/vscode.list"
    ),
    groups=("development",),
)
