"""Python programs as a user without rights."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from deskhand.desktop.local import guest_user

OTHER_UID = 54_321


def python_of_other_user() -> list[str]:
    """Python, as another user if this is root; Debian's where other users have no access to this one."""
    if os.getuid() != 0:
        return [sys.executable]
    check = f"import sys; assert sys.version_info[:2] == {sys.version_info[:2]}"
    for program in (sys.executable, "/usr/bin/python3"):
        # By way of a shell: root's rights end only with a second program.
        command = guest_user.command_as_user(OTHER_UID, ["/bin/sh", "-c", 'exec "$0" "$@"', program])
        if subprocess.run([*command, "-c", check], capture_output=True, check=False, cwd="/").returncode == 0:
            return command
    pytest.skip("other users cannot run this Python, and there is no other of its version")


def import_path() -> dict[str, str]:
    """The environment with which another Python finds the same packages."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
