"""Cleanup after dead owners, disk counting, and concurrent calls."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from desktops import embedded

from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import desktop as local_desktop
from deskhand.desktop.local import guest_user, processes, resource_monitor
from deskhand.desktop.local.runtime_dir import remove, remove_stale
from deskhand.errors import InfrastructureError

SMALL = DesktopSpec("plain", 256, 192)
ROOT = Path(__file__).resolve().parents[2]
OWNER = """
import os, sys, time
from pathlib import Path
from deskhand.desktop.local import runtime_dir
os.getpid = lambda: int(sys.argv[2])
made = runtime_dir.RuntimeDir(Path(sys.argv[1]))
print(made.folder, made._reaper.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("pid", [os.getpid(), 1 << 22], ids=["alive", "nobody"])
def test_an_owner_lives_as_long_as_its_lock_whatever_its_process_id_is_here(pid, tmp_path):
    """Ids are reused, and other containers have their own."""
    command = [sys.executable, "-c", OWNER, str(tmp_path), str(pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        folder, reaper = owner.stdout.readline().split()
        try:
            remove_stale(tmp_path)
            is_kept = Path(folder).exists()
        finally:
            processes.kill(int(reaper))
            owner.kill()
    assert is_kept
    remove_stale(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_lock_is_of_an_earlier_version_and_its_owner_known_by_its_process_id(tmp_path):
    for pid in (os.getpid(), 1 << 22):
        (tmp_path / f"deskhand-{os.getuid()}-{pid}-0123" / "desktop").mkdir(parents=True)
    remove_stale(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"deskhand-{os.getuid()}-{os.getpid()}-0123"]


def test_the_folder_of_an_owner_that_died_while_writing_is_removed(tmp_path):
    folder = tmp_path / "deskhand-1-2"
    for name, text in (("one", ""), ("two", "x\n"), ("three", "987654")):
        (folder / name).mkdir(parents=True)
        (folder / name / "display").write_text(text)
    remove("no-such-owner", folder)
    assert not folder.exists()


def test_a_vanishing_file_does_not_hide_others_from_the_disk_count(tmp_path, monkeypatch):
    for number in range(20):
        (tmp_path / f"{number:02}").write_bytes(bytes(64 << 10))

    class Churning:
        """A folder whose first file is gone before it is looked at, as a guest could have it at every look."""

        def __init__(self, path):
            self._found = sorted(found(path), key=lambda entry: entry.name)
            os.unlink(self._found[0].path)

        def __enter__(self):
            return iter(self._found)

        def __exit__(self, *error):
            return None

    found = os.scandir
    monkeypatch.setattr(resource_monitor.os, "scandir", Churning)
    assert resource_monitor.disk_bytes(tmp_path, 1 << 30) >= 19 * (64 << 10)


async def test_desktops_with_similar_labels_have_separate_tmp_folders(monkeypatch):
    monkeypatch.setattr(guest_user, "guest_uids", lambda: False)
    opened = (embedded(SMALL, label=f"worker-{number}", isolation_level="plain") for number in range(2))
    async with next(opened) as first, next(opened) as second:
        for desktop in (first, second):
            await desktop.run(["sh", "-c", 'echo "$0" >"$TMPDIR/mine"', desktop.label])
        for desktop in (first, second):
            assert (await desktop.run(["sh", "-c", 'cat "$TMPDIR/mine"'])).stdout.decode().strip() == desktop.label
        await first.close()
        assert (await second.run(["sh", "-c", 'cat "$TMPDIR/mine"'])).returncode == 0


async def test_observing_during_a_long_wait_does_not_fail_the_desktop(monkeypatch):
    monkeypatch.setattr(local_desktop, "REPLY_MARGIN_S", 1.0)
    async with embedded(SMALL) as desktop:
        began = time.monotonic()
        waiting = asyncio.create_task(desktop.wait_window("no such window", timeout_s=4.0))
        await asyncio.sleep(0.1)
        assert (await desktop.observe()).size == (256, 192)
        assert time.monotonic() - began > 3.5, "it waited for its turn, longer than it may take itself"
        with pytest.raises(InfrastructureError, match="no such window"):
            await waiting


async def test_desktops_with_the_same_label_have_different_labels_in_their_guests_environment():
    """The label ends a desktop's guests where nothing else tells whose they are."""
    async with embedded(SMALL, label="same") as first, embedded(SMALL, label="same") as second:
        found = []
        for _ in range(2):
            found += [(await each.run(["printenv", processes.LEASE_LABEL])).stdout for each in (first, second)]
            await first.reset(SMALL)
        assert len(set(found)) == 3, found
