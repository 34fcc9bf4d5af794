"""Host access to files in the guest's home."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deskhand.desktop.local.home import MAX_NAMES, Home
from deskhand.errors import InfrastructureError


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "secret").write_text("secret of the host")
    root = tmp_path / "home"
    (root / "inside").mkdir(parents=True)
    (root / "inside" / "file.txt").write_text("mine")
    return Home(root, "/home/user")


def test_absolute_and_relative_paths_name_the_same_file(home):
    for path in ("inside/file.txt", "/home/user/inside/file.txt", "./inside/../inside/file.txt"):
        assert home.read(path) == b"mine"


@pytest.mark.parametrize(
    "path",
    ["../secret", "inside/../../secret", "/etc/passwd", "/home/user/../secret", "inside/none", "inside/file.txt/x"],
)
def test_paths_outside_the_home_are_not_found(home, path):
    with pytest.raises(FileNotFoundError):
        home.read(path)


@pytest.mark.parametrize("target", ["../secret", "/etc/passwd", "inside/../../secret"])
def test_a_link_out_of_the_home_is_refused(home, target):
    os.symlink(target, home.root / "link")
    os.symlink(os.path.dirname(target) or ".", home.root / "folder")
    with pytest.raises(PermissionError):
        home.read("link")
    with pytest.raises((PermissionError, FileNotFoundError)):
        home.read(f"folder/{os.path.basename(target)}")
    with pytest.raises(PermissionError):
        home.write("link", b"overwritten")
    assert (home.root.parent / "secret").read_text() == "secret of the host"


def test_links_inside_the_home_are_followed_for_reading(home):
    os.symlink("inside", home.root / "folder")
    os.symlink("/home/user/folder/file.txt", home.root / "inside" / "again")
    assert home.read("folder/again") == b"mine"
    assert home.listdir("folder") == ["again", "file.txt"]


def test_a_file_swapped_for_a_link_is_not_read(home, monkeypatch):
    monkeypatch.setattr(home, "_resolve", home._parts)
    os.symlink("../secret", home.root / "link")
    with pytest.raises(PermissionError):
        home.read("link")


def test_a_folder_swapped_for_a_link_is_not_written_through(home):
    outside = home.root.parent / "outside"
    outside.mkdir()
    os.symlink(outside, home.root / "Documents")
    with pytest.raises(PermissionError):
        home.write("Documents/file", b"x")
    assert list(outside.iterdir()) == []


def test_pipes_and_link_cycles_are_refused_and_do_not_block(home):
    os.mkfifo(home.root / "pipe")
    os.symlink("b", home.root / "a")
    os.symlink("a", home.root / "b")
    for name in ("pipe", "a"):
        with pytest.raises(PermissionError):
            home.read(name)
        with pytest.raises(PermissionError):
            home.write(name, b"x")


def test_rejected_reads_leak_no_descriptor(home):
    os.mkfifo(home.root / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for path in ("inside", "pipe", "inside/none", "inside/file.txt/x"):
        for _ in range(10):
            with pytest.raises((PermissionError, FileNotFoundError)):
                home.read(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_above_the_limit_is_rejected(home):
    home.write("big", b"x" * 101)
    assert len(home.read("big", limit=101)) == 101
    with pytest.raises(PermissionError):
        home.read("big", limit=100)


def test_writing_creates_folders_and_reading_gives_it_back(home):
    home.write("/home/user/new/folder/file", b"\0data")
    assert home.read("new/folder/file") == b"\0data"
    assert home.listdir("new") == ["folder"]
    with pytest.raises(FileNotFoundError):
        home.listdir("nothing")


@pytest.fixture
def guest_home() -> Iterator[Home]:
    """A home of a guest whose rights the host takes on, if it may."""
    uid = 54_321 if os.getuid() == 0 else None
    root = Path(tempfile.mkdtemp(dir="/dev/shm"))
    if uid is not None:
        os.chown(root, uid, uid)
    yield Home(root, "/home/user", uid)
    shutil.rmtree(root)


@pytest.mark.parametrize("target", ["x" * 300, f"a/{'x' * 300}/b", "Papers", "Papers/x", "/home/user/Papers", None])
def test_a_folder_that_a_guest_replaced_or_closed_is_missing_or_refused(guest_home, target):
    if target is None:
        guest_home.write("Papers/file", b"x")
        (guest_home.root / "Papers").chmod(0)
    else:
        os.symlink(target, guest_home.root / "Papers")
    for access in (guest_home.listdir, guest_home.read):
        for path in ("Papers", "Papers/file", f"Papers/{'x' * 300}", f"Papers/{'d/' * 3000}"):
            with pytest.raises((PermissionError, FileNotFoundError)):
                access(path)
    with pytest.raises(PermissionError):
        guest_home.write("Papers/file", b"x")


def test_a_file_that_is_being_run_is_not_written(home):
    shutil.copy(shutil.which("sleep") or "", home.root / "program")
    running = os.posix_spawn(home.root / "program", ["program", "600"], {})
    try:
        with pytest.raises(PermissionError):
            home.write("program", b"x")
    finally:
        os.kill(running, 9)
        os.waitpid(running, 0)


def test_an_error_of_this_machine_is_never_a_missing_file(home):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        for access in (home.listdir, home.read, lambda path: home.write(path, b"x")):
            with pytest.raises(InfrastructureError):
                access("inside/file.txt")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    shutil.rmtree(home.root)
    with pytest.raises(InfrastructureError):
        home.read("inside/file.txt")


def test_any_name_is_listed_as_valid_text(home):
    names = [b"\xff", b"caf\xc3\xa9", b"two\nlines", b"x" * 255, b"\xed\xa0\x80"]
    for name in names:
        os.mkdir(os.fsencode(home.root / "inside") + b"/" + name)
    listed = home.listdir("inside")
    assert listed == sorted(["\\xff", "café", "two\nlines", "x" * 255, "\\xed\\xa0\\x80", "file.txt"])
    for name in (*listed, "\udcff", "\ud800"):
        if name not in ("café", "two\nlines", "x" * 255):
            with pytest.raises((FileNotFoundError, PermissionError)):
                home.read(f"inside/{name}/x")


def test_a_folder_is_listed_up_to_a_limit(home):
    for number in range(MAX_NAMES + 100):
        (home.root / "inside" / f"{number}").touch()
    assert len(home.listdir("inside")) == MAX_NAMES
