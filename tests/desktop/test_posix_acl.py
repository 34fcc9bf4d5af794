"""POSIX ACLs: one group loses write access."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from deskhand.desktop.local import guest_user, isolation

pytestmark = pytest.mark.skipif(not guest_user.guest_uids(), reason="only root can be another user for a while")


def may_write(folder: Path, groups: str) -> bool:
    command = ["setpriv", "--reuid=20000", "--regid=20000", groups, "test", "-w", str(folder)]
    return subprocess.run(command, check=False).returncode == 0


@pytest.fixture
def folder():
    made = Path("/var/tmp/deskhand-test-access-list")
    made.mkdir()
    made.chmod(0o1777)
    yield made
    made.rmdir()


def test_only_the_group_loses_write_access(folder):
    others, guests = "--clear-groups", f"--groups={isolation.guest_group()}"
    assert may_write(folder, others)
    assert may_write(folder, guests)
    isolation.grant_group(str(folder), isolation.guest_group(), isolation.READ_AND_ENTER)
    assert may_write(folder, others)
    assert not may_write(folder, guests)
    assert folder.stat().st_mode & 0o7777 == 0o1777


def test_existing_entries_stay_and_nothing_is_written_twice(folder):
    isolation.grant_group(str(folder), 4711, isolation.READ_AND_ENTER)
    isolation.grant_group(str(folder), isolation.guest_group(), isolation.READ_AND_ENTER)
    before = folder.stat().st_ctime_ns
    isolation.grant_group(str(folder), isolation.guest_group(), isolation.READ_AND_ENTER)
    assert folder.stat().st_ctime_ns == before
    assert not may_write(folder, "--groups=4711")
    assert not may_write(folder, f"--groups={isolation.guest_group()}")
