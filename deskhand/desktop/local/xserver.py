"""`XServer`: one Xvfb process.

Reachable only with its cookie and never over TCP; its pixels are in a file that the host can map.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from deskhand.desktop.local import guest_user, isolation, processes
from deskhand.errors import ConfigError, InfrastructureError

MIN_SIZE = (160, 160)
MAX_SIZE = (1920, 1200)
PROBE_S, PROBE_WORKING_S, PROBE_STEP_S = 2.0, 8.0, 0.05
"""Time limits for an answer to one client and to several, and how often it is looked whether the server sleeps."""
WORK_S = 0.25
"""Processor time in which a server answers every client, unless some keep it at work: it serves them in turn, and one
turn takes milliseconds."""
_SETUP_WITHOUT_COOKIE = struct.pack("<BxHHHHxx", 0x6C, 11, 0, 0, 0)
START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 5.0
MAX_SERVERS = 59_535
"""Display numbers: as many as there are TCP ports from 6000."""
MEMORY_MIB = (64, 2048)
"""Least and most memory. Guests can allocate pictures and properties in the server: within these bounds it may use as
much as they may, refuses more, and exits if it needs more itself."""


class XServer:
    """Xvfb in `folder`, which must be on a tmpfs. Raises `ConfigError` if a program is missing or the size is invalid.

    `shared_memory` enables MIT-SHM for every client. As root, Xvfb runs under a user id that no guest has and that owns
    nothing, in case a guest exploits it. `keymap` is a folder of `keymap.components`.
    """

    def __init__(
        self,
        folder: Path,
        width: int,
        height: int,
        environment: dict[str, str],
        *,
        memory_mib: int = MEMORY_MIB[1],
        shared_memory: bool = False,
        keymap: Path | None = None,
    ) -> None:
        if not (MIN_SIZE[0] <= width <= MAX_SIZE[0] and MIN_SIZE[1] <= height <= MAX_SIZE[1]):
            least, most = ("x".join(map(str, size)) for size in (MIN_SIZE, MAX_SIZE))
            raise ConfigError(f"screen size: must be {least} to {most}, got {width}x{height}")
        program = shutil.which("Xvfb")
        if program is None:
            raise ConfigError("Xvfb: not installed; apt-get install xvfb")
        self.folder = folder
        self.cookie = os.urandom(16)
        self.log = folder / "xvfb.log"
        screen = folder / "screen"
        screen.mkdir(mode=0o700, exist_ok=True)
        self.framebuffer_path = screen / "Xvfb_screen0"
        server_authority = screen / "authority"
        server_authority.write_bytes(_authority_record(self.cookie))
        uid = isolation.x_server_uid()
        isolation.chown_to_guest(screen, uid)
        self.number, self._reservation = _reserve_number()
        self.name = f":{self.number}"
        self.socket_path = socket_path(self.number)
        reader, writer = os.pipe()
        limit_mib = max(MEMORY_MIB[0], min(MEMORY_MIB[1], memory_mib))
        command = guest_user.command_as_user(uid, ["prlimit", "--core=0", f"--data={limit_mib << 20}"])
        command += ["setpriv", "--pdeathsig", "KILL", program, self.name, "-displayfd", str(writer)]
        command += ["-screen", "0", f"{width}x{height}x24", "-fbdir", str(screen), "-auth", str(server_authority)]
        command += ["-nolisten", "tcp", "-nolisten", "local", "-noreset", "-dpi", "96", "-s", "0"]
        command += ["-xkbdir", str(keymap)] if keymap else []
        command += ["-extension", "GLX", *([] if shared_memory else ["-extension", "MIT-SHM"])]
        try:
            with self.log.open("wb") as log:
                streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                self.process = processes.start(command, **streams, pass_fds=(writer,), env=environment, cwd="/")
        except FileNotFoundError as error:
            self._reservation.close()
            raise ConfigError("setpriv: not installed; apt-get install util-linux") from error
        finally:
            os.close(writer)
        try:
            self._wait_until_ready(reader)
        except BaseException:
            self.stop()
            raise
        finally:
            os.close(reader)
        self.authority = folder / "authority"
        self.authority.touch(mode=0o600)
        self.authority.write_bytes(_authority_record(self.cookie))

    def _wait_until_ready(self, reader: int) -> None:
        text = b""
        poller = select.poll()  # select() rejects descriptors above 1023
        poller.register(reader, select.POLLIN)
        while not text.endswith(b"\n"):
            chunk = os.read(reader, 64) if poller.poll(1000 * START_TIMEOUT_S) else b""
            if not chunk:
                lines = self.log.read_text(errors="replace").strip().splitlines() or ["no message"]
                raise InfrastructureError(
                    f"Xvfb did not start ({lines[-1]}); check that /tmp/.X11-unix and /dev/shm are writable"
                )
            text += chunk

    def is_running(self) -> bool:
        return self.process.poll() is None

    def busy(self) -> bool:
        return processes.state(self.process.pid) == "R"

    def probe(self) -> Literal["answers", "grabbed", "working", "busy", "gone"]:
        """Return what the server does with a new client.

        "grabbed": it sleeps and does not answer, because it serves another client only. "working": it runs for at least
        `WORK_S` before it answers. "busy": it does not answer and mostly waits for the CPU, as on a busy machine.
        """
        start_s, deadline = processes.run_time_s(self.process.pid), time.monotonic() + PROBE_WORKING_S
        while True:
            found = self._answer_within(PROBE_S)
            if processes.run_time_s(self.process.pid) - start_s >= WORK_S:
                return "working"
            if found is not None:
                return found
            if processes.state(self.process.pid) != "R" or time.monotonic() > deadline:
                return "busy"

    def _answer_within(self, timeout_s: float) -> Literal["answers", "grabbed", "gone"] | None:
        """Return what the server does with a new client, "gone" if nothing listens, None if that is not known in time.

        A server that sleeps although it has a request does not answer before a guest lets go of it, which may be soon;
        programs that mean no harm do so within milliseconds.
        """
        deadline = time.monotonic() + timeout_s
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(timeout_s)
            poller = select.poll()
            try:
                client.connect(str(self.socket_path))
                client.sendall(_SETUP_WITHOUT_COOKIE)
                poller.register(client, select.POLLIN)
                while time.monotonic() < deadline:
                    is_asleep = processes.state(self.process.pid) == "S"
                    if poller.poll(1000 * PROBE_STEP_S):
                        return "answers" if client.recv(1) else "gone"  # it refuses the client, which is an answer
                    if is_asleep:
                        return "grabbed"
            except BlockingIOError:  # it accepts none, and others wait
                time.sleep(timeout_s)
                return "grabbed" if processes.state(self.process.pid) == "S" else None
            except OSError:
                return "gone"
        return None

    def ends_within(self, timeout_s: float) -> bool:
        return processes.wait_bounded(self.process, timeout_s)

    def has_crashed(self) -> bool:
        """Return whether the server ended by its own error. Guests cannot signal it, but can cause errors in it."""
        code = self.process.poll()
        return code is not None and (code > 0 or -code in (signal.SIGSEGV, signal.SIGABRT))

    def stop(self) -> None:
        """Kill the server and remove its files. Idempotent."""
        if self.process.poll() is None:
            self.process.kill()
            processes.wait_bounded(self.process, STOP_TIMEOUT_S)
        if self._reservation.fileno() >= 0:
            if self.process.returncode is not None:
                _remove_files(self.number)
            self._reservation.close()


def socket_path(number: int) -> Path:
    return Path(f"/tmp/.X11-unix/X{number}")


def _lock_path(number: int) -> Path:
    return Path(f"/tmp/.X{number}-lock")


def _reserve_number() -> tuple[int, socket.socket]:
    """Return a free display number and the socket that reserves it.

    X clients connect to an abstract socket first. This one refuses them, and they connect to the socket in the file
    system. So servers need no abstract socket, and `landlock` can deny guests those outside their desktop: clients that
    are denied, and not refused, would give up. As only one process can bind a name, it also reserves the number; all X
    servers with an abstract socket do the same.
    """
    for number in range(MAX_SERVERS):
        reservation = socket.socket(socket.AF_UNIX)
        try:
            reservation.bind(f"\0{socket_path(number)}")
        except OSError:
            reservation.close()
            continue
        if _remove_dead(number):
            return number, reservation
        reservation.close()
    raise InfrastructureError(f"too many X servers on this machine; the limit is {MAX_SERVERS}")


def _remove_dead(number: int) -> bool:
    """Remove the files of a dead server; return whether the number is free."""
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(str(socket_path(number))) == 0:
            return False
    lock = _lock_path(number)
    with suppress(OSError, ValueError):
        if Path(f"/proc/{int(lock.read_text())}").exists():
            return False
    _remove_files(number)
    return not socket_path(number).exists() and not lock.exists()


def _remove_files(number: int) -> None:
    for path in (socket_path(number), _lock_path(number)):
        with suppress(OSError):  # of another user
            path.unlink(missing_ok=True)


def remove_dead_server(number: int) -> None:
    """Remove the files of a dead owner's server, unless another server has the number now."""
    with socket.socket(socket.AF_UNIX) as reservation, suppress(OSError):
        reservation.bind(f"\0{socket_path(number)}")
        _remove_dead(number)


def _authority_record(cookie: bytes) -> bytes:
    """Return an Xauthority entry for any host and display: family; address, number, name, data with their lengths."""
    name = b"MIT-MAGIC-COOKIE-1"
    return struct.pack(">HHHH", 0xFFFF, 0, 0, len(name)) + name + struct.pack(">H", len(cookie)) + cookie
