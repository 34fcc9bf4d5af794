"""Tunnels to ports of a guest, for holders of the lease's key."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Any

import httpx2
import pytest
from patience import limit
from server_client import OWNER_KEY, Client, bearer, bridge, leased

from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.desktop.local.isolation import available_isolation
from deskhand.errors import ConfigError
from deskhand.integrations.desktop_env.port_forwarding import PortForwards, direct_connection, tunnel_connection
from deskhand.server.tunnel import MAX_TUNNELS

has_namespaces = available_isolation()[0] == "namespaces"
needs_namespaces = pytest.mark.skipif(not has_namespaces, reason="bubblewrap cannot create namespaces here")
PORT = 9222
ECHO = """
import socket, threading
def answer(one):
    one.sendall(b'first ')
    while data := one.recv(65536):
        one.sendall(data)
    one.close()
listener = socket.create_server(('127.0.0.1', 9222))
print('ready', file=open('ready', 'w'), flush=True)
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],)).start()
"""


async def echoing(desktop: Any) -> None:
    """A program in the guest that speaks first and then gives back what it is sent."""
    await desktop.launch(["python3", "-c", ECHO])
    done = await desktop.run(["sh", "-c", "until [ -s ready ]; do sleep 0.02; done"], timeout_s=20.0)
    assert done.returncode == 0


async def connect(
    client: Client, target: str, headers: dict[str, str]
) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
    """The first line of the answer to a CONNECT, and the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.lease["tunnels"])
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"CONNECT {target} HTTP/1.1\r\nhost: 127.0.0.1\r\n{lines}\r\n".encode())
    async with asyncio.timeout(limit(20)):
        return await reader.readline(), reader, writer


@needs_namespaces
async def test_a_tunnel_copies_both_ways_and_ends_with_its_lease():
    async with bridge() as running, leased(running) as client:
        await echoing(client.desktop)
        target = f"{client.lease['lease']}:{PORT}"
        for key in (client.lease["key"], OWNER_KEY):
            line, reader, writer = await connect(client, target, bearer(key))
            assert line == b"HTTP/1.1 200 Connection established\r\n"
            assert await reader.readline() == b"\r\n"
            assert await reader.readexactly(6) == b"first "
            sent = bytes(range(256)) * 4096
            writer.write(sent)
            assert await reader.readexactly(len(sent)) == sent
        await client.http.delete(f"/leases/{client.lease['lease']}")
        async with asyncio.timeout(limit(10)):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        line, _, _ = await connect(client, target, bearer(OWNER_KEY))
        assert line.startswith(b"HTTP/1.1 410")


async def test_a_tunnel_needs_the_key_of_its_lease():
    async with bridge(2) as running, leased(running) as client, leased(running) as other:
        target = f"{client.lease['lease']}:{PORT}"
        for headers in ({}, bearer("guess"), bearer(other.lease["key"])):
            assert (await connect(client, target, headers))[0].startswith(b"HTTP/1.1 401")
        for wrong, status in ((client.lease["lease"], b"401"), (f"{client.lease['lease']}:0", b"400"), ("x:1", b"401")):
            line, _, _ = await connect(client, wrong, bearer(client.lease["key"]))
            assert line.startswith(b"HTTP/1.1 " + status), (wrong, line)


@needs_namespaces
async def test_a_closed_guest_port_is_reported():
    async with bridge() as running, leased(running) as client:
        line, reader, _ = await connect(client, f"{client.lease['lease']}:1", bearer(client.lease["key"]))
        assert line.startswith(b"HTTP/1.1 502")
        assert b"guest port 1: Connection refused" in await reader.read()


@needs_namespaces
async def test_a_tunnel_leads_to_the_guest_and_not_to_the_host():
    with socket.create_server(("127.0.0.1", 0)) as of_the_host:
        of_the_host.settimeout(0.3)
        async with bridge() as running, leased(running) as client:
            port = of_the_host.getsockname()[1]
            line, _, _ = await connect(client, f"{client.lease['lease']}:{port}", bearer(client.lease["key"]))
            assert line.startswith(b"HTTP/1.1 502")
        with pytest.raises(TimeoutError):
            of_the_host.accept()


