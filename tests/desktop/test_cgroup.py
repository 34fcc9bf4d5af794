"""Control groups: where they are found, what they limit, and that they end every process."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from desktops import control_groups_of
from patience import limit
from unprivileged import OTHER_UID, import_path, python_of_other_user

from deskhand.desktop.local import cgroup, processes
from deskhand.desktop.local.cgroup import Cgroup, Hierarchy, find_parents

HAS_GROUPS = pytest.mark.skipif(not cgroup.hierarchies()[0], reason=cgroup.hierarchies()[1])
V2 = "30 23 0:26 {root} /sys/fs/cgroup {options} shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "{number} 25 0:{number} {root} /sys/fs/cgroup/{name} rw,nosuid shared:1 - cgroup cgroup rw,{name}\n"
MACHINES = {
    "v2": (
        V2.format(root="/", options="rw"),
        "0::/user.slice/run-1.scope\n",
        {"/sys/fs/cgroup/user.slice/run-1.scope"},
    ),
    "container with its own namespace": (V2.format(root="/", options="rw"), "0::/\n", {"/sys/fs/cgroup"}),
    "container without": (V2.format(root="/docker/ab", options="rw"), "0::/docker/ab\n", {"/sys/fs/cgroup"}),
    "another part of the hierarchy": (V2.format(root="/docker/ab", options="rw"), "0::/user.slice\n", set()),
    "already in the owner's group": (V2.format(root="/", options="rw"), "0::/a/deskhand-owner\n", {"/sys/fs/cgroup/a"}),
    "v1": (
        V1.format(number=31, root="/", name="memory") + V1.format(number=32, root="/", name="pids"),
        "4:memory:/job\n8:pids:/\n1:freezer:/\n",
        {"/sys/fs/cgroup/memory/job", "/sys/fs/cgroup/pids"},
    ),
    "v1 of several controllers": (
        V1.format(number=31, root="/", name="cpu,cpuacct"),
        "4:cpu,cpuacct:/job\n9:name=systemd:/\n",
        {"/sys/fs/cgroup/cpu,cpuacct/job"},
    ),
    "hybrid": (
        V1.format(number=31, root="/", name="memory")
        + V2.format(root="/", options="rw").replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"),
        "4:memory:/\n0::/\n",
        {"/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"},
    ),
    "none": ("20 1 8:1 / / rw - ext4 /dev/sda1 rw\n", "", set()),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_the_groups_of_this_process_are_found(machine):
    mounts, own, expected = MACHINES[machine]
    assert {str(folder) for folder, _, _ in find_parents(mounts, own)} == expected


def test_controllers_are_those_of_the_mount():
    mounts, own, _ = MACHINES["v1"]
    found = {folder.name: (is_v2, controllers) for folder, is_v2, controllers in find_parents(mounts, own)}
    assert found == {"job": (False, {"memory"}), "pids": (False, {"pids"})}


@contextmanager
def group_with(script: str, name: str = "test") -> Iterator[tuple[Cgroup, subprocess.Popen[bytes]]]:
    """A group in which a script runs; both are gone afterwards."""
    group = Cgroup(f"{name}-{secrets.token_hex(4)}-x", memory_mib=32, max_processes=12)
    command = group.command_inside(["sh", "-c", script])
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield group, process
        finally:
            assert group.kill() == []
            process.wait(timeout=limit(5))
            group.close()
            assert not group.exists


def controls(name: str) -> bool:
    return any(name in each.controllers for each in cgroup.hierarchies()[0])


@HAS_GROUPS
def test_a_group_ends_every_process_whatever_it_does():
    bomb = "bomb() { bomb & bomb & sleep 50; }; bomb" if controls("pids") else "true"
    with group_with(f"trap '' TERM INT; setsid env -i setsid sleep 50 & {bomb}; sleep 50") as (group, _):
        while len(group.pids()) < 2:
            pass
        assert group.kill() == []
        assert [pid for pid in group.pids() if processes.is_alive(pid)] == []


@HAS_GROUPS
def test_a_command_that_cannot_join_does_not_run(tmp_path):
    with group_with("true") as (group, _):
        words = group.command_inside(["touch", str(tmp_path / "ran")])
    words[4] = "/nonexistent/cgroup.procs"
    assert subprocess.run(words, capture_output=True, check=False).returncode == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif("not controls('memory')", reason="no control groups for memory")
def test_the_kernel_kills_what_exceeds_the_memory_limit():
    with group_with("sleep 0.2; head -c 100m /dev/zero | tail -n 1") as (group, process):
        assert group.limits_memory
        assert group.exceeded_limit() is None
        process.wait(timeout=limit(20))
        assert "the limit is 32" in (group.exceeded_limit() or "")


@contextmanager
def small_machine(mib: int) -> Iterator[Hierarchy]:
    """A group that has no more memory; groups in it reach its limit, and not their own."""
    hierarchy = next(each for each in cgroup.hierarchies()[0] if "memory" in each.controllers)
    parent = hierarchy.parent / f"test-{secrets.token_hex(4)}"
    parent.mkdir()
    try:
        if hierarchy.is_v2:
            cgroup.enable_controllers(parent)
        (parent / cgroup._LIMIT_FILES[hierarchy.is_v2]["memory"]).write_text(str(mib << 20))
        yield Hierarchy(parent, hierarchy.is_v2, frozenset({"memory"}))
    finally:
        parent.rmdir()


@pytest.mark.skipif("not controls('memory')", reason="no control groups for memory")
def test_a_machine_without_memory_is_not_the_guests_limit(monkeypatch):
    with small_machine(24) as hierarchy:
        monkeypatch.setattr(cgroup, "hierarchies", lambda: ((hierarchy,), "a small machine"))
        with group_with("sleep 0.2; head -c 100m /dev/zero | tail -n 1") as (group, process):
            process.wait(timeout=limit(20))
            assert group.oom_kills()
            assert group.exceeded_limit() is None


def test_files_that_may_only_be_written_are_written(tmp_path):
    """Only root may read `cgroup.kill`."""
    tmp_path.chmod(0o755)
    file = tmp_path / "cgroup.kill"
    file.touch()
    file.chmod(0o222)
    program = f"from deskhand.desktop.local import cgroup; cgroup._write_existing(cgroup.Path({str(file)!r}), '1')"
    open_path = all(parent.stat().st_mode & 0o005 == 0o005 for parent in file.parents)
    if os.getuid() == 0 and not open_path:
        pytest.skip("another user cannot reach this folder")
    subprocess.run([*python_of_other_user(), "-c", program], check=True, env=import_path(), cwd="/")
    file.chmod(0o444)
    assert file.read_text() == "1"


@pytest.mark.skipif("not controls('pids')", reason="no control groups for processes")
def test_the_number_of_processes_is_limited():
    with group_with("for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14; do sleep 50 & done") as (group, process):
        assert process.wait(timeout=limit(10)) != 0
        assert 9 <= len(group.pids()) <= 12


@HAS_GROUPS
def test_a_dead_owners_groups_are_emptied_and_removed():
    token = f"test-{secrets.token_hex(4)}"
    made = group_with("sleep 50", token), group_with("sleep 50", token), group_with("sleep 50", f"other-{token}")
    with made[0] as (_, first), made[1] as (_, second), made[2] as (_, other):
        cgroup.remove_owner(token)
        for process in (first, second):
            process.wait(timeout=limit(5))
        assert not control_groups_of(f"deskhand-desktop-{token}-")
        assert other.poll() is None


@HAS_GROUPS
@pytest.mark.parametrize("ended_by", ["the desktop", "the reaper"])
def test_a_command_that_joins_after_the_kill_is_ended_too(monkeypatch, ended_by):
    token = f"test-{secrets.token_hex(4)}"
    kill, late = cgroup._kill, []

    def kill_then_join(folders: list[Path], timeout_s: float) -> list[int]:
        living = kill(folders, timeout_s)
        if not late:
            late.append(subprocess.Popen(group.command_inside(["sleep", "50"])))
            while late[0].pid not in group.pids():
                assert late[0].poll() is None
        return living

    with group_with("sleep 50", token) as (group, first):
        monkeypatch.setattr(cgroup, "_kill", kill_then_join)
        if ended_by == "the desktop":
            assert group.end()
        else:
            cgroup.remove_owner(token)
        assert not control_groups_of(f"deskhand-desktop-{token}-")
        for process in (first, *late):
            assert process.wait(timeout=limit(5)) != 0


DELEGATED = """
import subprocess, sys
from pathlib import Path
from deskhand.desktop.local import cgroup
names, cgroup.CONTROLLERS = cgroup.CONTROLLERS, tuple(sys.argv[2:])
parent = Path(sys.argv[1])
cgroup.enable_controllers(parent)  # with those that this machine has
cgroup.CONTROLLERS = names
(hierarchy,) = (each for each in cgroup.hierarchies()[0] if each.is_v2)
assert hierarchy.parent == parent, hierarchy
group = cgroup.Cgroup("test-x-1", memory_mib=64, max_processes=20)
for name, value in (("memory", 64 << 20), ("pids", 20), ("cpu", cgroup.CPU_WEIGHT)):
    if name in hierarchy.controllers:
        (folder,) = parent.glob("deskhand-desktop-*")
        assert int((folder / cgroup._LIMIT_FILES[True][name]).read_text()) == value
