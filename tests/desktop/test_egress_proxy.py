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
