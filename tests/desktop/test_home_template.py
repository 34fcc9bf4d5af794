"""Homes from templates: every method gives the same home, and homes are isolated."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from desktops import home_contents

from deskhand.desktop.local import home_template, isolation

FILES = {".config/app/settings": "a=1\n", "notes.txt": "ąę\n"}
FOLDERS = ("Desktop", "Documents/deep")


@pytest.fixture
def base():
    """On the file system that desktops use, as the ways depend on it."""
    folder = Path("/dev/shm") / f"deskhand-test-homes-{os.getpid()}"
    folder.mkdir()
    yield folder
    isolation.unmount_below(folder)
    shutil.rmtree(folder)


def possible(base: Path) -> list[home_template.Method]:
    method, _ = home_template.best_method(base)
    return ["copy"] if method == "copy" else ["copy", method]


def test_every_method_gives_the_same_home_and_an_unchanged_template(base):
    template = home_template.template_folder(base / "templates", FILES, FOLDERS)
    untouched = home_contents(template)
    for method in possible(base):
        homes = []
        for number in range(3):
            folder = base / f"{method}-{number}"
            folder.mkdir()
            home = home_template.make_home(template, folder, method)
            homes.append(home_contents(home))
            (home / "notes.txt").write_text("changed")
            (home / ".config/app/settings").unlink()
            shutil.rmtree(home / "Desktop")
            (home / "new").write_text("new")
            os.chmod(home / "Documents", 0o700)
            assert home.stat().st_mode & 0o777 == 0o700
        assert homes == [untouched] * 3
        assert home_contents(template) == untouched


def test_a_template_is_written_once_per_content(base):
    first = home_template.template_folder(base, FILES, FOLDERS)
    written = (first / "notes.txt").stat().st_mtime_ns
    assert home_template.template_folder(base, dict(reversed(FILES.items())), reversed(FOLDERS)) == first
    assert (first / "notes.txt").stat().st_mtime_ns == written
    assert home_template.template_folder(base, FILES | {"notes.txt": "other"}, FOLDERS) != first
    assert not list(base.glob("*.*"))


def test_files_and_folders_of_a_home_are_on_one_device(base):
    """A file manager copies what is dragged to another device, where it moves on the same one."""
    template = home_template.template_folder(base / "templates", FILES, FOLDERS)
    folder = base / "limited"
    folder.mkdir()
    isolation.size_limited_folder(folder, 16)
    home = home_template.make_home(template, folder, home_template.best_method(folder)[0])
    (home / "Documents" / "new").write_text("new")
    (home / "folder").mkdir()
    (home / "folder" / "inside").write_text("new")
    assert {path.stat().st_dev for path in (home, *home.rglob("*"))} == {home.stat().st_dev}


def test_mounts_are_removed(base):
    template = home_template.template_folder(base / "templates", FILES, FOLDERS)
    method = home_template.best_method(base)[0]
    folder = base / "one"
    folder.mkdir()
    home_template.make_home(template, folder, method)
    isolation.unmount_below(base)
    isolation.unmount_below(base)
    assert str(base) not in Path("/proc/self/mountinfo").read_text()
    shutil.rmtree(folder)
    assert (template / "notes.txt").read_text() == FILES["notes.txt"]
