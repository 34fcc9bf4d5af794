"""Guests that refuse to end: none lives after its desktop was closed or its owner died, whatever means there are."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from desktops import ISOLATIONS, control_groups_of, embedded, failure_of
from patience import limit
from unprivileged import import_path, python_of_other_user

from benchmarks.attacks.persistence import ENDURE
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import cgroup, guest_user, resource_monitor
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.local.isolation import ResourceLimits
from deskhand.desktop.pool import DesktopPool
from deskhand.errors import GuestFailure

SMALL = DesktopSpec("plain", 256, 192)
ROOT = Path(__file__).resolve().parents[2]
LIMITS = ResourceLimits(memory_mib=512, max_processes=40)
CLOSE_S = 5.0

ATTACKS = {attack.name: attack for attack in ENDURE}
CLOSED = (
    "kills its shell",
    "kills its shell by a signal without a name",
    "leaves and kills its shell",
    "stops its shell",
    "fills the shell's pipe",
    "forks without end",
    "moves on by forks",
    "ignores signals",
    "ends its first thread",
    "hides its memory",
    "traces its shell",
    "lowers its limits",
)
"""The attacks that are tried against each of these means; `benchmarks.guest_attacks` tries all."""
FOR_GROUPS = ("kills its shell", "forks without end", "moves on by forks", "ends its first thread")
"""Attacks that could matter to control groups, which no process can leave."""
MEANS = ["groups", "user id", "mark"]


@pytest.fixture(params=MEANS)
def means(request, monkeypatch) -> str:
    """The one means that the test relies on; the others are as where the machine lacks them."""
    choose_means(request.param, monkeypatch)
    return request.param


def choose_means(means: str, monkeypatch) -> None:
    if means == "groups":
        if not cgroup.hierarchies()[0]:
            pytest.skip(f"no control groups: {cgroup.hierarchies()[1]}")
        monkeypatch.setattr(guest_user.GuestUser, "kill", lambda self, timeout_s=0.0: [])
        return
    monkeypatch.setattr(cgroup, "hierarchies", lambda: ((), "switched off"))
    if means == "mark":
        monkeypatch.setattr(guest_user, "guest_uids", lambda: False)
    elif not guest_user.guest_uids():
        pytest.skip("only root can give guests user ids")


def with_word(word: str) -> list[int]:
    """Living processes with this argument, by another way than Deskhand's."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (path / "cmdline").read_bytes().split(b"\0"):
                found.append(int(path.name))
        except OSError:
            continue
    return found


async def start_attack(desktop, attack: str, word: str) -> None:
    await desktop.push("facts.json", b"{}")
    await desktop.push("attack.py", ATTACKS[attack].source().encode())
    await desktop.launch(["python3", "attack.py", word])
    async with asyncio.timeout(limit(5)):
        while not with_word(word) and desktop._session.failure() is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.6)  # until it has done what it does


async def assert_gone(word: str, user) -> None:
    for _ in range(round(limit(CLOSE_S) / 0.05)):
        if not user.pids():  # a dying process runs no code, but may wait for the CPU
            break
        await asyncio.sleep(0.05)
    for _ in range(5):  # one that moves to another process id can be missed
        assert with_word(word) == []
        assert user.pids() == []
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("attack", "means"),
    [(attack, means) for means in MEANS for attack in (FOR_GROUPS if means == "groups" else CLOSED)],
    indirect=["means"],
)
async def test_no_guest_lives_after_close(attack, means):
    if (attack, means, os.getuid()) == ("forks without end", "mark", 0):
        pytest.skip("Linux does not limit the number of root's processes; tried below as another user")
    word = secrets.token_hex(8)
    async with embedded(SMALL, isolation_level="plain", limits=LIMITS) as desktop:
        user, groups = desktop._session.jail.user, desktop._session.jail.cgroup
        await start_attack(desktop, attack, word)
        async with asyncio.timeout(limit(CLOSE_S)):
            await desktop.close()
    await assert_gone(word, user)
    assert not groups.exists
    assert not user._is_reserved


@pytest.mark.parametrize("level", ISOLATIONS)
@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        ("kills its shell", "SIGKILL"),
        ("kills its shell by a signal without a name", "signal 40"),
        ("fills the shell's pipe", "SIGKILL"),
        ("stops its shell", "guests stopped the jail's shell"),
    ],
)
async def test_a_desktop_whose_shell_was_ended_by_a_guest_has_failed(attack, reason, level):
    async with embedded(SMALL, isolation_level=level, limits=LIMITS) as desktop:
        await start_attack(desktop, attack, secrets.token_hex(8))
        if attack != "stops its shell":
            reason = f"the jail has exited by {reason}" if level == "plain" else "the jail has exited"
        assert reason in await failure_of(desktop)
        with pytest.raises(GuestFailure):
            await desktop.run(["true"])


@pytest.mark.parametrize("level", ISOLATIONS)
async def test_a_desktop_that_its_owner_closed_was_not_broken_by_guests(level):
    async with embedded(SMALL, isolation_level=level, limits=LIMITS) as desktop:
        session = desktop._session
        await desktop.close()
    assert session.failure() is not None
    assert not session.failed_by_guests()


