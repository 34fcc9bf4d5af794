"""Malicious guests at both isolation levels.

Every attack limits itself, so that a missing protection costs a failed test and not the machine.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest
from desktops import ISOLATIONS, embedded, failure_of
from patience import limit

from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import file_tree, guest_user, isolation, processes
from deskhand.desktop.local.desktop_session import HOST_DISK_MIB
from deskhand.desktop.local.isolation import ResourceLimits
from deskhand.errors import ConfigError, GuestFailure, InfrastructureError

SMALL = DesktopSpec("plain", 256, 192)
ROOT = Path(__file__).resolve().parents[2]
LIMITS = ResourceLimits(memory_mib=96, max_processes=48, disk_mib=16, file_mib=8)


@pytest.fixture(params=ISOLATIONS)
async def desktop(request):
    async with embedded(SMALL, isolation_level=request.param, limits=LIMITS) as desktop:
        yield desktop


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the host with a secret in its environment."""
    process = processes.start(["sleep", "60"], env={"KEY": "sk-of-the-host"})
    yield process
    process.kill()
    process.wait()


async def shell(desktop, script, timeout_s=20.0):
    done = await desktop.run(["sh", "-c", script], timeout_s=limit(timeout_s))
    return done.returncode, done.stdout.decode(), done.stderr.decode()


BOMB = "ulimit -p 300 2>/dev/null || ulimit -u 300; bomb() { bomb & bomb & sleep 5; }; sleep 0.3; bomb"


async def test_a_fork_bomb_stays_in_its_jail(desktop):
    async with embedded(SMALL, isolation_level=desktop.isolation_level) as other:
        await desktop.launch(["sh", "-c", BOMB])
        most, began = 0, time.monotonic()
        while (passed := time.monotonic() - began) < 2.0 or (most <= 20 and passed < limit(20.0)):
            most = max(most, len(desktop.processes()))
        assert 20 < most <= LIMITS.max_processes + 2
        assert (await shell(other, "echo fine"))[1] == "fine\n"
        everything = desktop.processes()
        await desktop.close()
        assert [pid for pid in everything if processes.state(pid) not in ("", "Z")] == []


async def test_exceeding_the_memory_limit_fails_the_desktop(desktop):
    # The kernel ends the one process that wants it all, or the guard has seen it already.
    with suppress(InfrastructureError):
        assert (await shell(desktop, "head -c 200m /dev/zero | tail | wc -c"))[1] != "209715200\n"
    for _ in range(3):
        with suppress(InfrastructureError):  # it may be over already
            await desktop.launch(["sh", "-c", "(head -c 50m /dev/zero; sleep 9) | tail -n 1 >/dev/null"])
    assert "the limit is 96" in await failure_of(desktop)


async def test_disk_usage_is_limited(desktop):
    code, _, _ = await shell(desktop, "dd if=/dev/zero of=large bs=1M count=12")
    assert code != 0  # one file
    with suppress(InfrastructureError):  # beyond its bound, the desktop may have been ended
        await shell(desktop, "for i in $(seq 12); do dd if=/dev/zero of=f$i bs=1M count=6; sleep 0.2; done")
    home = desktop._session.home.root
    used = sum(path.stat().st_blocks * 512 for path in home.rglob("*") if path.is_file())
    assert used < (LIMITS.disk_mib + HOST_DISK_MIB + 8) * 2**20
    if not desktop._session._is_disk_limited:
        assert "guest files use more than 16 MiB" in await failure_of(desktop)
        return
    with pytest.raises(InfrastructureError, match="No space left"):
        await desktop.push("more", bytes(8 * 2**20))
    script = "for i in 1 2 3 4 5; do dd if=/dev/zero of=/tmp/f$i bs=1M count=6; done; du -sm /tmp | cut -f1"
    written = await shell(desktop, script)
    assert int(written[1] or 0) <= LIMITS.disk_mib


