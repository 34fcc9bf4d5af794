"""No process or folder of a desktop outlives it or its owner."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from desktops import ISOLATIONS, embedded
from patience import limit

from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import processes
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.local.runtime_dir import runtime

SMALL = DesktopSpec("plain", 256, 192)
ESCAPE = ["sh", "-c", "env -i setsid sh -c '(sleep 777 & sleep 778 &) &' & setsid sleep 779 & true"]


def living(pids) -> list[int]:
    return [pid for pid in pids if processes.state(pid) not in ("", "Z")]


def is_soon(condition) -> bool:
    deadline = time.monotonic() + limit(10)
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def find_labeled() -> set[int]:
    return {pid for pid in processes.find_labeled(processes.OWNER_LABEL, runtime().token) if living([pid])}


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_twenty_resets_leave_nothing_behind(isolation):
    before = find_labeled()
    desktop = LocalDesktop(isolation_level=isolation)
    seen: set[int] = set()
    for _ in range(20 if isolation == ISOLATIONS[0] else 5):
        await desktop.reset(SMALL)
        await desktop.run(ESCAPE)
        await desktop.launch(["xterm"])
        seen |= set(desktop.processes())
    path = desktop._session.x_server.socket_path
    await desktop.close()
    assert len(seen) >= 20
    assert is_soon(lambda: not living(seen))
    assert find_labeled() == before
    assert not list(runtime().folder.glob(f"{desktop.label}-*"))
    with socket.socket(socket.AF_UNIX) as probe:  # another server may have taken the number
        assert not path.exists() or probe.connect_ex(str(path)) == 0


OWNER = """
import asyncio, sys
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.local.runtime_dir import runtime

async def main():
    desktops = [LocalDesktop(isolation_level=sys.argv[1]) for _ in range(2)]
    await asyncio.gather(*(desktop.reset(DesktopSpec("plain", 256, 192)) for desktop in desktops))
    for desktop in desktops:
        await desktop.run({escape!r})
        await desktop.launch(["xterm"])
        await desktop.wait_window("xterm")
    print(runtime().folder, *(pid for desktop in desktops for pid in desktop.processes()), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_killing_the_owner_ends_its_desktops(isolation, number):
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", OWNER.format(escape=ESCAPE), isolation]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    owner = subprocess.Popen(command, **streams, env=os.environ | {"PYTHONPATH": str(root)}, text=True)
    assert owner.stdout is not None
    folder, *pids = owner.stdout.readline().split()
    guests = [int(pid) for pid in pids]
    assert len(living(guests)) >= 8
    owner.send_signal(number)
    owner.wait(timeout=limit(20))
    assert is_soon(lambda: not living(guests))
    assert is_soon(lambda: not Path(folder).exists())


@pytest.mark.skipif("namespaces" not in ISOLATIONS, reason="bubblewrap cannot make namespaces here")
async def test_a_jailed_guest_sees_neither_the_host_nor_another_desktop():
    look = "id -u; hostname; ls /home; ls /tmp/.X11-unix; ps ax | wc -l; cat /proc/net/dev | wc -l"
    async with embedded(SMALL) as first, embedded(SMALL) as second:
        uid, host, home, sockets, count, network = (await first.run(["sh", "-c", look])).stdout.decode().split()
        assert (uid, host, home) == ("1000", "desktop", "user")
        assert sockets == f"X{first._session.x_server.number}"
        assert int(count) < 12
        assert int(network) == 3  # two header lines and the loopback
        for path in (str(second._session.folder), "/root", "/etc/shadow", "/var/log"):
            assert (await first.run(["ls", path])).returncode != 0
        assert (await first.run(["sh", "-c", "echo x > /usr/x || echo x > /etc/passwd"])).returncode != 0
        env = {"DISPLAY": second._session.x_server.name}
        assert (await first.run(["xterm", "-e", "true"])).returncode == 0
        assert (await first.run(["xterm", "-e", "true"], env=env)).returncode != 0
