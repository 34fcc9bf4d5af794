"""User ids and marks of guests: reserved once, and again only when no process has them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import limit
from unprivileged import import_path, python_of_other_user

from deskhand.desktop.local import guest_user, isolation, processes
from deskhand.desktop.local.guest_user import GuestUser

ROOT = Path(__file__).resolve().parents[2]
RLIMIT_LOCKS = 10
"""From linux/resource.h."""


@pytest.fixture(params=["user id", "mark"])
def kind(request, monkeypatch) -> str:
    if request.param == "mark":
        monkeypatch.setattr(guest_user, "guest_uids", lambda: False)
    elif not guest_user.guest_uids():
        pytest.skip("only root can give guests user ids")
    return request.param


@contextmanager
def guest_of(user: GuestUser, program: str = "import time; time.sleep(60)") -> Iterator[subprocess.Popen[bytes]]:
    """A process of this user that has started."""
    say = f"print(1, flush=True)\n{program}"
    command = guest_user.mark_command(user.mark, ["/usr/bin/python3", "-c", say])
    with subprocess.Popen(guest_user.command_as_user(user.uid, command), stdout=subprocess.PIPE, cwd="/") as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def put_cursor_on(user: GuestUser) -> None:
    """Make this user's number the next to be reserved."""
    number = user.key - user._base
    os.pwrite(user._reservations._file, number.to_bytes(8, "little"), guest_user._CURSOR_AT)


def test_concurrent_desktops_have_different_users(kind):
    first, second = GuestUser.reserve(), GuestUser.reserve()
    program = (
        "import sys; from deskhand.desktop.local import guest_user; "
        "guest_user.guest_uids = (lambda: False) if sys.argv[1] == 'mark' else guest_user.guest_uids; "
        "print(guest_user.GuestUser.reserve().key)"
    )
    put_cursor_on(first)
    command = [sys.executable, "-c", program, kind]
    elsewhere = int(subprocess.run(command, capture_output=True, check=True, cwd=ROOT).stdout)
    assert len({first.key, second.key, elsewhere}) == 3
    assert (first.uid is None) == (first.mark is not None) == (kind == "mark")
    first.close()
    second.close()


def test_a_user_is_reused_as_late_as_possible(kind):
    seen = []
    for _ in range(20):
        user = GuestUser.reserve()
        seen.append(user.key)
        assert user.close() == []
    assert len(set(seen)) == 20


@pytest.mark.parametrize(("database", "find"), [("pwd", "getpwuid"), ("grp", "getgrgid")])
def test_an_id_that_somebody_has_is_nobodys_guest(database, find, monkeypatch):
    if not guest_user.guest_uids():
        pytest.skip("only root can give guests user ids")
    known = GuestUser.reserve()
    known.close()
    monkeypatch.setattr(getattr(guest_user, database), find, lambda number: {known.key: "entry"}[number])
    put_cursor_on(known)
    other = GuestUser.reserve()
    other.close()
    assert other.key != known.key
    guest_user.unnamed_ids.cache_clear()
    highest = guest_user.FIRST_UID - 1
    monkeypatch.setattr(getattr(guest_user, database), find, lambda number: {highest: "entry"}[number])
    try:
        assert isolation.x_server_uid() == highest - 1
        assert isolation.guest_group() == highest - 2
    finally:
        guest_user.unnamed_ids.cache_clear()


def test_a_user_with_a_living_process_is_not_released(kind):
    user = GuestUser.reserve()
    with guest_of(user) as guest:
        assert user.close() == [guest.pid]
        assert user._is_reserved
        put_cursor_on(user)
        other = GuestUser.reserve()
        assert other.key != user.key
        other.close()
        assert user.kill() == []
        guest.wait(timeout=limit(5))
    assert user.close() == []
    assert not user._is_reserved


def test_a_user_whose_owner_died_is_not_reused_while_a_process_of_it_lives(kind):
    user = GuestUser.reserve()
    with guest_of(user) as guest:
        user._reservations.free(user.key - user._base)  # as the kernel does when the owner dies
        put_cursor_on(user)
        other = GuestUser.reserve()
        assert other.key != user.key
        other.close()
        left = GuestUser.of_dead_owner(user.key)
        assert left is not None
        assert left.kill() == []
        guest.wait(timeout=limit(5))
        assert left.close() == []
    again = left
    for _ in range(20):  # another process may take the number first
        put_cursor_on(user)
        again = GuestUser.reserve()
        if again.key == user.key:
            break
        again.close()
    assert again.key == user.key
    assert GuestUser.of_dead_owner(user.key) is None, "another desktop has it now"
    again.close()


def test_a_process_whose_first_thread_has_ended_is_alive(kind):
    user = GuestUser.reserve()
    program = (
        "import ctypes, os, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)"
    )
    with guest_of(user, program) as guest:
        while processes.state(guest.pid) != "Z":
            pass
        assert processes.is_alive(guest.pid)
        assert guest.pid in processes.descendants(os.getpid())
        status = processes.status(guest.pid)
        assert status is not None
        assert status.private_kib > 0
        assert user.pids() == [guest.pid]
        assert user.kill() == []


@pytest.mark.parametrize("key", [0, 1, 1000, guest_user.FIRST_UID - 1, guest_user.FIRST_UID + guest_user.MAX_GUESTS])
def test_only_guests_are_ended_for_a_dead_owner(key):
    assert GuestUser.of_dead_owner(key) is None


def test_a_lowered_mark_still_belongs_to_a_desktop(monkeypatch):
    monkeypatch.setattr(guest_user, "guest_uids", lambda: False)
    user, other = GuestUser.reserve(), GuestUser.reserve()
    lower = f"import resource, time; resource.setrlimit({RLIMIT_LOCKS}, (5, 5)); time.sleep(60)"
    confined = processes.ProcessStatus(True, frozenset({os.getuid()}), 1, 0, 0, 0, True, False)
    with guest_of(user, lower) as guest:
        while guest_user._mark_of(guest.pid) != 5:
            pass
        for each in (user, other):
            assert each.owns(guest.pid, confined)
            assert not each.owns(guest.pid, processes.status(guest.pid)), "not a guest: it may make every system call"
    with guest_of(other) as guest:
        assert not user.owns(guest.pid, confined), "its desktop is another"
        assert other.owns(guest.pid, confined)
    user.close()
    other.close()


def test_without_marks_the_doctor_says_so(monkeypatch):
    program = (
        f"import resource; resource.setrlimit({RLIMIT_LOCKS}, (9, 9))\n"
        "from deskhand.desktop.local import guest_user, isolation\nguest_user.guest_uids = lambda: False\n"
        "print(guest_user.GuestUser.reserve().mark, isolation.missing_protections('plain'))"
    )
    command = [*python_of_other_user(), "-c", program]  # root may exceed the limit
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=import_path())
    assert done.stdout.startswith("None "), done.stderr
    assert "can outlive their desktop" in done.stdout