with subprocess.Popen(group.command_inside(["setsid", "sleep", "50"])) as process:
    while process.pid not in group.pids():
        pass
    assert group.kill() == []
group.close()
assert not group.exists
print((parent / "cgroup.subtree_control").read_text().strip(), cgroup._members(parent / cgroup.OWNER_GROUP) != [])
"""


@pytest.fixture
def delegated() -> Iterator[tuple[Path, list[str]]]:
    """A group of v2 that belongs to another user, and the controllers that it could enable."""
    roots = [each.parent for each in cgroup.hierarchies()[0] if each.is_v2]
    if os.getuid() != 0 or not roots:
        pytest.skip("only root can delegate a group, and only where there is cgroup v2")
    control = roots[0] / "cgroup.subtree_control"
    before = set(control.read_text().split())
    added = [name for name in (roots[0] / "cgroup.controllers").read_text().split() if name not in before][:1]
    control.write_text(" ".join(f"+{name}" for name in added))
    folder = roots[0] / f"test-{secrets.token_hex(4)}"
    folder.mkdir()
    for path in (folder, *(folder / f"cgroup.{name}" for name in ("procs", "subtree_control", "threads"))):
        os.chown(path, OTHER_UID, OTHER_UID)
    yield folder, (folder / "cgroup.controllers").read_text().split()
    for group in (*folder.glob("*/"), folder):
        group.rmdir()
    control.write_text(" ".join(f"-{name}" for name in added))


def test_a_delegated_group_is_used_by_a_user_without_rights(delegated):
    folder, controllers = delegated
    enter = ["/bin/sh", "-c", 'echo 0 >"$0"/cgroup.procs; exec "$@"', str(folder)]
    command = [*enter, *python_of_other_user(), "-c", DELEGATED, str(folder), *controllers]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=import_path(), cwd="/")
    assert done.returncode == 0, done.stderr
    *enabled, has_moved = done.stdout.split()
    assert set(enabled) >= set(controllers)
    assert has_moved == str(bool(controllers))


def test_a_shell_that_somebody_uses_is_not_moved(delegated, monkeypatch):
    """It is in the group, and may be an ancestor of this process."""
    folder, _ = delegated
    leader, terminal = os.openpty()
    shell = subprocess.Popen(["setsid", "--ctty", "sleep", "60"], stdin=terminal, stdout=terminal, stderr=terminal)
    try:
        while not processes.has_terminal(shell.pid):
            pass
        (folder / "cgroup.procs").write_text(str(shell.pid))
        monkeypatch.setattr(cgroup, "_ancestors", lambda: {shell.pid})
        monkeypatch.setattr(processes, "descendants", lambda root: [])  # it is none of this process's programs
        assert not cgroup._move_processes(folder)
        assert cgroup._members(folder) == [shell.pid]
    finally:
        shell.kill()
        shell.wait()
        os.close(leader)
        os.close(terminal)
