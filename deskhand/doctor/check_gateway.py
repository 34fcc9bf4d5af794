"""Conformance test of a sandbox gateway, for `deskhand gateway check URL`. Entry point: `check_gateway`.

Each check sends requests of `desktop/remote/sandbox_api.openapi.yaml` and compares the replies with what the file
promises. A status that the file does not list for the operation fails every check. There are at most two sandboxes,
which are deleted at the end.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from deskhand.actions.ops import Move, Point, screen_px
from deskhand.config.schema import RemoteTimeouts
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.remote.http_connection import open_http
from deskhand.desktop.remote.osworld_desktop import OsworldDesktop
from deskhand.desktop.remote.quota_errors import retry_after
from deskhand.desktop.remote.replies import (
    CommandReply,
    JsonReply,
    SandboxReply,
    is_own_refusal,
    json_object,
    json_reply,
)
from deskhand.desktop.remote.retrying_client import RetryingClient, check_base_url
from deskhand.desktop.remote.screenshots import ScreenPolling
from deskhand.doctor.check_machine import ProbeResult
from deskhand.doctor.gateway_probe import SIZE, Deviation, Gateway, demand, read
from deskhand.errors import DeskhandError

READ_S = 80.0
TIMEOUTS = RemoteTimeouts(step_s=60.0, max_attempts=2, initial_backoff_s=0.5)
EXPIRY_TTL_S, EXPIRY_SLACK_S = 2.0, 8.0
_FIX = "compare with Deskhand's desktop/remote/sandbox_api.openapi.yaml"


class Listed(JsonReply):
    sandboxes: list[SandboxReply]


async def _health(gateway: Gateway) -> str:
    reply = await gateway.ask("health", 200, key=None)
    demand("status" in read("health", lambda: json_object(reply)), "GET /v1/health: the reply has no status")
    return "needs no token"


async def _access(gateway: Gateway) -> str:
    for key in (None, "a-token-that-nobody-has-0123456789"):
        await gateway.ask("list", 401, key=key)
        await gateway.ask("create", 401, key=key, json={})
    return "requests without a valid token are 401"


async def _invalid(gateway: Gateway) -> str:
    bodies = (b"{", b"[]", b'{"other": 1}', b'{"ttl_s": -1}', b'{"width": 1}', b'{"width": true}')
    for body in bodies:
        await gateway.ask("create", 400, content=body)
    return f"{len(bodies)} invalid requests for a sandbox are 400"


async def _create(gateway: Gateway) -> str:
    request_id = secrets.token_hex(16)
    first = await gateway.create(request_id=request_id)
    again = await gateway.create(request_id=request_id)
    gateway.sandbox = first
    demand(again.id == first.id, "POST /v1/sandboxes: the same x-request-id created a second sandbox")
    demand(again.key == first.key, "POST /v1/sandboxes: the same x-request-id returned another key")
    return "the same x-request-id is the same sandbox"


async def _ready(gateway: Gateway) -> str:
    was_creating, deadline = False, asyncio.get_running_loop().time() + gateway.boot_s
    while True:
        reply = await gateway.ask("get", 200)
        found = read("get", lambda reply=reply: json_reply(reply, SandboxReply))
        if found.state == "ready":
            return "replies 503 to exec until it is ready" if was_creating else "ready at once"
        demand(found.state == "creating", f"the sandbox is {found.state}: {found.message}")
        demand(asyncio.get_running_loop().time() < deadline, f"not ready within {gateway.boot_s:g} s")
        early = await gateway.ask("exec", 200, 503, json={"argv": ["true"], "timeout_s": 5})
        if early.status_code == 503:  # 200 if it became ready meanwhile
            was_creating = True
            demand(is_own_refusal(early), "exec in a creating sandbox: 503 with another body than error and message")
            demand(retry_after(early.headers, 0.0) is not None, "exec in a creating sandbox: 503 without Retry-After")
        await asyncio.sleep(0.5)


async def _list(gateway: Gateway) -> str:
    reply = await gateway.ask("list", 200)
    listed = read("list", lambda: json_reply(reply, Listed)).sandboxes
    demand(gateway.sandbox and gateway.sandbox.id in [each.id for each in listed], "list: lacks the new sandbox")
    demand(not any(each.key for each in listed), "list: contains keys of sandboxes")
    return f"{len(listed)} sandboxes, without keys"


async def _keys(gateway: Gateway) -> str:
    assert gateway.sandbox is not None
    await gateway.ask("get", 200, key=gateway.sandbox.key)
    await gateway.ask("get", 401, key="a-key-that-nobody-has-0123456789")
    await gateway.ask("list", 401, key=gateway.sandbox.key)
    return "the key of a sandbox opens that sandbox only"


async def _renew(gateway: Gateway) -> str:
    reply = await gateway.ask("renew", 200, json={"ttl_s": 300})
    found = read("renew", lambda: json_reply(reply, SandboxReply))
    demand(found.ttl_s == 300, f"renew: ttl_s is {found.ttl_s:g} after a renewal for 300")
    await gateway.ask("renew", 400, json={"ttl_s": -1})
    return "sets ttl_s"


async def _exec(gateway: Gateway) -> str:
    done = await gateway.shell("printf 'a\\377'; printf '%s' \"$WORD\" >&2; exit 3", env={"WORD": "ü"})
    got = (done.returncode, done.stdout, done.stderr)
    demand(got == (3, b"a\xff", "ü".encode()), f"exec: expected (3, b'a\\xff', b'\\xc3\\xbc'), got {got}")
    home = await gateway.shell("cd && pwd; mkdir -p check/sub")
    for cwd, end in ((None, b""), ("check/sub", b"/check/sub"), ("/tmp", None)):
        at = (await gateway.exec(["pwd"], cwd=cwd)).stdout.strip()
        wanted = b"/tmp" if end is None else home.stdout.strip() + end
        demand(at == wanted, f"exec: with cwd {cwd} it runs in {at.decode()}, expected {wanted.decode()}")
    done = await gateway.shell('test -n "$HOME" && test -n "$DISPLAY"')
    demand(done.returncode == 0, "exec: HOME or DISPLAY is not set")
    return "exit code, bytes, variables and directory"


async def _exec_errors(gateway: Gateway) -> str:
    for body in (b"{", b"[]", b'{"argv": "ls", "timeout_s": 1}', b'{"argv": [1], "timeout_s": 1}', b'{"argv": ["id"]}'):
        await gateway.ask("exec", 400, content=body)
    body = {"argv": [f"/no-such-program-{secrets.token_hex(4)}"], "timeout_s": 5}
    reply = await gateway.ask("exec", 200, 404, json=body)
    if reply.status_code == 200:
        code = read("exec", lambda: json_reply(reply, CommandReply)).returncode
        demand(code == 127, f"exec: a program that does not exist has returncode {code}, expected 127 or a 404")
    return "invalid requests are 400, missing programs 127 or 404"


async def _time_limit(gateway: Gateway) -> str:
    name = f"check-{secrets.token_hex(4)}"
    done = await gateway.shell(f"printf before; sleep 4; touch {name}", timeout_s=1.0)
    demand(done.returncode == 124, f"exec: returncode {done.returncode} past timeout_s, expected 124")
    demand(done.stdout == b"before", "exec: the output before timeout_s is missing")
    gone = await gateway.shell(f"test ! -e {name} && sleep 5 && test ! -e {name}")
    demand(gone.returncode == 0, "exec: a program continues past timeout_s")
    return "124 and the output so far, and the program is gone"


async def _repeats(gateway: Gateway) -> str:
    name, request_id = f"check-{secrets.token_hex(4)}", secrets.token_hex(16)
    script = f"sleep 1; echo x >> {name}; cat {name}"
    both = await asyncio.gather(*(gateway.shell(script, request_id=request_id) for _ in range(2)))
    both.append(await gateway.shell(script, request_id=request_id))
    outputs = {each.stdout for each in both}
    demand(outputs == {b"x\n"}, f"exec: three requests with one x-request-id printed {sorted(outputs)}")
    for _ in range(2):
        await gateway.shell(f"echo y >> {name}")
    found = (await gateway.shell(f"cat {name}")).stdout
    demand(found == b"x\ny\ny\n", f"exec: two requests without x-request-id and one with it left {found!r}")
    return "one x-request-id is performed once, also while it runs"


async def _files(gateway: Gateway) -> str:
    folder = f"check-{secrets.token_hex(4)}"
    for name, data in ((f"{folder}/a b/ü.bin", secrets.token_bytes(3000)), (f"{folder}/empty", b"")):
        await gateway.ask("write", 200, params={"path": name}, content=data)
        back = await gateway.ask("read", 200, params={"path": name})
        kind = back.headers.get("content-type", "")
        demand(kind.startswith("application/octet-stream"), f"files: content-type {kind}, not octet-stream")
        demand(back.content == data, f"files: wrote {len(data)} bytes, read {len(back.content)} other ones")
        size = (await gateway.exec(["wc", "-c", name])).stdout.split()[:1]
        demand(size == [str(len(data)).encode()], "files: a relative path is not below the directory of exec")
    large = bytes(20 << 20)
    await gateway.ask("write", 200, params={"path": f"{folder}/large"}, content=large)
    back = await gateway.ask("read", 200, params={"path": f"{folder}/large"})
    demand(back.content == large, "files: a file of 20 MiB does not come back")
    await gateway.ask("read", 404, params={"path": f"{folder}/none"})
    await gateway.shell(f"rm -r {folder}")
    return "round trips, directories, 404"


async def _port(gateway: Gateway) -> str:
    async def guest(method: str, path: str, *statuses: int, **arguments: Any) -> httpx2.Response:
        return await gateway.ask(f"port{method}", *statuses, path={"port": 5000, "path": path}, **arguments)

    shot = await guest("Get", "screenshot", 200)
    demand(shot.content.startswith(b"\x89PNG\r\n\x1a\n"), "GET /screenshot: not a PNG")
    width, height = (int.from_bytes(shot.content[at : at + 4], "big") for at in (16, 20))
    reply = await guest("Post", "screen_size", 200)
    size = read("POST /screen_size", lambda: json_object(reply))
    demand((size.get("width"), size.get("height")) == (width, height), f"/screen_size {size}, PNG {width}x{height}")
    demand((width, height) == SIZE, f"the screen has {width}x{height} pixels, requested were {SIZE[0]}x{SIZE[1]}")
    home = (await gateway.shell("cd && pwd")).stdout.decode().strip()
    parts = {"file_data": ("file", b"port", "application/octet-stream")}
    await guest("Post", "setup/upload", 200, data={"file_path": f"{home}/check-port"}, files=parts)
    back = await guest("Post", "file", 200, data={"file_path": f"{home}/check-port"})
    demand(back.content == b"port", "POST /file: not what /setup/upload wrote")
    missing = await guest("Post", "file", 404, data={"file_path": f"{home}/check-none"})
    read("POST /file of a missing file", lambda: json_object(missing))
    await guest("Get", "%2e%2e/%2e%2e/x", 400, 404)
    return "screenshot, size and files of the guest's server"


async def _actions(gateway: Gateway) -> str:
    """Actions as the client performs them: programs that leave marks, so that a second copy does nothing."""
    assert gateway.sandbox is not None
    root = str(gateway.http.base_url).rstrip("/")
    url = f"{root}/v1/sandboxes/{gateway.sandbox.id}/ports/5000"
    client = RetryingClient(url, gateway.sandbox.key, timeouts=TIMEOUTS, transport=gateway.transport)
    desktop = OsworldDesktop(client, skip_reset=True, polling=ScreenPolling(0.1, 1.0, 1), ready_s=60.0)
    try:
        await desktop.reset(DesktopSpec(width=SIZE[0], height=SIZE[1]))
        for x, y in ((321, 123), (99, 600)):
            await desktop.perform([Move(Point(x, y, screen_px(*SIZE)))], action_id=f"{x}")
            at = await desktop.server.cursor_position()
            demand(at == (x, y), f"the pointer was moved to {x},{y} but is at {at[0]},{at[1]}")
        command = ["sh", "-c", "printf out; exit 5"]
        done = await desktop.run(command)
        demand((done.returncode, done.stdout) == (5, b"out"), f"POST /execute: a command ended with {done}")
    finally:
        await desktop.close()
    return "pointer and commands through the guest's server"


async def _delete(gateway: Gateway) -> str:
    await gateway.ask("delete", 200)
    for operation in ("get", "delete", "renew"):
        await gateway.ask(operation, 410)
    await gateway.ask("exec", 410, json={"argv": ["true"], "timeout_s": 5})
    await gateway.ask("read", 410, params={"path": "a"})
    return "everything is 410 afterwards"


async def _expiry(gateway: Gateway) -> str:
    short = await gateway.create(EXPIRY_TTL_S)
    await asyncio.sleep(EXPIRY_TTL_S + EXPIRY_SLACK_S)  # without looking: that may count as use
    await gateway.ask("get", 410, sandbox=short)
    return f"a sandbox with ttl_s {EXPIRY_TTL_S:g} is gone {EXPIRY_SLACK_S:g} s later"


Check = Callable[[Gateway], Awaitable[str]]
CHECKS: tuple[tuple[str, Check], ...] = (
    ("health", _health),
    ("access", _access),
    ("invalid", _invalid),
    ("create", _create),
    ("ready", _ready),
    ("list", _list),
    ("keys", _keys),
    ("renew", _renew),
    ("exec", _exec),
    ("exec errors", _exec_errors),
    ("exec time", _time_limit),
    ("exec once", _repeats),
    ("files", _files),
    ("port 5000", _port),
    ("actions", _actions),
    ("delete", _delete),
    ("expiry", _expiry),
)
ENDS_THE_TEST = ("health", "create", "ready")
"""Checks without which the following ones cannot run."""


async def check_gateway(
    url: str, token: str | None, *, boot_s: float = 300.0, transport: httpx2.AsyncBaseTransport | None = None
) -> list[ProbeResult]:
    """Return one result per check. Raises `ConfigError` for an invalid URL, certificate store or proxy."""
    results: list[ProbeResult] = []
    async with _opened(check_base_url(url, "gateway check"), token, boot_s, transport) as gateway:
        for name, check in CHECKS:
            try:
                results.append(ProbeResult(name, True, await check(gateway)))
            except (Deviation, DeskhandError, ValueError) as error:
                results.append(ProbeResult(name, False, " ".join(str(error).split())[:400], _FIX))
                if name in ENDS_THE_TEST:
                    break
        if left := await gateway.clean_up():
            about = f"{len(left)} sandboxes could not be deleted: {', '.join(left)[:200]}"
            results.append(ProbeResult("clean up", False, about, "delete them, or wait until they expire"))
    return results


@asynccontextmanager
async def _opened(
    url: str, token: str | None, boot_s: float, transport: httpx2.AsyncBaseTransport | None
) -> AsyncIterator[Gateway]:
    """Delete what the checks created, whatever happens."""
    async with open_http(url, transport, timeout=httpx2.Timeout(READ_S, connect=5.0)) as http:
        gateway = Gateway(http, token, boot_s, transport)
        try:
            yield gateway
        finally:
            await gateway.clean_up()