async def test_invalid_requests_get_no_tunnel():
    async with bridge() as running, leased(running) as client:
        for sent, answer in (
            (b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", b"HTTP/1.1 405"),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", b""),
            (b"CONNECT x:1 HTTP/1.1\r\nx: " + b"x" * 100_000, b""),
            (b"", b""),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.lease["tunnels"])
            writer.write(sent)
            writer.write_eof()
            async with asyncio.timeout(limit(5)):
                with contextlib.suppress(ConnectionError):
                    said = await reader.read()
                    assert said.startswith(answer)
                    assert answer or not said
            writer.close()


@needs_namespaces
async def test_tunnels_per_lease_are_limited():
    async with bridge() as running, leased(running) as client:
        await echoing(client.desktop)
        target = f"{client.lease['lease']}:{PORT}"
        opened = [await connect(client, target, bearer(client.lease["key"])) for _ in range(MAX_TUNNELS + 1)]
        assert [line.split()[1] for line, _, _ in opened] == [b"200"] * MAX_TUNNELS + [b"429"]
        for _, _, writer in opened:
            writer.close()


@needs_namespaces
async def test_a_forwarded_local_port_needs_no_key():
    async with bridge() as running, leased(running) as client:
        await echoing(client.desktop)
        way = tunnel_connection(
            "127.0.0.1", client.lease["tunnels"], False, f"{client.lease['lease']}:{PORT}", client.lease["key"]
        )
        door = direct_connection("127.0.0.1", client.lease["port"], False)
        forwards = await asyncio.to_thread(PortForwards, [way, door])
        inner, server = forwards.ports
        try:
            for _ in range(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", inner)
                async with asyncio.timeout(limit(10)):
                    assert await reader.readexactly(6) == b"first "
                    writer.write(b"hello")
                    writer.write_eof()
                    assert await reader.read() == b"hello"
            for headers, status in ((bearer(client.lease["key"]), 200), ({}, 401)):
                async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server}") as http:
                    assert (await http.get("/platform", headers=headers)).status_code == status
        finally:
            await asyncio.to_thread(forwards.close)
        for port in (inner, server):
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)


@needs_namespaces
async def test_a_port_forward_reaches_a_tls_server(certificate, monkeypatch):
    chain, private = certificate
    monkeypatch.setenv("SSL_CERT_FILE", str(chain))
    trusted = ssl.create_default_context(cafile=str(chain))
    async with bridge(certificate=chain, certificate_key=private) as running:
        address = f"https://localhost:{running.port}"
        async with httpx2.AsyncClient(
            base_url=address, verify=trusted, timeout=limit(60), headers=bearer(OWNER_KEY)
        ) as http:
            lease = (await http.post("/leases", json={})).json()
        held = running.leases.find(lease["lease"])
        assert held is not None
        await echoing(held.desktop)
        way = tunnel_connection("localhost", lease["tunnels"], True, f"{lease['lease']}:{PORT}", lease["key"])
        forwards = await asyncio.to_thread(PortForwards, [direct_connection("localhost", lease["port"], True), way])
        try:
            async with httpx2.AsyncClient(
                base_url=f"http://127.0.0.1:{forwards.ports[0]}", headers=bearer(lease["key"])
            ) as http:
                assert (await http.get("/platform")).text == "Linux"
            reader, writer = await asyncio.open_connection("127.0.0.1", forwards.ports[1])
            async with asyncio.timeout(limit(20)):
                assert await reader.readexactly(6) == b"first "
                sent = bytes(range(256)) * 4096
                writer.write(sent)
                assert await reader.readexactly(len(sent)) == sent
            writer.close()
        finally:
            await asyncio.to_thread(forwards.close)


async def test_a_guest_without_a_network_has_no_socket():
    desktop = LocalDesktop(isolation_level="plain")
    try:
        await desktop.reset(DesktopSpec("plain", 256, 192))
        with pytest.raises(ConfigError, match="isolation 'namespaces'"):
            await desktop.socket_inside()
    finally:
        await desktop.close()
