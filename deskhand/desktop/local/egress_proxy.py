"""The way out of a desktop: an HTTP proxy on the host that knows the destinations of a task.

Invariant: nothing but the destinations that a task names is ever connected to, and a name is never a way to the host or its
neighbours.

The box has a network of its own with nothing but a loopback. A listener is made inside it (`netns.py`) and served from here, so the
guest can neither replace nor end the proxy. There is no other way out and no name service in the box: what does not speak to an
HTTP proxy has no network.
"""

from __future__ import annotations

import contextlib
import ipaddress
import select
import socket
import threading
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from deskhand.errors import ConfigError

HEAD_LIMIT_BYTES = 16 * 1024
HEAD_TIMEOUT_S = 15.0
IDLE_TIMEOUT_S = 120.0
CONNECTIONS = 64
PORT = 3128
"""Of the guest's loopback."""
USUAL_PORTS = (80, 443)
_CHUNK = 64 * 1024


@dataclass(frozen=True)
class Destination:
    """A host name (`*.` in front: any name below it) or an address, and a port (None: the usual ones of the web)."""

    host: str
    port: int | None

    def allows(self, host: str, port: int) -> bool:
        if port != self.port and not (self.port is None and port in USUAL_PORTS):
            return False
        host = host.lower().rstrip(".")
        return host.endswith(self.host[1:]) if self.host.startswith("*.") else host == self.host


def parse_destination(text: str) -> Destination:
    """`example.org`, `*.example.org:443`, `127.0.0.1:8000`, `[::1]:8000`. Raises `ConfigError` for anything else."""
    parts = urlsplit(f"//{text}")
    try:
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    bare = host.removeprefix("*.")
    if (
        not bare
        or "*" in bare
        or parts.username
        or parts.path
        or parts.query
        or any(letter.isspace() for letter in text)
    ):
        raise ConfigError(
            f"network destination {text!r}: write a host name or an address, with :port where it is not 80 or 443"
        )
    return Destination(host.lower().rstrip("."), port)


def proxy_environment() -> dict[str, str]:
    """What tells the guest's programs of the gate."""
    address = f"http://127.0.0.1:{PORT}"
    inside = "localhost,127.0.0.1,::1"
    told = {"http_proxy": address, "https_proxy": address, "no_proxy": inside}
    return told | {name.upper(): value for name, value in told.items()}


class EgressProxy:
    """Serves `listener` (which it closes) until `close`. `refused` keeps the first destinations that were not allowed."""

    def __init__(self, listener: socket.socket, allowed: list[Destination]) -> None:
        self._listener = listener
        self._allowed = allowed
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self.refused: list[str] = []
        threading.Thread(target=self._accept, name="deskhand-gate", daemon=True).start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                full = len(self._open) >= CONNECTIONS
            if full:
                with client, contextlib.suppress(OSError):
                    client.settimeout(0.05)
                    client.recv(HEAD_LIMIT_BYTES)  # closed with something unread, the answer would be lost
                    _answer(client, "503 Too Many Connections")
            else:
                threading.Thread(
                    target=self._serve, args=(client,), name="deskhand-gate-connection", daemon=True
                ).start()

    @contextlib.contextmanager
    def _kept(self, connection: socket.socket):
        with self._lock:
            if self._closed:
                connection.close()
                raise OSError("the gate is closed")
            self._open.add(connection)
        try:
            yield connection
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), self._kept(client):
            head, rest = _read_head(client)
            method, target, version = head[0].split(" ", 2)
            tunnel = method.upper() == "CONNECT"
            parts = urlsplit(f"//{target}" if tunnel else target)
            host, port = parts.hostname, parts.port or (443 if tunnel else 80)
            if not host or (not tunnel and parts.scheme != "http"):
                _answer(client, "400 Bad Request")
                return
            address = self._address(host, port)
            if address is None:
                _answer(client, "403 Forbidden", f"{host}:{port} is not allowed to this desktop\n")
                return
            try:
                server = socket.create_connection(address, timeout=HEAD_TIMEOUT_S)
            except OSError as error:
                _answer(client, "502 Bad Gateway", f"{host}:{port}: {error.strerror or error}\n")
                return
            with self._kept(server):
                if tunnel:
                    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    server.sendall(rest)
                else:
                    server.sendall(
                        _request(method, parts.path or "/", parts.query, version, host, port, head[1:]) + rest
                    )
                _join(client, server)

    def _address(self, host: str, port: int) -> tuple[str, int] | None:
        """Where to connect to, or None when that is not allowed. A name may not lead to an address that is not public."""
        if not any(entry.allows(host, port) for entry in self._allowed):
            self._note(host, port)
            return None
        with contextlib.suppress(ValueError):
            return str(ipaddress.ip_address(host)), port
        for _, _, _, _, found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            if ipaddress.ip_address(found[0]).is_global:
                return str(found[0]), port
        self._note(host, port)
        return None

    def _note(self, host: str, port: int) -> None:
        if len(self.refused) < 100:
            self.refused.append(f"{host}:{port}")

    def close(self) -> None:
        """End every connection. Idempotent."""
        with self._lock:
            self._closed = True
            connections = [self._listener, *self._open]
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _read_head(client: socket.socket) -> tuple[list[str], bytes]:
    """The lines of a request up to the empty one, and what came after it. Raises `ValueError` or `OSError`."""
    data, deadline = b"", time.monotonic() + HEAD_TIMEOUT_S
    while b"\r\n\r\n" not in data:
        client.settimeout(max(0.01, deadline - time.monotonic()))
        chunk = client.recv(4096)
        data += chunk
        if not chunk or len(data) > HEAD_LIMIT_BYTES:
            raise ValueError("no request")
    head, _, rest = data.partition(b"\r\n\r\n")
    return head.decode("latin-1").split("\r\n"), rest


def _request(method: str, path: str, query: str, version: str, host: str, port: int, headers: list[str]) -> bytes:
    """A request as the server itself takes it: one connection, one request, so that no second destination slips in."""
    dropped = ("proxy-", "connection:", "keep-alive:", "host:", "upgrade:")
    kept = [line for line in headers if not line.lower().startswith(dropped)]
    name = f"[{host}]" if ":" in host else host
    lines = [
        f"{method} {path}{'?' + query if query else ''} {version}",
        f"Host: {name}{'' if port == 80 else f':{port}'}",
        *kept,
    ]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1")


def _answer(client: socket.socket, status: str, text: str = "") -> None:
    body = text.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with contextlib.suppress(OSError):
        client.sendall(head.encode() + body)


def _join(one: socket.socket, other: socket.socket) -> None:
    """Pass bytes both ways until both sides have ended or nothing has come for long."""
    waiting = select.poll()
    sides = {one.fileno(): (one, other), other.fileno(): (other, one)}
    for descriptor in sides:
        waiting.register(descriptor, select.POLLIN)
    for side in (one, other):
        side.settimeout(IDLE_TIMEOUT_S)
    open_sides = len(sides)
    while open_sides:
        ready = waiting.poll(IDLE_TIMEOUT_S * 1000)
        if not ready:
            return
        for descriptor, _ in ready:
            source, sink = sides[descriptor]
            data = source.recv(_CHUNK)
            if data:
                sink.sendall(data)
                continue
            waiting.unregister(descriptor)
            open_sides -= 1
            sink.shutdown(socket.SHUT_WR)
