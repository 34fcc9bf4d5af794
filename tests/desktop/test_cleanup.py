"""Cleanup after dead owners, disk counting, and concurrent calls."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from desktops import embedded
from unprivileged import import_path, python_of_other_user

from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import desktop as local_desktop
from deskhand.desktop.local import file_tree, guest_user, isolation, processes, resource_monitor, runtime_dir
from deskhand.desktop.local.file_tree import disk_bytes, remove_tree
from deskhand.desktop.local.isolation import ResourceLimits
from deskhand.desktop.local.runtime_dir import remove, remove_stale
from deskhand.errors import GuestFailure, InfrastructureError

SMALL = DesktopSpec("plain", 256, 192)
ROOT = Path(__file__).resolve().parents[2]
OWNER = """
import os, sys, time
from pathlib import Path
from deskhand.desktop.local import runtime_dir
os.getpid = lambda: int(sys.argv[2])
made = runtime_dir.RuntimeDir(Path(sys.argv[1]))
print(made.folder, made.reaper.pid, flush=True)
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


def test_programs_without_site_packages_import_none():
    """The reaper once imported structlog: it ended at once, and guests outlived every owner that was killed."""
    sources = (path.read_text() for path in (ROOT / "deskhand").rglob("*.py"))
    modules = {found for text in sources for found in re.findall(r'python_command\(\s*"([\w.]+)"', text)}
    assert "deskhand.desktop.local.runtime_dir" in modules
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {', '.join(sorted(modules))}"
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True)


def test_a_reaper_that_has_ended_is_replaced(tmp_path):
    owner = runtime_dir.RuntimeDir(tmp_path)
    try:
        first = owner.reaper
        owner.ensure_reaper()
        assert owner.reaper is first
        first.kill()
        first.wait()
        owner.ensure_reaper()
        assert owner.reaper.poll() is None
    finally:
        owner.close()
    assert not owner.folder.exists(), "the new one removes it"


@pytest.mark.skipif(not guest_user.guest_uids(), reason="guests have no user ids of their own here")
def test_the_folder_of_a_guest_that_lives_on_stays_for_another_attempt(tmp_path, monkeypatch):
    user = guest_user.GuestUser.reserve()
    user.close()
    guest = subprocess.Popen(guest_user.command_as_user(user.uid, ["sleep", "600"]))
    (tmp_path / "owner" / "desktop").mkdir(parents=True)
    (tmp_path / "owner" / "desktop" / runtime_dir.GUEST_FILE).write_text(str(user.key))
    try:
        with monkeypatch.context() as overloaded:
            overloaded.setattr(guest_user.GuestUser, "kill", lambda _: [guest.pid])
            assert not remove("no-such-owner", tmp_path / "owner")
        assert (tmp_path / "owner" / "desktop").is_dir()
        guest_user.release_all()
        assert remove("no-such-owner", tmp_path / "owner")
        assert guest.wait(timeout=10) == -signal.SIGKILL
    finally:
        guest.kill()


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


@pytest.mark.parametrize(("is_renamed", "times"), [(True, 99), (True, 1), (False, 99)])
def test_a_folder_that_is_renamed_at_every_look_hides_no_files(is_renamed, times, on_tmpfs, monkeypatch):
    """A guest can rename it in a loop. Honest programs rename a folder once, and remove others all the time."""
    (on_tmpfs / "a").mkdir()
    (on_tmpfs / "a" / "file").write_bytes(bytes(1 << 20))
    names, found = iter(range(99)), os.scandir

    @contextmanager
    def scandir(folder):
        with found(folder) as entries:
            listed = list(entries)
        for entry in listed:
            if entry.is_dir() and (number := next(names)) < times:
                if is_renamed:
                    os.rename(entry.name, f"{number}", src_dir_fd=folder, dst_dir_fd=folder)
                else:
                    (on_tmpfs / entry.name / "file").unlink(missing_ok=True)
                    (on_tmpfs / entry.name).rmdir()
                    (on_tmpfs / f"{number}").mkdir()
        yield iter(listed)

    monkeypatch.setattr(os, "scandir", scandir)
    if is_renamed and times > 1:
        assert "renaming" in str(resource_monitor.exceeded_limit([], [on_tmpfs], ResourceLimits(disk_mib=8)))
    else:
        assert (disk_bytes(on_tmpfs, 8 << 20) >= 1 << 20) == is_renamed


def test_a_vanishing_file_does_not_hide_others_from_the_disk_count(tmp_path, monkeypatch):
    for number in range(20):
        (tmp_path / f"{number:02}").write_bytes(bytes(64 << 10))

    class Churning:
        """A folder whose first file is gone before it is looked at, as a guest could have it at every look."""

        def __init__(self, path):
            self._found = sorted(found(path), key=lambda entry: entry.name)
            os.unlink(self._found[0].name, dir_fd=path)

        def __enter__(self):
            return iter(self._found)

        def __exit__(self, *error):
            return None

    found = os.scandir
    monkeypatch.setattr(file_tree.os, "scandir", Churning)
    assert file_tree.disk_bytes(tmp_path, 1 << 30) >= 19 * (64 << 10)