@pytest.mark.parametrize("level", ISOLATIONS)
@pytest.mark.parametrize("place", ["$HOME", "$TMPDIR", "/dev/shm"])
async def test_the_number_of_files_is_limited(level, place, monkeypatch):
    """Each takes a kilobyte of the kernel's memory, even an empty one, and the machine has one table of open files."""
    if place == "/dev/shm" and level == "plain":
        pytest.skip("guests may not write there")
    monkeypatch.setattr(file_tree, "MAX_ENTRIES", 1000)
    async with embedded(SMALL, isolation_level=level, limits=LIMITS) as desktop:
        assert 0 < int((await shell(desktop, "ulimit -Hn"))[1]) <= 1024
        script = f"cd {place} && seq 1500 | xargs touch; ls | wc -l"
        if desktop._session._is_disk_limited and (place == "$HOME" or level == "plain"):
            assert int((await shell(desktop, script))[1]) < 1000
        else:
            await desktop.launch(["sh", "-c", f"{script}; sleep 20"])
            assert "more than 1000 files" in await failure_of(desktop)


@pytest.mark.parametrize("level", ISOLATIONS)
@pytest.mark.parametrize("place", ["$HOME", "$TMPDIR", "control"])
async def test_the_resource_monitor_limits_disk_without_a_size_limited_file_system(level, place, monkeypatch):
    # As where this process may not mount.
    monkeypatch.setattr(isolation, "size_limited_folder", lambda folder, mib: False)
    async with embedded(SMALL, isolation_level=level, limits=LIMITS) as desktop:
        if place == "control":
            place = desktop._session.jail._guest_control
        script = f"for i in 1 2 3 4; do dd if=/dev/zero of={place}/f$i bs=1M count=6 || exit; done; sleep 20"
        await desktop.launch(["sh", "-c", script])
        if place == "$TMPDIR" and level == "namespaces":  # that is a file system of its own
            done = await shell(desktop, "sleep 1; du -sm /tmp | cut -f1")
            assert int(done[1]) <= LIMITS.disk_mib
        else:
            assert "guest files use more than 16 MiB" in await failure_of(desktop)


