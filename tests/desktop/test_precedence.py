"""What ends guests, and what reads their files, has precedence over guests that keep all processors busy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deskhand.desktop.local import precedence

SESSION = Path("/proc/self/autogroup")
pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or not SESSION.exists(),
    reason="only root may raise priorities, of sessions where the kernel has them",
)
PROGRAM = """
from pathlib import Path
from deskhand.desktop.local import precedence
precedence.MAX_RUNNING_PER_CPU = {max_running}
def show():
    print(Path("/proc/self/autogroup").read_text().split()[-1])
show()
try:
    with precedence.precedence_if_overloaded():
        show()
        with precedence.precedence_if_overloaded():
            show()
        show()
        raise KeyError
except KeyError:
    show()
"""


def session_of(max_running: int) -> list[str]:
    """What a process with a session of its own prints; it is overloaded by more than `max_running` threads."""
    command = [sys.executable, "-c", PROGRAM.format(max_running=max_running)]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, start_new_session=True
    ).stdout.splitlines()


def test_on_an_overloaded_machine_the_session_has_precedence_until_the_outermost_end():
    assert session_of(-1) == ["0", "-20", "-20", "-20", "0"]


def test_on_other_machines_it_takes_no_time_from_guests():
    assert session_of(10**9) == ["0", "0", "0", "0", "0"]


def test_a_program_with_precedence_has_it_from_its_first_instruction():
    script = "cat /proc/self/autogroup; nice"
    command = precedence.with_precedence(["/bin/sh", "-c", script])
    printed = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True).stdout
    assert printed.split()[-2:] == ["-20", "-20"]
    assert printed.split()[-3] == "nice"


def test_a_user_who_may_not_raise_priorities_runs_it_as_usual():
    command = [*precedence.with_precedence(["/bin/sh", "-c", "cat /proc/self/autogroup; nice"])]
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
    printed = subprocess.run(as_nobody, capture_output=True, text=True, check=True, start_new_session=True).stdout
    assert printed.split()[-2:] == ["0", "0"]


THREADS_PROGRAM = """
import os, subprocess, sys, threading
from deskhand.desktop.local import precedence
precedence.MAX_RUNNING_PER_CPU = -1
precedence._SESSION_PRIORITY = type(precedence._SESSION_PRIORITY)(sys.argv[1])
wake, done, found = threading.Event(), threading.Event(), []
def wait():
    wake.wait()
    found.append(os.getpriority(os.PRIO_PROCESS, 0))
    found.append(int(subprocess.run(["nice"], capture_output=True, text=True).stdout))
    done.set()
other = threading.Thread(target=wait, daemon=True)
other.start()
os.nice(3)
with precedence.precedence_if_overloaded():
    wake.set()
    done.wait()
    found.append(os.getpriority(os.PRIO_PROCESS, 0))
found.append(os.getpriority(os.PRIO_PROCESS, 0))
found.append(os.sched_getscheduler(0))
print(*found)
"""


def test_every_thread_has_precedence_but_not_the_programs_it_starts(tmp_path):
    for session in (SESSION, tmp_path / "missing"):
        command = [sys.executable, "-c", THREADS_PROGRAM, str(session)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True)
        assert done.stdout.split() == ["-20", "0", "-20", "3", str(os.SCHED_OTHER)]


def test_a_process_without_a_session_of_its_own_is_no_error(tmp_path):
    """The first process of a machine, and what it starts, may have none: the kernel then prints nothing."""
    (tmp_path / "empty").touch()
    command = [sys.executable, "-c", THREADS_PROGRAM, str(tmp_path / "empty")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True)
    assert done.stdout.split()[0] == "-20"