def nest(top: Path, depth: int, name: str, with_others: bool = False) -> Path:
    """Create a chain of folders, which no path may reach, with a file of 1 MiB at its end; return its top."""
    top.mkdir(parents=True)
    folder = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=folder)
        if with_others:
            os.mkdir("other", dir_fd=folder)
            os.close(os.open("file", os.O_CREAT, dir_fd=folder))
        deeper = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = deeper
    with open(os.open("big", os.O_CREAT | os.O_WRONLY, dir_fd=folder), "wb") as file:
        file.write(bytes(1 << 20))
    os.close(folder)
    return top


@pytest.fixture
def on_tmpfs() -> Iterator[Path]:
    """A folder where desktops have theirs."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    folder.chmod(0o777)
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


@pytest.mark.parametrize(("depth", "name"), [(1500, "a"), (5000, "a"), (1500, "x" * 255)])
def test_folders_nested_to_any_depth_are_removed(depth, name, on_tmpfs):
    assert remove_tree(nest(on_tmpfs / "desktop", depth, name, with_others=True))
    assert list(on_tmpfs.iterdir()) == []


def test_a_removal_follows_no_link_and_leaves_what_it_must(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").touch()
    (tmp_path / "home" / "a").mkdir(parents=True)
    for place in ("home/link", "home/a/link", "link"):
        (tmp_path / place).symlink_to(tmp_path / "outside")
    assert remove_tree(tmp_path / "home")
    assert not remove_tree(tmp_path / "link")
    assert not remove_tree(tmp_path / "outside" / "file")
    assert remove_tree(tmp_path / "nothing")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "link", "outside"]


def test_what_is_wrong_with_one_stale_folder_keeps_no_process_from_starting(on_tmpfs):
    names = [f"deskhand-{os.getuid()}-{1 << 22}-{name}" for name in ("1", "2", "3")]
    nest(on_tmpfs / names[0] / "desktop", 1500, "a")
    (on_tmpfs / names[1] / "desktop" / "display").mkdir(parents=True)  # it should be a file
    (on_tmpfs / names[2] / "desktop").mkdir(parents=True)
    remove_stale(on_tmpfs)
    assert [path.name for path in on_tmpfs.iterdir()] == [names[1]]


def test_files_deeper_than_a_path_may_be_long_use_disk_too(on_tmpfs):
    limits, before = ResourceLimits(disk_mib=8), len(os.listdir("/proc/self/fd"))
    folder = nest(on_tmpfs / "home", 30, "x" * 200)
    assert disk_bytes(folder, 8 << 20) >= 1 << 20
    assert resource_monitor.exceeded_limit([], [folder], limits) is None
    for number in range(8):
        nest(folder / f"{number}", 30, "x" * 200)
    assert "more than 8 MiB" in str(resource_monitor.exceeded_limit([], [folder], limits))
    nest(on_tmpfs / "deep", 5000, "x")
    assert "deep" in str(resource_monitor.exceeded_limit([], [on_tmpfs / "deep"], limits))
    assert len(os.listdir("/proc/self/fd")) == before


CLOSED = """
import os, sys
from pathlib import Path
from deskhand.desktop.local.file_tree import disk_bytes, remove_tree
top = Path(sys.argv[1])
for mode in (0o000, 0o400, 0o100, 0o300):
    (top / f"{mode}" / "inner").mkdir(parents=True)
    (top / f"{mode}" / "inner" / "file").write_bytes(bytes(1 << 20))
    for folder in (top / f"{mode}" / "inner", top / f"{mode}"):
        folder.chmod(mode)
counted = disk_bytes(top, 1 << 30)
modes = [(top / f"{mode}").stat().st_mode & 0o777 for mode in (0o000, 0o400, 0o100, 0o300)]
print(counted >= 4 << 20, modes == [0o000, 0o400, 0o100, 0o300], remove_tree(top), top.exists())
"""


def test_folders_that_their_owner_may_not_read_are_counted_and_removed_without_root(on_tmpfs):
    """Without root, guests and this process are the same user."""
    command = [*python_of_other_user(), "-c", CLOSED, f"{on_tmpfs}/top"]
    done = subprocess.run(command, env=import_path(), cwd="/", capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "True", "True", "False"], done.stderr


NEST = """
import os
for _ in range(1500):
    os.mkdir("a")
    os.chdir("a")
"""


async def test_a_home_of_deeply_nested_folders_is_removed_where_it_is_no_file_system_of_its_own(monkeypatch):
    monkeypatch.setattr(isolation, "size_limited_folder", lambda *_: False)
    async with embedded(SMALL) as desktop:
        assert desktop._session is not None
        folder = desktop._session.folder
        with suppress(GuestFailure):  # the monitor may see the depth before the program has ended
            assert (await desktop.run(["python3", "-c", NEST])).returncode == 0
    assert not folder.exists()


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
