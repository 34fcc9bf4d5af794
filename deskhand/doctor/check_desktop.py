"""Whether desktops elsewhere work, layer by layer: `deskhand doctor --desktop URL`. Invariant: each layer is tried for real, the
first that fails names its mend, and what was leased is given back.

Layers: the address answers; a desktop can be had; its screen is a picture; the pointer goes where it is sent, by the machine's own
word; a file comes back as it went; a command's output and code come back (what a judge reads), and the evaluate server, if one is
named.
"""

from __future__ import annotations

import asyncio
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
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop, ScreenPolling
from deskhand.desktop.remote.retrying_client import RetryingClient, check_base_url
from deskhand.desktop.remote.sandbox_desktop import SandboxPool
from deskhand.desktop.remote.server_desktop import ServerPool
from deskhand.desktop.remote.waa_desktop import WaaDesktop
from deskhand.desktop.remote.waa_server import WaaEvaluatorClient
from deskhand.doctor.check_machine import ProbeResult
from deskhand.errors import DeskhandError, InfrastructureError

TIMES = RemoteTimeouts(connect_s=5.0, read_s=20.0, step_s=60.0, attempts=2, pause_s=0.5)
WAIT_S = 60.0
_SIGNS = (("gateway", "/v1/health"), ("bridge", "/health"), ("waa", "/probe"), ("osworld", "/platform"))
"""What is there by the first address that answers with 200."""
_MENDS = {
    "reach": "start the server, or check the address, the port, the tunnel and the firewall",
    "desktop": "check the key (DESKHAND_SERVER_API_KEY, OSWORLD_SANDBOX_TOKEN), and whether a desktop is free",
    "frame": "look at the machine's own display: it may be asleep, locked, at a dialog, or of another size",
    "input": "log in on the machine; its server must run in the session of the user whose screen it shows",
    "file": "check the disk's space and the rights of the user that the server runs as",
    "judge": "check that python is in the path of the server; on WAA that the evaluate server (port 5050) is passed on",
}


@dataclass
class _Probe:
    """The desktop, and how its pointer is asked for besides frames."""

    desktop: Any
    size: tuple[int, int]
    pointer: Callable[[], Awaitable[tuple[int, int]]]


async def check_desktop(url: str, key: str | None = None, *, evaluate_url: str | None = None) -> list[ProbeResult]:
    """One finding a layer, up to the first that fails. Raises `ConfigError` for an address that is none."""
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
        await _try("judge", _evaluator(evaluate_url), None, findings)
    return findings


async def _kind(address: str, key: str | None, findings: list[ProbeResult]) -> str | None:
    said: list[str] = []
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(
        base_url=address, timeout=httpx2.Timeout(TIMES.read_s, connect=TIMES.connect_s)
    ) as http:
        for kind, path in _SIGNS:
            began = time.monotonic()
            try:
                reply = await http.get(path, headers=headers)
            except httpx2.TransportError as error:
                said.append(f"{type(error).__name__} {error}".strip())
                break
            if reply.status_code == 200:
                findings.append(ProbeResult("reach", True, f"{kind} in {1000 * (time.monotonic() - began):.0f} ms"))
                return kind
            said.append(f"{path}: {reply.status_code}")
    findings.append(ProbeResult("reach", False, "; ".join(said), _MENDS["reach"]))
    return None


@asynccontextmanager
async def _opened(kind: str, address: str, key: str | None, findings: list[ProbeResult]) -> AsyncIterator[_Probe]:
    began = time.monotonic()
    if kind in ("bridge", "gateway"):
        pool = (
            ServerPool(address, key, timeouts=TIMES, wait_s=5.0)
            if kind == "bridge"
            else SandboxPool(address, key, timeouts=TIMES)
        )
        async with pool:
            async with asyncio.timeout(WAIT_S):
                lease = await pool.lease(DesktopSpec(width=1280, height=720))
            findings.append(ProbeResult("desktop", True, f"leased in {time.monotonic() - began:.1f} s"))
            desktop: Any = lease.desktop

            async def seen() -> tuple[int, int]:
                return (await desktop.observe()).cursor if kind == "bridge" else await desktop.server.cursor_position()

            yield _Probe(desktop, (1280, 720), seen)
        return
    link = RetryingClient(address, key, timeouts=TIMES)
    settings: dict[str, Any] = {"polling": ScreenPolling(0.1, 1.0, 1), "ready_s": WAIT_S / 4}
    machine = WaaDesktop(link, **settings) if kind == "waa" else OsworldDesktop(link, skip_reset=True, **settings)
    try:
        size = await machine.server.screen_size()
        await OsworldDesktop.reset(
            machine, DesktopSpec(width=size[0], height=size[1])
        )  # the machine's state stays as it is
        findings.append(ProbeResult("desktop", True, f"{kind} machine with {size[0]}x{size[1]} pixels"))

        async def told() -> tuple[int, int]:
            done = await machine.run(["python", "-c", "import pyautogui; print(*pyautogui.position())"])
            x, y = done.stdout.split()
            return int(x), int(y)

        yield _Probe(machine, size, machine.server.cursor_position if kind == "osworld" else told)
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
    said = " ".join(f"{error}".split())[:300] or f"no answer within {WAIT_S:g} s"
    return ProbeResult(name, False, said, _MENDS[name])


async def _frame(probe: _Probe) -> str:
    frame: Frame = await probe.desktop.observe()
    if frame.size != probe.size:
        raise InfrastructureError(
            f"the picture has {frame.size[0]}x{frame.size[1]} pixels, not {probe.size[0]}x{probe.size[1]}"
        )
    return f"{frame.size[0]}x{frame.size[1]} pixels"


async def _input(probe: _Probe) -> str:
    width, height = probe.size
    for x, y in ((width // 3, height // 3), (width // 2, height // 2)):
        await probe.desktop.perform([Move(Point(x, y, screen_px(width, height)))], action_id=secrets.token_hex(8))
        at = await probe.pointer()
        if max(abs(at[0] - x), abs(at[1] - y)) > 1:
            raise InfrastructureError(f"the pointer was sent to {x},{y} and is at {at[0]},{at[1]}")
    return "the pointer goes where it is sent"


async def _file(probe: _Probe) -> str:
    data, name = secrets.token_bytes(4096), f"deskhand-doctor-{secrets.token_hex(4)}.bin"
    await probe.desktop.push(name, data)
    back = await probe.desktop.pull(name)
    if back != data:
        raise InfrastructureError(f"{len(data)} bytes were written, and {len(back)} other ones came back")
    return "a file comes back as it went"


async def _judge(probe: _Probe) -> str:
    done = await probe.desktop.run(
        ["python3" if not isinstance(probe.desktop, WaaDesktop) else "python", "-c", "print(6 * 7)"]
    )
    if done.returncode != 0 or done.stdout.strip() != b"42":
        raise InfrastructureError(
            f"a command ended with {done.returncode} and said {done.stdout[:80]!r} {done.stderr[:200]!r}"
        )
    return "a command's output and code come back"


def _evaluator(url: str) -> Callable[[Any], Awaitable[str]]:
    async def look(_: Any) -> str:
        evaluator = WaaEvaluatorClient(RetryingClient(check_base_url(url, "--evaluate"), timeouts=TIMES))
        try:
            await evaluator.probe()
        finally:
            await evaluator.client.close()
        return "the evaluate server answers"

    return look
