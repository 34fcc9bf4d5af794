"""What guests must not reach: a process, files, services and another desktop. `Host.harmed` says what they reached."""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

from benchmarks.attacks.judged_files import SECRET_LINE
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import guest_user, processes, seccomp
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.local.isolation import IsolationLevel
from deskhand.errors import InfrastructureError

SCREEN = DesktopSpec("plain", 256, 192)
SYS_RESOURCE = 24
LIVING = "living"


class Host:
    """Use as an asynchronous context manager. `folder`: for its files, empty; None makes one."""

    def __init__(self, level: IsolationLevel, folder: Path | None = None) -> None:
        self._level: IsolationLevel = level
        self._secret = f"secret-of-the-host-{secrets.token_hex(8)}"
        self._folder = folder or make_folder()
        self._neighbor = LocalDesktop(isolation_level=level)
        self._listeners: dict[str, socket.socket] = {}

    async def __aenter__(self) -> Self:
        self._folder.chmod(0o755)
        for name, text, mode in (
            ("secret", self._secret, 0o644),
            ("paid", SECRET_LINE, 0o644),
            ("writable", "", 0o666),
        ):
            (self._folder / name).write_text(f"{text}\n")
            (self._folder / name).chmod(mode)
        command = ["setpriv", "--pdeathsig", "KILL", "sleep", "3600"]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self._bystander = processes.start(command, **streams, env={"KEY": self._secret}, cwd="/")
        try:
            self._listen()
            await self._neighbor.reset(SCREEN)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    def _listen(self) -> None:
        word = secrets.token_hex(8)
        self.abstract, self.abstract_datagram = f"deskhand-host-{word}", f"deskhand-host-datagram-{word}"
        both = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=socket.has_dualstack_ipv6())
        self._listeners["TCP"] = both
        datagrams = self._listeners["UDP"] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind(("0.0.0.0", 0))
        for name, kind, address in (
            ("abstract socket", socket.SOCK_STREAM, f"\0{self.abstract}"),
            ("abstract datagram socket", socket.SOCK_DGRAM, f"\0{self.abstract_datagram}"),
            ("socket in a folder", socket.SOCK_STREAM, str(self._folder / "socket")),
        ):
            listener = self._listeners[name] = socket.socket(socket.AF_UNIX, kind)
            listener.bind(address)
            if kind == socket.SOCK_STREAM:
                listener.listen(64)
        (self._folder / "socket").chmod(0o666)
        for listener in self._listeners.values():
            listener.setblocking(False)

    def facts(self, desktop: LocalDesktop) -> dict[str, Any]:
        """Return what the guests of a desktop are told."""
        order = ["x86_64", "aarch64"]
        index = order.index(platform.machine()) if platform.machine() in order else 0
        session, neighbor = desktop._session, self._neighbor._session
        assert session is not None
        assert neighbor is not None
        _, _, addresses = socket.gethostbyname_ex("localhost")
        return {
            "level": self._level,
            "host_uid": os.getuid(),
            "owner": os.getpid(),
            "bystander": self._bystander.pid,
            "server": session.x_server.process.pid,
            "display": str(session.x_server.number),
            "folder": str(session.folder),
            "neighbors": self._neighbor.processes(),
            "neighbor_display": str(neighbor.x_server.number),
            "neighbor_authority": str(neighbor.x_server.authority),
            "neighbor_home": str(neighbor.home.root),
            **{name: str(self._folder / name) for name in ("secret", "paid", "writable", "socket")},
            "tcp": self._listeners["TCP"].getsockname()[1],
            "udp": self._listeners["UDP"].getsockname()[1],
            "addresses": sorted({*addresses, *_own_addresses()} - {"127.0.0.1"}),
            "abstract": self.abstract,
            "abstract_datagram": self.abstract_datagram,
            "calls": {name: numbers[index] for name, numbers in seccomp.SYSTEM_CALLS.items()},
            "is_privileged": self._level == "plain" or (guest_user.guest_uids() and _has_capability(SYS_RESOURCE)),
        }

    async def harmed(self) -> list[str]:
        """Return what guests did to the host since the last call."""
        found = []
        for name, listener in self._listeners.items():
            try:
                if listener.type == socket.SOCK_STREAM:
                    listener.accept()[0].close()
                else:
                    listener.recv(64)
                found.append(f"the host's {name} was reached")
            except BlockingIOError:
                pass
        if processes.state(self._bystander.pid) != "S":
            found.append("a process of the host was ended or stopped")
        if self._read("writable") != "\n" or self._read("secret") != f"{self._secret}\n":
            found.append("a file of the host was changed")
        if (reason := await self._failure_of_neighbor()) is not None:
            found.append(f"the other desktop does not work: {reason}")
            await self._neighbor.reset(SCREEN)
        return found

    async def _failure_of_neighbor(self) -> str | None:
        try:
            done = await self._neighbor.run(["echo", LIVING])
        except InfrastructureError as error:
            return str(error)
        return None if done.stdout.strip() == LIVING.encode() else f"it says {done.stdout[:100]!r}"

    def _read(self, name: str) -> str:
        try:
            return (self._folder / name).read_text()
        except OSError as error:
            return str(error)

    async def __aexit__(self, *error: object) -> None:
        await self._neighbor.close()
        for listener in self._listeners.values():
            listener.close()
        self._bystander.kill()
        self._bystander.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def make_folder() -> Path:
    """Make a folder that every user of this machine may read if its mode lets them."""
    return Path(tempfile.mkdtemp(prefix="deskhand-host-", dir="/var/tmp"))


def _own_addresses() -> list[str]:
    """Return the address of the interface that leads outside, if there is one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("192.0.2.1", 9))  # sends nothing
            return [one.getsockname()[0]]
        except OSError:
            return []


def _has_capability(number: int) -> bool:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) >> number & 1)


def survivors(word: str, uid: int | None) -> list[int]:
    """Return the living processes with a word among their arguments or a user id, by another way than Deskhand's."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = dict(line.split(":\t", 1) for line in (path / "status").read_text().splitlines() if ":\t" in line)
            is_zombie = fields["State"][0] in "ZX" and fields["Threads"] == "1"
            has_word = word.encode() in (path / "cmdline").read_bytes().split(b"\0")
            if not is_zombie and (has_word or (uid is not None and str(uid) in fields["Uid"].split())):
                found.append(int(path.name))
        except (OSError, KeyError):
            continue
    return found
