"""Check a remote desktop for `deskhand doctor --desktop URL`. Entry point: `check_desktop`.

Layers, up to the first failure: the URL responds, a desktop can be leased, screenshots, pointer input, file transfer,
command output and exit codes (which checks read), and optionally WAA's evaluate server. Each layer is used for real.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from deskhand.actions.ops import Move, Point, screen_px
from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.base import DesktopSpec, Frame
from deskhand.desktop.remote.http_connection import connection_failure, open_http
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop
from deskhand.desktop.remote.retrying_client import RetryingClient, check_base_url
from deskhand.desktop.remote.sandbox_desktop import SandboxPool
from deskhand.desktop.remote.screenshots import ScreenPolling
from deskhand.desktop.remote.server_desktop import ServerPool
from deskhand.desktop.remote.waa_desktop import WaaDesktop
from deskhand.desktop.remote.waa_server import WaaEvaluatorClient
from deskhand.doctor.check_machine import ProbeResult
from deskhand.errors import DeskhandError, InfrastructureError

TIMEOUTS = RemoteTimeouts(connect_s=5.0, read_s=20.0, step_s=60.0, max_attempts=2, initial_backoff_s=0.5)
WAIT_S = 60.0
_HEALTH_PATHS = {"sandbox gateway": "/v1/health", "desktop server": "/health", "waa": "/probe", "osworld": "/platform"}
"""By kind of endpoint, which is the first whose path responds with 200."""
_FIXES = {
    "reach": "start the server, or check URL, port, tunnel and firewall",
    "desktop": "check the API key (DESKHAND_SERVER_API_KEY, OSWORLD_SANDBOX_TOKEN), and whether a desktop is free",
    "frame": "check the machine's display: it may be asleep, locked, at a dialog, or of another size",
    "input": "log in on the machine; its server must run in that user's session",
    "file": "check disk space and the permissions of the server's user",
    "judge": "check that python is on the server's PATH, and for WAA that the evaluate server (port 5050) is forwarded",
}


@dataclass
class _Probe:
    """A desktop, and a query of its pointer position."""

    desktop: Any
    size: tuple[int, int]
    pointer: Callable[[], Awaitable[tuple[int, int]]]


async def check_desktop(url: str, key: str | None = None, *, evaluate_url: str | None = None) -> list[ProbeResult]:
    """Return one result per layer, up to the first failure. Raises `ConfigError` if a URL is invalid."""
    address = check_base_url(url, "--desktop")
    findings: list[ProbeResult] = []
    kind = await _kind(address, key, findings)
    if kind is None:
        return findings
    try:
        async with asyncio.timeout(6 * WAIT_S), _opened(kind, address, key, findings) as probe:
            for name, layer in (("frame", _frame), ("input", _input), ("file", _file), ("judge", _judge)):
                if not await _try(name, layer, probe, findings):
                    return findings
    except (DeskhandError, TimeoutError) as error:
        findings.append(_failed("desktop", error))
        return findings
    if evaluate_url is not None:
        await _try("judge", _evaluator, evaluate_url, findings)
    return findings


async def _kind(address: str, key: str | None, findings: list[ProbeResult]) -> str | None:
    replies: list[str] = []
    headers = {"authorization": f"Bearer {key}"} if key else {}
    timeout = httpx2.Timeout(TIMEOUTS.read_s, connect=TIMEOUTS.connect_s)
    async with open_http(address, timeout=timeout) as http:
        for kind, path in _HEALTH_PATHS.items():
            began = time.monotonic()
            try:
                reply = await http.get(path, headers=headers)
            except httpx2.TransportError as error:
                replies.append(connection_failure(error, address))
                break
            if reply.status_code == 200:
                findings.append(ProbeResult("reach", True, f"{kind} in {1000 * (time.monotonic() - began):.0f} ms"))
                return kind
            replies.append(f"{path}: {reply.status_code}")
    findings.append(ProbeResult("reach", False, "; ".join(replies), _FIXES["reach"]))
    return None


@asynccontextmanager
async def _opened(kind: str, address: str, key: str | None, findings: list[ProbeResult]) -> AsyncIterator[_Probe]:
    began = time.monotonic()
    if kind in ("desktop server", "sandbox gateway"):
        is_server = kind == "desktop server"
        server_pool = functools.partial(ServerPool, wait_s=5.0) if is_server else SandboxPool
        async with server_pool(address, key, timeouts=TIMEOUTS) as pool:
            async with asyncio.timeout(WAIT_S):
                lease = await pool.lease(DesktopSpec(width=1280, height=720))
            findings.append(ProbeResult("desktop", True, f"leased in {time.monotonic() - began:.1f} s"))
            desktop: Any = lease.desktop

            async def seen() -> tuple[int, int]:
                return (await desktop.observe()).cursor if is_server else await desktop.server.cursor_position()

            yield _Probe(desktop, (1280, 720), seen)
        return
    link = RetryingClient(address, key, timeouts=TIMEOUTS)
    settings: dict[str, Any] = {"polling": ScreenPolling(0.1, 1.0, 1), "ready_s": WAIT_S / 4}
    machine = WaaDesktop(link, **settings) if kind == "waa" else OsworldDesktop(link, skip_reset=True, **settings)
    try:
        size = await machine.server.screen_size()
        await OsworldDesktop.reset(machine, DesktopSpec(width=size[0], height=size[1]))  # without resetting the machine
        findings.append(ProbeResult("desktop", True, f"{kind} machine, {size[0]}x{size[1]} pixels"))

        async def pointer_position() -> tuple[int, int]:
            done = await machine.run(["python", "-c", "import pyautogui; print(*pyautogui.position())"])
            x, y = done.stdout.split()
            return int(x), int(y)

        yield _Probe(machine, size, machine.server.cursor_position if kind == "osworld" else pointer_position)
    finally:
        await machine.close()


async def _try(name: str, layer: Callable[[Any], Awaitable[str]], probe: Any, findings: list[ProbeResult]) -> bool:
    began = time.monotonic()
    try:
        async with asyncio.timeout(WAIT_S):
            found = await layer(probe)
    except (DeskhandError, OSError, ValueError, TimeoutError) as error:
        findings.append(_failed(name, error))
        return False
    findings.append(ProbeResult(name, True, f"{found}, {1000 * (time.monotonic() - began):.0f} ms"))
    return True


def _failed(name: str, error: BaseException) -> ProbeResult:
    detail = " ".join(f"{error}".split())[:300] or f"no response within {WAIT_S:g} s"
    return ProbeResult(name, False, detail, _FIXES[name])


async def _frame(probe: _Probe) -> str:
    frame: Frame = await probe.desktop.observe()
    if frame.size != probe.size:
        expected = "{}x{}".format(*probe.size)
        raise InfrastructureError(f"screenshot of {frame.size[0]}x{frame.size[1]} pixels, expected {expected}")
    return f"{frame.size[0]}x{frame.size[1]} pixels"


async def _input(probe: _Probe) -> str:
    width, height = probe.size
    for x, y in ((width // 3, height // 3), (width // 2, height // 2)):
        await probe.desktop.perform([Move(Point(x, y, screen_px(width, height)))], action_id=secrets.token_hex(8))
        at = await probe.pointer()
        if max(abs(at[0] - x), abs(at[1] - y)) > 1:
            raise InfrastructureError(f"the pointer was moved to {x},{y} but is at {at[0]},{at[1]}")
    return "pointer moves to its target"


async def _file(probe: _Probe) -> str:
    data, name = secrets.token_bytes(4096), f"deskhand-doctor-{secrets.token_hex(4)}.bin"
    await probe.desktop.push(name, data)
    back = await probe.desktop.pull(name)
    if back != data:
        raise InfrastructureError(f"wrote {len(data)} bytes, but read back {len(back)} different ones")
    return "file read back unchanged"


async def _judge(probe: _Probe) -> str:
    python = "python" if isinstance(probe.desktop, WaaDesktop) else "python3"
    done = await probe.desktop.run([python, "-c", "print(6 * 7)"])
    if done.returncode != 0 or done.stdout.strip() != b"42":
        printed = f"{done.stdout[:80]!r} {done.stderr[:200]!r}"
        raise InfrastructureError(f"a command exited with {done.returncode} and printed {printed}")
    return "command output and exit code received"


async def _evaluator(url: str) -> str:
    evaluator = WaaEvaluatorClient(RetryingClient(check_base_url(url, "--evaluate"), timeouts=TIMEOUTS))
    try:
        await evaluator.probe()
    finally:
        await evaluator.client.close()
    return "evaluate server responds"
