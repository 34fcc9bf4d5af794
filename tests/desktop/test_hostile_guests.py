"""Guests that mean harm, at both levels of isolation.

Every attack is bounded by itself, so that a wall that does not hold costs a failed test and not the machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from desktops import ISOLATIONS
from patience import limit

from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import isolation as isolation_module
from deskhand.desktop.local import processes
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.local.desktop_session import OWN_DISK_MIB
from deskhand.desktop.local.isolation import ResourceLimits
from deskhand.errors import ConfigError, InfrastructureError

SMALL = DesktopSpec("plain", 256, 192)
ROOT = Path(__file__).resolve().parents[2]
LIMITS = ResourceLimits(memory_mib=96, processes=48, disk_mib=16, file_mib=8)


@pytest.fixture(params=ISOLATIONS)
async def desktop(request):
    desktop = LocalDesktop(isolation=request.param, limits=LIMITS)
    await desktop.reset(SMALL)
    yield desktop
    await desktop.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user of this machine may read."""
    with tempfile.TemporaryDirectory(prefix="deskhand-test-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


async def failure_of(desktop, timeout_s: float = 10.0) -> str:
    """Waits until the desktop says that it has failed."""
    deadline = time.monotonic() + limit(timeout_s)
    while time.monotonic() < deadline:
        try:
            await desktop.observe()
        except InfrastructureError as error:
            return str(error)
    return "it has not failed"


async def shell(desktop, script, timeout_s=20.0):
    done = await desktop.run(["sh", "-c", script], timeout_s=limit(timeout_s))
    return done.returncode, done.stdout.decode(), done.stderr.decode()


BOMB = "ulimit -p 300 2>/dev/null || ulimit -u 300; bomb() { bomb & bomb & sleep 5; }; sleep 0.3; bomb"


async def test_a_fork_bomb_stays_within_its_box_and_is_ended_with_it(desktop):
    other = LocalDesktop(isolation=desktop.isolation)
    await other.reset(SMALL)
    try:
        await desktop.launch(["sh", "-c", BOMB])
        most, deadline = 0, time.monotonic() + limit(2.0)
        while time.monotonic() < deadline:
            most = max(most, len(desktop.processes()))
        assert 20 < most <= LIMITS.processes + 2
        assert (await shell(other, "echo fine"))[1] == "fine\n"
        everything = desktop.processes()
        await desktop.close()
        assert [pid for pid in everything if processes.state(pid) not in ("", "Z")] == []
    finally:
        await other.close()


async def test_memory_beyond_the_bound_ends_the_desktop_and_says_so(desktop):
    with suppress(
        InfrastructureError
    ):  # the kernel ends the one process that wants it all, or the guard has seen it already
        assert (await shell(desktop, "head -c 200m /dev/zero | tail | wc -c"))[1] != "209715200\n"
    for _ in range(3):
        with suppress(InfrastructureError):  # it may be over already
            await desktop.launch(["sh", "-c", "(head -c 50m /dev/zero; sleep 9) | tail -n 1 >/dev/null"])
    assert "memory; 96 are allowed" in await failure_of(desktop)


async def test_a_guest_that_fills_its_disk_gets_no_more_than_its_bound(desktop):
    code, _, _ = await shell(desktop, "dd if=/dev/zero of=large bs=1M count=12")
    assert code != 0  # one file
    with suppress(InfrastructureError):  # beyond its bound, the desktop may have been ended
        await shell(
            desktop, "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do dd if=/dev/zero of=f$i bs=1M count=6; sleep 0.2; done"
        )
    home = desktop._session.home.root
    used = sum(path.stat().st_blocks * 512 for path in home.rglob("*") if path.is_file())
    assert used < (LIMITS.disk_mib + OWN_DISK_MIB + 8) * 2**20
    if not desktop._session._disk_is_bounded:
        assert "its files take more than 16 MiB" in await failure_of(desktop)
        return
    with pytest.raises(InfrastructureError, match="No space left"):
        await desktop.push("more", bytes(8 * 2**20))
    written = await shell(
        desktop, "for i in 1 2 3 4 5; do dd if=/dev/zero of=/tmp/f$i bs=1M count=6; done; du -sm /tmp | cut -f1"
    )
    assert int(written[1] or 0) <= LIMITS.disk_mib


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("place", ["$HOME", "$TMPDIR", "control"])
async def test_where_no_file_system_bounds_the_disk_the_guard_does(isolation, place, monkeypatch):
    monkeypatch.setattr(
        isolation_module, "bound_folder", lambda folder, mib: False
    )  # as where this process may not mount
    desktop = LocalDesktop(isolation=isolation, limits=LIMITS)
    try:
        await desktop.reset(SMALL)
        if place == "control":
            place = desktop._session.box._guest_control
        script = f"for i in 1 2 3 4; do dd if=/dev/zero of={place}/f$i bs=1M count=6 || exit; done; sleep 20"
        await desktop.launch(["sh", "-c", script])
        if place == "$TMPDIR" and isolation == "namespaces":  # that is a file system of its own
            done = await shell(desktop, "sleep 1; du -sm /tmp | cut -f1")
            assert int(done[1]) <= LIMITS.disk_mib
        else:
            assert "its files take more than 16 MiB" in await failure_of(desktop)
    finally:
        await desktop.close()


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_a_guest_that_kills_all_it_can_ends_nothing_but_its_own_desktop(isolation):
    desktop, other = (LocalDesktop(isolation=isolation) for _ in range(2))
    bystander = processes.start(["sleep", "60"])
    try:
        await desktop.reset(SMALL)
        await other.reset(SMALL)
        server = desktop._session.x_server.process.pid
        targets = [os.getpid(), bystander.pid, server, *other.processes()]
        kills = "; ".join(f"kill -KILL {pid}" for pid in targets if pid != os.getpid())
        await shell(desktop, f"{kills}; kill -CONT {os.getpid()} && echo reached > reached")
        assert "reached" not in await desktop.listdir(".")
        await desktop.launch(["sh", "-c", "kill -KILL -1; sleep 1; kill -KILL -1"])
        assert "desktop" in await failure_of(desktop)
        assert bystander.poll() is None
        assert processes.state(server) not in ("", "Z")
        assert (await shell(other, "echo fine"))[1] == "fine\n"
        await other.observe()
    finally:
        bystander.kill()
        bystander.wait()
        await desktop.close()
        await other.close()


async def test_links_and_pipes_in_the_place_of_results_lead_nowhere(desktop, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret of the host")
    home = desktop._session.home.root
    await shell(
        desktop,
        f"ln -s {secret} link; ln -s {tmp_path} folder; ln -s / root; mkfifo pipe; ln -s {home}/../authority up",
    )
    for path in ("link", "folder/secret", f"root{secret}", "pipe", "up", "root/etc/hostname"):
        with pytest.raises((PermissionError, FileNotFoundError)):
            await desktop.pull(path)
    for path in ("link", "folder/new", "up"):
        with pytest.raises(PermissionError):
            await desktop.push(path, b"overwritten")
    assert secret.read_text() == "secret of the host"
    assert not (tmp_path / "new").exists()


async def test_a_guest_reads_neither_the_environment_nor_the_files_of_the_host(desktop, open_folder):
    bystander = processes.start(["sleep", "60"], env={"KEY": "sk-of-the-host"})
    secret = open_folder / "secret"
    secret.write_text("sk-of-the-host")
    try:
        server = desktop._session.x_server
        other = LocalDesktop(isolation=desktop.isolation)
        await other.reset(SMALL)
        keys = f"{server.folder}/screen/authority {other._session.x_server.authority}"
        script = f"cat /proc/*/environ {secret} {keys} /proc/{bystander.pid}/cmdline /proc/*/mem"
        _, output, _ = await shell(
            desktop, f"({script}; env; ls -R {server.folder.parent}) 2>/dev/null | tr '\\0' '\\n'"
        )
        assert "sk-of-the-host" not in output
        assert "DESKHAND_LEASE" in output  # it does read its own
        for name in keys.split():
            assert (await desktop.run(["cat", name])).returncode != 0 or name == str(server.authority)
        await other.close()
        assert not [name for name in os.environ if name.startswith(("PYTEST", "VIRTUAL_ENV")) and name in output]
    finally:
        bystander.kill()
        bystander.wait()


async def test_a_guest_connects_to_nothing_outside(desktop):
    reached = []
    with (
        socket.socket() as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        socket.socket(socket.AF_UNIX) as local,
    ):
        server.bind(("127.0.0.1", 0))
        datagrams.bind(("127.0.0.1", 0))
        local.bind(f"\0deskhand-test-{os.getpid()}")
        for listening in (server, local):
            listening.listen()
        for one in (server, datagrams, local):
            one.settimeout(0.5)
        tcp, udp = server.getsockname()[1], datagrams.getsockname()[1]
        script = f"(echo hi >/dev/tcp/127.0.0.1/{tcp}) && echo tcp; (echo hi >/dev/udp/127.0.0.1/{udp}) && sleep 0.1"
        done = await desktop.run(["bash", "-c", script])
        assert b"tcp" not in done.stdout
        abstract = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0deskhand-test-{os.getpid()}')"
        await desktop.run(["/usr/bin/python3", "-c", abstract])
        for one in (server, local) if desktop.isolation == "namespaces" else (server,):
            with pytest.raises(TimeoutError):
                reached.append(one.accept())
        with pytest.raises(TimeoutError):
            reached.append(datagrams.recv(10))
    assert reached == []


class Site:
    """Answers every connection on a port of the loopback with one page."""

    def __init__(self, page: bytes) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.asked: list[bytes] = []
        self._page = page
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                self.asked.append(connection.recv(4096))
                connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + self._page)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@pytest.mark.skipif("namespaces" not in ISOLATIONS, reason="bubblewrap cannot make namespaces here")
async def test_a_guest_reaches_what_its_task_allows_and_nothing_else():
    allowed, other = Site(b"welcome"), Site(b"never")
    desktop = LocalDesktop()
    try:
        await desktop.reset(
            DesktopSpec("plain", 256, 192, network=(f"127.0.0.1:{allowed.port}", f"localhost:{other.port}"))
        )

        async def ask(line: str) -> str:
            script = (
                f"exec 3<>/dev/tcp/127.0.0.1/3128; printf '{line} HTTP/1.1\\r\\nHost: other\\r\\n\\r\\n' >&3; cat <&3"
            )
            return (await desktop.run(["bash", "-c", script])).stdout.decode()

        assert "welcome" in await ask(f"GET http://127.0.0.1:{allowed.port}/page?x=1")
        assert allowed.asked[0].startswith(b"GET /page?x=1 HTTP/1.1\r\nHost: 127.0.0.1:")
        assert b"other" not in allowed.asked[0]
        for line in (
            f"GET http://127.0.0.1:{other.port}/",
            f"CONNECT 127.0.0.1:{other.port}",
            f"GET http://localhost:{other.port}/",
        ):
            assert "403 Forbidden" in await ask(line)  # the last name is allowed, but it leads to the host
        tunnel = "exec 3<>/dev/tcp/127.0.0.1/3128; printf 'CONNECT 127.0.0.1:%s HTTP/1.1\\r\\n\\r\\n' $0 >&3; read a <&3; read b <&3;"
        done = await desktop.run(["bash", "-c", f"{tunnel} printf 'GET /inside' >&3; cat <&3", str(allowed.port)])
        assert b"welcome" in done.stdout
        assert other.asked == []
        direct = await desktop.run(["bash", "-c", f"echo >/dev/tcp/127.0.0.1/{allowed.port}"])
        assert direct.returncode != 0
        assert "3128" in (await desktop.run(["sh", "-c", "echo $https_proxy"])).stdout.decode()
    finally:
        await desktop.close()
        allowed.close()
        other.close()


@pytest.mark.skipif("namespaces" not in ISOLATIONS, reason="bubblewrap cannot make namespaces here")
async def test_a_guest_knows_itself_by_name_and_nobody_else():
    desktop = LocalDesktop()
    try:
        await desktop.reset(SMALL)
        look = "import socket; print(socket.gethostbyname('localhost'), socket.gethostbyname(socket.gethostname()))"
        assert (await desktop.run(["python3", "-c", look])).stdout == b"127.0.0.1 127.0.0.1\n"
        assert (
            await desktop.run(["python3", "-c", "import socket; socket.gethostbyname('example.org')"])
        ).returncode == 1
    finally:
        await desktop.close()


async def test_some_of_the_network_without_namespaces_is_refused():
    desktop = LocalDesktop(isolation="plain")
    with pytest.raises(ConfigError, match="namespaces"):
        await desktop.reset(DesktopSpec("plain", 256, 192, network=("example.org",)))
    await desktop.close()


@pytest.mark.skipif(not isolation_module.guest_uids(), reason="only root can give guests users of their own")
def test_no_two_desktops_of_a_machine_have_the_same_user_at_a_time():
    first, second = isolation_module.GuestUser(), isolation_module.GuestUser()
    program = "from deskhand.desktop.local.isolation import GuestUser; print(GuestUser().uid)"
    elsewhere = int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, cwd=ROOT).stdout)
    assert len({first.uid, second.uid, elsewhere, isolation_module.server_uid()}) == 4
    taken = first.uid
    first.close()
    third = isolation_module.GuestUser()
    assert third.uid is not None
    assert third.uid <= (taken or 0)
    second.close()
    third.close()


def test_what_the_plain_level_lacks_is_named(monkeypatch):
    monkeypatch.setattr(isolation_module, "own_uids", lambda: False)
    monkeypatch.setattr(isolation_module.confine, "landlock_version", lambda: 0)
    assert isolation_module.missing_protections("namespaces") == []
    named = " ".join(isolation_module.missing_protections("plain"))
    assert "read every file" in named
    assert "end every process" in named


async def test_guests_that_have_no_user_of_their_own_have_none_of_roots_rights(monkeypatch):
    monkeypatch.setattr(isolation_module, "own_uids", lambda: False)
    desktop = LocalDesktop(isolation="plain")
    try:
        await desktop.reset(SMALL)
        said = (await desktop.run(["cat", "/proc/self/status"])).stdout.decode()
        rights = dict(line.split(":\t") for line in said.splitlines() if line.startswith("Cap"))
        assert set(rights.values()) == {"0" * 16}, rights
    finally:
        await desktop.close()


def test_that_a_program_was_not_found_once_does_not_make_guests_root(monkeypatch):
    before = isolation_module.guest_uids()
    with monkeypatch.context() as without:
        without.setenv("PATH", "/nowhere")
        assert isolation_module.guest_uids() is False
    assert isolation_module.guest_uids() is before
