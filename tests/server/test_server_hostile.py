"""Clients and guests that mean harm: what they send is bounded, stays in the guest, and gets an answer that tells
nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json

import httpx2
import pytest
import structlog
from patience import limit
from server_client import OWNER_KEY, bearer, bridge, leased

from deskhand.server.process import run_until_signaled
from deskhand.server.request_limits import RequestLimits


async def raw(port: int, data: bytes, *, wait_s: float = 5.0) -> bytes:
    """What the bridge answers to bytes on a connection that stays open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        async with asyncio.timeout(limit(wait_s)):
            return await reader.read()
    finally:
        writer.close()


async def test_a_head_that_never_ends_closes_its_connection():
    async with bridge(limits=RequestLimits(head_s=0.3)) as running:
        silent, slow = await asyncio.gather(
            raw(running.port, b""), raw(running.port, b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: ")
        )
        assert (silent, slow) == (b"", b"")
        whole = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
        reply = await raw(running.port, whole)
        assert reply.startswith(b"HTTP/1.1 200")


async def test_a_head_that_is_too_large_is_refused():
    async with bridge() as running:
        reply = await raw(
            running.port, b"GET /health HTTP/1.1\r\nhost: x\r\nx-big: " + b"x" * (RequestLimits.head_bytes + 1024)
        )
        assert reply.startswith(b"HTTP/1.1 400")


async def test_a_missing_body_times_out():
    async with bridge(limits=RequestLimits(body_s=0.3)) as running, leased(running) as client:
        head = (
            f"POST {client.osworld}/execute HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {client.lease['key']}\r\n"
            "content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        )
        reply = await raw(running.port, head.encode())
        assert reply.startswith(b"HTTP/1.1 408")
        assert (await client.get("/platform")).text == "Linux"


async def test_oversized_bodies_are_rejected_while_they_arrive():
    async def endless():
        while True:
            yield b" " * 65536

    async with (
        bridge(limits=RequestLimits(body_bytes=1 << 20, upload_bytes=2 << 20)) as running,
        leased(running) as client,
    ):
        with contextlib.suppress(httpx2.WriteError, httpx2.ReadError):
            reply = await client.post("/execute", content=endless(), headers={"content-type": "application/json"})
            assert reply.status_code == 413
        for size, status in ((2 << 20, 200), (3 << 20, 413)):
            reply = await client.post(
                "/setup/upload", data={"file_path": "~/big"}, files={"file_data": ("big", b"x" * size)}
            )
            assert reply.status_code == status
        assert len((await client.post("/file", data={"file_path": "~/big"})).content) == 2 << 20


async def test_malformed_bodies_get_the_status_of_the_original(client):
    kinds = {"content-type": "application/json"}
    for path in ("/execute", "/setup/launch", "/run_python", "/run_bash_script", "/list_directory", "/setup/open_file"):
        for body in (b"{", b"", b"\xff", b"[" * 100_000, b"[]", b"null"):
            status = 500 if body in (b"[]", b"null") else 400
            reply = await client.post(path, content=body, headers=kinds)
            assert reply.status_code == status, (path, body[:10])
        assert (await client.post(path, content=b"{}", headers={"content-type": "text/plain"})).status_code == 415
    for body in ({"command": 5}, {"command": [1]}, {"command": {"a": 1}}, {"command": None}, {"command": "'"}):
        assert (await client.post("/execute", json=body)).status_code == 500, body
    wrong = {"content-type": "multipart/form-data; boundary=x"}
    assert (await client.post("/setup/upload", content=b"--y\r\nnonsense", headers=wrong)).status_code == 400
    for method, path in (("GET", "/execute"), ("POST", "/screenshot"), ("PUT", "/file")):
        assert (await client.http.request(method, client.osworld + path)).status_code == 405
    assert (await client.get("/nothing")).status_code == 404


async def test_hostile_arguments_are_not_interpreted(client):
    plain = ["a\nb", "\\", '"', "-n", "*", "~", "é 中 🎉", "\x1b[31m", "x" * 100_000]
    for text in ("$(touch /tmp/a)", "`id`", "'; touch /tmp/a; '", *plain):
        reply = await client.post("/execute", json={"command": ["printf", "%s", text]})
        assert reply.json()["output"] == text
    assert (await client.post("/execute", json={"command": ["test", "-e", "/tmp/a"]})).json()["returncode"] == 1
    for word in ("\ud800", "x" * 200_000):
        body = json.dumps({"command": ["echo", word]}).encode()
        reply = await client.post("/execute", content=body, headers={"content-type": "application/json"})
        assert (reply.status_code, reply.json()["status"]) == (500, "error")


async def test_paths_stay_in_the_guest(client):
    secret = "/proc/self/environ"
    await client.post(
        "/execute",
        json={"command": "ln -s / ~/root; ln -s /etc/passwd ~/passwd; mkfifo ~/pipe; ln -s ~ ~/self", "shell": True},
    )
    home = client.running.leases.find(client.lease["lease"]).guest
    for path in ("~/root/etc/hostname", "~/passwd", "~/pipe", "~/../../etc/passwd\0", "~/self/self/passwd"):
        reply = await client.post("/file", data={"file_path": path})
        assert reply.status_code in (404, 500), path
    for path in ("~/root/tmp/out", "~/passwd", "~/pipe", "~/note/../../../tmp/../..", "/proc/1/mem"):
        reply = await client.post("/setup/upload", data={"file_path": path}, files={"file_data": ("x", b"x")})
        assert reply.status_code == 500, path
    if client.desktop.isolation_level == "namespaces":
        for path in ("/etc/passwd", "~/../../etc/passwd", "../../etc/passwd"):
            content = (await client.post("/file", data={"file_path": path})).text
            assert content.startswith("root:x:0:0:root:/root:/bin/sh\nuser:"), path
        environment = (await client.post("/file", data={"file_path": secret})).text
        assert OWNER_KEY not in environment
    assert await home.test("e", "~/nothing") is False


async def test_keys_appear_in_no_log_or_reply(capsys):
    with structlog.testing.capture_logs() as logs:
        async with bridge() as running, leased(running) as client:
            await client.http.get(f"/leases?key={OWNER_KEY}", headers=bearer("guess"))
            await client.get("/platform", headers=bearer(client.lease["key"] + "x"))
            listed = (await client.http.get("/leases", headers=bearer(OWNER_KEY))).text
            key = client.lease["key"]
    said = repr(logs) + "".join(capsys.readouterr())
    assert logs
    for secret in (OWNER_KEY, key):
        assert secret not in said
        assert secret not in listed


def test_tracebacks_of_a_server_show_no_keys(capsys):
    async def fail() -> None:
        key = OWNER_KEY
        try:
            raise KeyError(len(key))
        except KeyError:
            structlog.get_logger().exception("server.failed")

    structlog.reset_defaults()
    run_until_signaled(fail, "")
    structlog.reset_defaults()
    said = capsys.readouterr()
    assert "KeyError" in said.out
    assert OWNER_KEY not in said.out + said.err


async def test_a_client_that_disconnects_while_it_waits_gets_no_desktop():
    async with (
        bridge(idle_s=600) as running,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{running.port}", timeout=limit(60)) as http,
    ):
        first = (await http.post("/leases", json={}, headers=bearer(OWNER_KEY))).json()
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        head = f"POST /leases HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {OWNER_KEY}\r\n"
        writer.write(f"{head}content-length: 2\r\n\r\n{{}}".encode())
        await asyncio.sleep(0.3)
        writer.close()
        await writer.wait_closed()
        await http.delete(f"/leases/{first['lease']}", headers=bearer(OWNER_KEY))
        reply = await http.post("/leases", json={"wait_s": 20}, headers=bearer(OWNER_KEY))
        assert reply.status_code == 201
        assert reply.json()["epoch"] > first["epoch"]


async def test_a_dead_desktop_is_an_outage(client):
    from deskhand.desktop.local import processes

    processes.kill(client.desktop._session.x_server.process.pid)
    reply = await client.get("/screenshot")
    assert (reply.status_code, reply.json()["status"]) == (503, "error")
    act = {"command": ["python", "-c", "import pyautogui; pyautogui.press('a')"]}
    reply = await client.post("/execute", json=act)
    assert reply.status_code in (200, 503)
    assert "failed" in reply.text


async def test_a_disconnected_client_leaves_the_server_running(client):
    slow = asyncio.create_task(client.post("/execute", json={"command": ["sleep", "2"]}))
    await asyncio.sleep(0.2)
    slow.cancel()
    assert (await client.post("/execute", json={"command": ["echo", "on"]})).json()["output"] == "on\n"


@pytest.mark.parametrize(
    "body",
    [
        "[]",
        "{",
        '{"wait_s": -1}',
        '{"wait_s": true}',
        '{"extra": 1}',
        '{"spec": {"width": "1"}}',
        '{"spec": 5}',
    ],
)
async def test_an_invalid_lease_request_is_rejected_with_a_reason(body):
    async with bridge() as running, httpx2.AsyncClient(base_url=f"http://127.0.0.1:{running.port}") as http:
        reply = await http.post("/leases", content=body, headers=bearer(OWNER_KEY))
        assert reply.status_code == 400
        assert reply.json()["error"]
