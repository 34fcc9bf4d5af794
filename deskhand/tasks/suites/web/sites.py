"""The host's side of the server process: open a desktop's site, read its state for the judge.

Used by the scenarios and checks of the suite; start with `open_site`. The server process is started with the first
site and ends with this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

from deskhand.desktop.base import CanServeGuests, StageableDesktop
from deskhand.desktop.local import processes
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.tasks import setup_facts
from deskhand.tasks.formats.cuagym_programs import DOMAIN
from deskhand.tasks.suites.web.server import HEAD

PORT = 8080
"""On the guest's loopback interface."""
REPLY_TIMEOUT_S = 15.0
STATE = "web_state"
"""Fact that has the state as it was judged, for saved end states."""
_PROGRAM = "import sys; sys.path.insert(0, {root!r}); from deskhand.tasks.suites.web.server import main; main()"
_numbers = itertools.count(1)
_sites: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


class _SiteServer:
    """The process and its control socket."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._is_broken = False
        self._lock = threading.Lock()
        self._control, other = socket.socketpair()
        self._control.settimeout(REPLY_TIMEOUT_S)
        program = _PROGRAM.format(root=str(Path(__file__).resolve().parents[4]))
        command = [sys.executable, "-I", "-c", program, str(other.fileno())]
        silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with other:
            self._process = processes.start(command, pass_fds=(other.fileno(),), env={}, cwd="/", **silent)

    def is_running(self) -> bool:
        return not self._is_broken and self.owner == os.getpid() and self._process.poll() is None

    def ask(self, request: dict[str, Any], listener: socket.socket | None = None) -> dict[str, Any]:
        """Send a request and return the answer. Blocks. Raises `InfrastructureError`."""
        data = json.dumps(request).encode()
        try:
            with self._lock:
                socket.send_fds(self._control, [HEAD.pack(len(data))], [listener.fileno()] if listener else [])
                self._control.sendall(data)
                answer = json.loads(self._receive(HEAD.unpack(self._receive(HEAD.size))[0]))
        except (OSError, ValueError) as error:
            self._is_broken = True
            self._process.kill()
            raise InfrastructureError(f"the server of web applications does not answer: {error}") from None
        if "error" in answer:
            raise InfrastructureError(f"the server of web applications: {answer['error']}")
        return answer

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self._control.recv(size - len(data))
            if not chunk:
                raise ConnectionResetError("it has ended")
            data += chunk
        return data


_server: _SiteServer | None = None
_server_lock = threading.Lock()


def _running_server() -> _SiteServer:
    global _server
    with _server_lock:
        if _server is None or not _server.is_running():
            _server = _SiteServer()
        return _server


async def open_site(desktop: StageableDesktop, state: dict[str, Any], style: dict[str, Any], start: str) -> str:
    """Serve the suite's applications in this state on the desktop; return the address that gives one browser access,
    once. Raises `ConfigError` unless the desktop is local, with isolation 'namespaces'.
    """
    entry = await _open(desktop, {"state": state, "style": style, "start": start})
    return f"http://127.0.0.1:{PORT}/enter/{entry}"


async def open_hub(desktop: StageableDesktop, apps: dict[str, dict[str, Any]]) -> list[str]:
    """Serve applications of CUA-Gym-Hub (`hub.HubSite`); return the address of each that gives one browser access,
    once. Raises `ConfigError` as `open_site` does.
    """
    entry = await _open(desktop, {"hub": apps})
    return [f"http://{name}{DOMAIN}:{PORT}/enter/{entry}" for name in apps]


async def _open(desktop: StageableDesktop, site: dict[str, Any]) -> str:
    """Open a site and return the secret part of its entry address."""
    if not isinstance(desktop, CanServeGuests):
        raise ConfigError("web applications need a local desktop: the host serves them (desktop.backend: local)")
    server, number, entry = await asyncio.to_thread(_running_server), next(_numbers), secrets.token_urlsafe(24)

    def close() -> None:
        if server.is_running():
            with contextlib.suppress(InfrastructureError):  # its sites ended with it
                server.ask({"do": "close", "site": number})

    with await desktop.listen_inside(PORT, close) as listener:
        request = {"do": "open", "site": number, "entry": entry, **site}
        await asyncio.to_thread(server.ask, request, listener)
    _sites[desktop] = number
    return entry


async def read_state(desktop: StageableDesktop) -> dict[str, Any]:
    """Return the state of the desktop's applications, or of a saved end state. Raises `InfrastructureError`."""
    if hasattr(desktop, "setup_facts"):
        return setup_facts.noted(desktop, STATE)
    state = (await _ask(desktop, "read"))["state"]
    setup_facts.note(desktop, STATE, state)
    return state


async def num_refused(desktop: StageableDesktop) -> int:
    """Return how many requests of guests were refused."""
    return (await _ask(desktop, "read"))["refused"]


async def is_entered(desktop: StageableDesktop) -> bool:
    """Return whether a browser has opened the entry address."""
    return (await _ask(desktop, "read"))["entered"]


async def write_state(desktop: StageableDesktop, state: dict[str, Any]) -> None:
    """Replace the state, as tests and the audit do."""
    await _ask(desktop, "write", state=state)


async def _ask(desktop: StageableDesktop, do: str, **more: Any) -> dict[str, Any]:
    if desktop not in _sites:
        raise InfrastructureError("no web applications were opened on this desktop; run the task's setup first")
    server = await asyncio.to_thread(_running_server)
    return await asyncio.to_thread(server.ask, {"do": do, "site": _sites[desktop], **more})