async def test_a_pool_continues_after_a_guest_that_refuses_to_end(means):
    word = secrets.token_hex(8)

    pool = DesktopPool(1, SMALL, make=lambda: LocalDesktop(isolation_level="plain", limits=LIMITS))
    for attack in ("leaves and kills its shell", "moves on by forks"):
        lease = await pool.lease()
        await start_attack(lease.desktop, attack, word)
        await pool.release(lease)
    lease = await pool.lease()
    assert (await lease.desktop.run(["echo", "fine"])).stdout == b"fine\n"
    await pool.release(lease)
    async with asyncio.timeout(limit(2 * CLOSE_S)):
        await pool.close()
    assert with_word(word) == []


async def test_without_any_other_means_the_label_ends_guests(monkeypatch):
    choose_means("mark", monkeypatch)
    monkeypatch.setattr(guest_user, "can_mark", lambda: False)
    word = secrets.token_hex(8)
    async with embedded(SMALL, isolation_level="plain", limits=LIMITS) as desktop:
        sleeper = f"setsid python3 -c 'import time; time.sleep(200)' {word} & kill -9 $(ps -o ppid= $PPID)"
        await desktop.launch(["sh", "-c", sleeper])
        failure = await failure_of(desktop)
        assert "exited by SIGKILL" in failure, failure
        assert with_word(word)
    assert with_word(word) == []


OWNER = """
import asyncio, os, sys
sys.path[:0] = {path!r}
import pytest, test_teardown
from desktops import embedded
from deskhand.desktop.local.runtime_dir import runtime

async def main():
    patch = pytest.MonkeyPatch()
    test_teardown.choose_means(sys.argv[1], patch)
    patch.setattr("deskhand.desktop.local.processes.OWNER_LABEL", "NO_LABEL")  # it ends nothing here
    async with embedded(test_teardown.SMALL, isolation_level="plain", limits=test_teardown.LIMITS) as desktop:
        await test_teardown.start_attack(desktop, sys.argv[2], os.environ["ATTACK_WORD"])
        print(runtime().folder, runtime().token, runtime().reaper.pid, flush=True)
        await asyncio.sleep(0 if sys.argv[3] == "closed" else 60)
    print("closed", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("attack", "end"),
    [
        ("leaves and kills its shell", "killed"),
        ("leaves and kills its shell", "killed with its reaper"),
        ("moves on by forks", "killed"),
        ("forks without end", "killed"),
        ("forks without end", "closed"),
    ],
)
@pytest.mark.parametrize("means", MEANS)
def test_no_guest_outlives_its_owner(attack, means, end, monkeypatch):
    """At "mark" the owner is not root. At "closed" the desktop is closed and its owner lives. Without reaper, the next
    owner ends the guests."""
    choose_means(means, monkeypatch)  # skips what this machine lacks
    word = secrets.token_hex(8)
    path = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "desktop")]
    python = python_of_other_user() if means == "mark" else [sys.executable]
    command = [*python, "-c", OWNER.format(path=path), means, attack, end]
    environment = import_path() | {"ATTACK_WORD": word}
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    assert owner.stdout is not None
    folder, token, reaper = owner.stdout.readline().split()
    if end == "closed":
        assert owner.stdout.readline() == "closed\n"
        assert with_word(word) == []
    else:
        is_seen = any(with_word(word) for _ in range(50))  # one that moves to another process id can be missed
        assert is_seen or attack == "forks without end"  # the limit of processes may have ended it
    if end == "killed with its reaper":
        os.kill(int(reaper), signal.SIGKILL)
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    if end == "killed with its reaper":
        start = "from deskhand.desktop.local.runtime_dir import remove_stale, tmpfs; remove_stale(tmpfs())"
        subprocess.run([*python, "-c", start], check=True, cwd=ROOT, env=environment)
    deadline = time.monotonic() + limit(15)
    while (with_word(word) or Path(folder).exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert with_word(word) == []
    assert not Path(folder).exists()
    assert not control_groups_of(token)


async def test_memory_that_processes_share_counts_once(monkeypatch):
    monkeypatch.setattr(cgroup, "hierarchies", lambda: ((), "switched off"))
    limits = ResourceLimits(memory_mib=128)
    async with embedded(SMALL, isolation_level="plain", limits=limits) as desktop:
        touch = "for at in range(0, 50 << 20, 4096): kept[at] = 1"
        script = f"import mmap, os\nkept = mmap.mmap(-1, 50 << 20)\n{touch}\nfor _ in range(3): os.fork()\n{touch}\n"
        await desktop.launch(["python3", "-c", f"{script}\nimport time; time.sleep(60)"])
        await asyncio.sleep(8 * resource_monitor.PERIOD_S)
        pids = desktop._session.jail.pids()
        assert len(pids) > 8
        private, shared = resource_monitor._proportional_kib(pids)
        assert 49 << 10 <= shared < 60 << 10
        assert private < 70 << 10
        await desktop.observe()  # it has not failed


def test_open_deleted_files_are_counted(tmp_path):
    with (tmp_path / "file").open("wb") as file:
        file.write(bytes(1 << 20))
        file.flush()
        before = resource_monitor.open_bytes([os.getpid()])
        (tmp_path / "file").unlink()
        assert resource_monitor.open_bytes([os.getpid(), os.getpid()]) - before == 1 << 20
