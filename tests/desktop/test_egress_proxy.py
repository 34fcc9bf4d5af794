"""Egress proxy: allowed and denied destinations, malformed requests."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from patience import limit

from deskhand.desktop.local import egress_proxy
from deskhand.desktop.local.egress_proxy import Destination, EgressProxy, parse_destination
from deskhand.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "port", "allowed"),
    [
        ("example.org", "example.org", 443, True),
        ("example.org", "EXAMPLE.org.", 80, True),
        ("example.org", "example.org", 22, False),
        ("example.org", "www.example.org", 443, False),
        ("example.org", "example.org.evil.test", 443, False),
        ("*.example.org", "www.example.org", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "notexample.org", 443, False),
        ("example.org:8080", "example.org", 8080, True),
        ("example.org:8080", "example.org", 443, False),
        ("[::1]:8000", "::1", 8000, True),
    ],
)
def test_a_destination_matches_exactly(text, host, port, allowed):
    assert parse_destination(text).allows(host, port) is allowed


@pytest.mark.parametrize(
    "text", ["", "*", "a*b.org", "http://x.org", "x.org/path", "x.org:99999", "u@x.org", "x y", "*.", "x.org:port"]
)
def test_invalid_destinations_are_rejected(text):
    with pytest.raises(ConfigError, match="network: invalid destination"):
        parse_destination(text)


@pytest.fixture
def opened() -> Iterator[tuple[EgressProxy, int]]:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    made = EgressProxy(listener, [Destination("localhost", None), Destination("127.0.0.1", 9)])
    yield made, port
    made.close()


def ask(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=limit(5)) as client:
        client.sendall(data)
        with suppress(OSError):  # the proxy may have closed the connection already
            client.shutdown(socket.SHUT_WR)
        found = b""
        while chunk := client.recv(4096):
            found += chunk
        return found


def test_an_allowed_name_that_resolves_to_the_host_is_denied(opened):
    made, port = opened
    assert ask(port, b"CONNECT localhost:443 HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 403")
    assert made.refused == ["localhost:443"]


def test_an_allowed_address_without_a_listener_is_a_bad_gateway(opened):
    assert ask(opened[1], b"CONNECT 127.0.0.1:9 HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 502")


def heads(filler: bytes) -> bytes:
    return b"GET http://127.0.0.1:9/ HTTP/1.1" + filler + b"Host: other.test\r\n\r\n"


@pytest.mark.parametrize(
    "filler", [b"\r\nX: y\n", b"\r\nX: y\r", b"\n", b"\r\nX: y\r\n\t", b"\r\nX: \0\r\n", b"\r\nHost :"]
)
def test_a_head_that_servers_may_split_otherwise_gets_no_connection(opened, filler):
    """The listener's answer would be 502: nothing listens at the allowed address."""
    assert ask(opened[1], heads(b"\r\n")).startswith(b"HTTP/1.1 502")
    try:
        answer = ask(opened[1], heads(filler))
    except ConnectionError:
        answer = b""
    assert answer == b""


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:4700::1111", True),
        ("64:ff9b::5db8:d822", True),
        ("2002:5db8:d822::1", True),
        ("10.0.0.1", False),
        ("64:ff9b::a00:1", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("64:ff9b:1::5db8:d822", False),
        ("2002:a00:1::1", False),
        ("2002:7f00:1::", False),
        ("::ffff:10.0.0.1", False),
        ("::1", False),
        ("fe80::1%1", False),
    ],
)
def test_a_name_may_not_resolve_to_a_private_address_in_any_form(opened, monkeypatch, address, public):
    """The resolver is the machine's own, which a test cannot make give these."""
    found = [(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert opened[0]._resolve("localhost", 443) == ((address, 443) if public else None)


INVALID_REQUESTS = [b"", b"\0\1\2\3\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"A" * 40_000]


@pytest.mark.parametrize("data", [*INVALID_REQUESTS, b"GET ftp://localhost/ HTTP/1.1\r\n\r\n"])
def test_invalid_requests_get_no_connection(opened, data):
    try:
        answer = ask(opened[1], data)
    except ConnectionError:
        answer = b""
    assert answer == b"" or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 403"))


def test_excess_connections_get_503_and_close_ends_all(opened, monkeypatch):
    made, port = opened
    monkeypatch.setattr(egress_proxy, "MAX_CONNECTIONS", 2)
    waiting = [socket.create_connection(("127.0.0.1", port), timeout=limit(5)) for _ in range(2)]
    deadline = time.monotonic() + limit(5)
    while len(made._open) < 2:
        assert time.monotonic() < deadline
    assert ask(port, b"GET http://localhost/ HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 503")
    made.close()
    assert [client.recv(1) for client in waiting] == [b"", b""]
    for client in waiting:
        client.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=limit(1))