async def test_links_and_pipes_instead_of_output_files_are_ignored(desktop, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret of the host")
    home = desktop._session.home.root
    links = f"ln -s {secret} link; ln -s {tmp_path} folder; ln -s / root; ln -s {home}/../authority up"
    await shell(desktop, f"{links}; mkfifo pipe")
    for path in ("link", "folder/secret", f"root{secret}", "pipe", "up", "root/etc/hostname"):
        with pytest.raises((PermissionError, FileNotFoundError)):
            await desktop.pull(path)
    for path in ("link", "folder/new", "up"):
        with pytest.raises(PermissionError):
            await desktop.push(path, b"overwritten")
    assert secret.read_text() == "secret of the host"
    assert not (tmp_path / "new").exists()


async def test_a_guest_cannot_read_the_hosts_environment_or_files(desktop, open_folder, bystander):
    secret = open_folder / "secret"
    secret.write_text("sk-of-the-host")
    server = desktop._session.x_server
    async with embedded(SMALL, isolation_level=desktop.isolation_level) as other:
        keys = f"{server.folder}/screen/authority {other._session.x_server.authority}"
        script = f"cat /proc/*/environ {secret} {keys} /proc/{bystander.pid}/cmdline /proc/*/mem"
        listing = f"({script}; env; ls -R {server.folder.parent}) 2>/dev/null | tr '\\0' '\\n'"
        _, output, _ = await shell(desktop, listing)
        assert "sk-of-the-host" not in output
        assert "DESKHAND_LEASE" in output  # it does read its own
        for name in keys.split():
            assert (await desktop.run(["cat", name])).returncode != 0 or name == str(server.authority)
    assert not [name for name in os.environ if name.startswith(("PYTEST", "VIRTUAL_ENV")) and name in output]


class Site:
    """Answers every connection on a port of the loopback with one page."""

    def __init__(self, page: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.asked: list[bytes] = []
        self._page = page

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    self.asked.append(connection.recv(4096))
                    connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + self._page)

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.mark.skipif("namespaces" not in ISOLATIONS, reason="bubblewrap cannot make namespaces here")
async def test_a_guest_reaches_only_allowed_destinations():
    with Site(b"welcome") as allowed, Site(b"never") as other:
        network = (f"127.0.0.1:{allowed.port}", f"localhost:{other.port}")
        async with embedded(DesktopSpec("plain", 256, 192, network=network)) as desktop:
            proxy = "exec 3<>/dev/tcp/127.0.0.1/3128; "

            async def bash(script: str) -> str:
                return (await desktop.run(["bash", "-c", script])).stdout.decode()

            async def ask(line: str) -> str:
                return await bash(f"{proxy} printf '{line} HTTP/1.1\\r\\nHost: other\\r\\n\\r\\n' >&3; cat <&3")

            assert "welcome" in await ask(f"GET http://127.0.0.1:{allowed.port}/page?x=1")
            assert allowed.asked[0].startswith(b"GET /page?x=1 HTTP/1.1\r\nHost: 127.0.0.1:")
            assert b"other" not in allowed.asked[0]
            # The last name is allowed, but it leads to the host.
            for line in ("GET http://127.0.0.1:{}/", "CONNECT 127.0.0.1:{}", "GET http://localhost:{}/"):
                assert "403 Forbidden" in await ask(line.format(other.port))
            connect = f"printf 'CONNECT 127.0.0.1:{allowed.port} HTTP/1.1\\r\\n\\r\\n' >&3; read a <&3; read b <&3"
            assert "welcome" in await bash(f"{proxy} {connect}; printf 'GET /inside' >&3; cat <&3")
            assert other.asked == []
            assert await bash(f"echo >/dev/tcp/127.0.0.1/{allowed.port} && echo reached") == ""
            assert "3128" in await bash("echo $https_proxy")


@pytest.mark.skipif("namespaces" not in ISOLATIONS, reason="bubblewrap cannot make namespaces here")
async def test_a_guest_resolves_only_its_own_name():
    async with embedded(SMALL) as desktop:
        look = "import socket; print(socket.gethostbyname('localhost'), socket.gethostbyname(socket.gethostname()))"
        assert (await desktop.run(["python3", "-c", look])).stdout == b"127.0.0.1 127.0.0.1\n"
        look = "import socket; socket.gethostbyname('example.org')"
        assert (await desktop.run(["python3", "-c", look])).returncode == 1


async def test_network_destinations_need_namespaces():
    spec = DesktopSpec("plain", 256, 192, network=("example.org",))
    with pytest.raises(ConfigError, match="namespaces"):
        await embedded(spec, isolation_level="plain").__aenter__()


def test_missing_protections_are_listed(monkeypatch):
    monkeypatch.setattr(guest_user, "guest_uids", lambda: False)
    monkeypatch.setattr(isolation.landlock, "landlock_version", lambda: 0)
    assert isolation.missing_protections("namespaces") == []
    named = " ".join(isolation.missing_protections("plain"))
    assert "read every file" in named
    assert "kill every process" in named


async def test_guests_without_their_own_user_have_no_capabilities(monkeypatch):
    monkeypatch.setattr(guest_user, "guest_uids", lambda: False)
    async with embedded(SMALL, isolation_level="plain") as desktop:
        said = (await desktop.run(["cat", "/proc/self/status"])).stdout.decode()
        rights = dict(line.split(":\t") for line in said.splitlines() if line.startswith("Cap"))
        assert set(rights.values()) == {"0" * 16}, rights


def test_a_missing_setpriv_is_not_cached(monkeypatch):
    before = guest_user.guest_uids()
    with monkeypatch.context() as without:
        without.setenv("PATH", "/nowhere")
        assert guest_user.guest_uids() is False
    assert guest_user.guest_uids() is before


@pytest.mark.parametrize("is_limited", [True, False])
async def test_a_full_disk_of_its_own_is_the_guests_doing(is_limited, monkeypatch):
    """Where all desktops share a disk, the guests of another may have filled it."""
    if os.getuid() != 0:
        pytest.skip("only root can give a desktop a disk of its own")
    async with embedded(SMALL, limits=ResourceLimits(disk_mib=16)) as desktop:
        await desktop.run(["sh", "-c", "for i in 1 2 3 4 5 6 7 8; do head -c 20m /dev/zero > $i; done"])
        session = desktop._session
        assert session._is_disk_limited
        monkeypatch.setattr(session, "_is_disk_limited", is_limited)
        with pytest.raises(InfrastructureError, match="No space left") as caught:
            await desktop.push("more", bytes(1 << 20))
        assert isinstance(caught.value, GuestFailure) == is_limited
