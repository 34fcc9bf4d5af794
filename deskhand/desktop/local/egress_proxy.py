"""Egress proxy: an HTTP proxy on the host that allows only a task's network destinations.

The jail's network has only a loopback interface. A listener is created inside it (`network_namespace`) and served from
the host, so guests can neither replace nor stop the proxy. There is no other route and no DNS in the jail: programs
that do not use the HTTP proxy have no network.

Invariant: only destinations named by the task are connected to, and a name never resolves to a private address.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import select
import socket
import threading
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from deskhand.errors import ConfigError

MAX_HEAD_BYTES = 16 * 1024
HEAD_TIMEOUT_S = 15.0
IDLE_TIMEOUT_S = 120.0
MAX_CONNECTIONS = 64
PORT = 3128
"""Proxy port on the guest's loopback interface."""
DEFAULT_PORTS = (80, 443)
_CHUNK = 64 * 1024
_TOKEN, _TEXT = r"[!#$%&'*+.^_`|~\w-]+", r"[^\r\n\0]*"
_REQUEST_LINE = re.compile(rf"{_TOKEN} [^\s\0]+ HTTP/1\.[01]", re.ASCII)
_HEADER = re.compile(rf"{_TOKEN}:{_TEXT}", re.ASCII)
"""Servers may take a bare CR or LF for the end of a line, or ignore white space around a name (RFC 9112, 5.1), and so
see a header that was not checked."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""IPv4 hosts behind a NAT64 translator: the last 32 bits are their address."""
_NAT64_LOCAL = ipaddress.IPv6Network("64:ff9b:1::/48")


@dataclass(frozen=True)
class Destination:
    """A host name (`*.` prefix: any subdomain) or address, and a port (None: 80 and 443)."""

    host: str
    port: int | None

    def allows(self, host: str, port: int) -> bool:
        if port != self.port and not (self.port is None and port in DEFAULT_PORTS):
            return False
        host = host.lower().rstrip(".")
        return host.endswith(self.host[1:]) if self.host.startswith("*.") else host == self.host


def parse_destination(text: str) -> Destination:
    """Parse `example.org`, `*.example.org:443`, `127.0.0.1:8000` or `[::1]:8000`. Raises `ConfigError`."""
    parts = urlsplit(f"//{text}")
    try:
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    bare = host.removeprefix("*.")
    if not bare or "*" in bare or parts.username or parts.path or parts.query or re.search(r"\s", text):
        raise ConfigError(f"network: invalid destination {text!r}; use HOST or HOST:PORT")
    return Destination(host.lower().rstrip("."), port)


def proxy_environment() -> dict[str, str]:
    """Return the proxy variables of guest programs."""
    address = f"http://127.0.0.1:{PORT}"
    local_hosts = "localhost,127.0.0.1,::1"
    variables = {"http_proxy": address, "https_proxy": address, "no_proxy": local_hosts}
    return variables | {name.upper(): value for name, value in variables.items()}


class EgressProxy:
    """Serves `listener` (and closes it) until `close`. `refused` lists the first destinations that were denied."""

    def __init__(self, listener: socket.socket, allowed: list[Destination]) -> None:
        self._listener = listener
        self._allowed = allowed
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self.refused: list[str] = []
        threading.Thread(target=self._accept, name="deskhand-egress", daemon=True).start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if len(self._open) >= MAX_CONNECTIONS:
                with client, contextlib.suppress(OSError):
                    client.settimeout(0.05)
                    client.recv(MAX_HEAD_BYTES)  # closing with unread data would discard the response
                    _respond(client, "503 Too Many Connections")
            else:
                threading.Thread(target=self._serve, args=(client,), name="deskhand-egress", daemon=True).start()

    @contextlib.contextmanager
    def _tracked(self, connection: socket.socket):
        with self._lock:
            if self._closed:
                connection.close()
                raise OSError("the proxy is closed")
            self._open.add(connection)
        try:
            yield connection
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), self._tracked(client):
            head, rest = _read_head(client)
            method, target, version = head[0].split(" ", 2)
            tunnel = method.upper() == "CONNECT"
            parts = urlsplit(f"//{target}" if tunnel else target)
            host, port = parts.hostname, parts.port or (443 if tunnel else 80)
            if not host or (not tunnel and parts.scheme != "http"):
                _respond(client, "400 Bad Request")
                return
            address = self._resolve(host, port)
            if address is None:
                _respond(client, "403 Forbidden", f"{host}:{port} is not allowed to this desktop\n")
                return
            try:
                server = socket.create_connection(address, timeout=HEAD_TIMEOUT_S)
            except OSError as error:
                _respond(client, "502 Bad Gateway", f"{host}:{port}: {error.strerror or error}\n")
                return
            with self._tracked(server):
                if tunnel:
                    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    server.sendall(rest)
                else:
                    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
                    server.sendall(_rewrite_request(f"{method} {path} {version}", host, port, head[1:]) + rest)
                _relay(client, server)

    def _resolve(self, host: str, port: int) -> tuple[str, int] | None:
        """Return the address to connect to, or None if it is denied. Names must resolve to a public address."""
        if any(entry.allows(host, port) for entry in self._allowed):
            with contextlib.suppress(ValueError):
                return str(ipaddress.ip_address(host)), port
            for _, _, _, _, found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                if _is_public(str(found[0])):
                    return str(found[0]), port
        if len(self.refused) < 100:
            self.refused.append(f"{host}:{port}")
        return None

    def close(self) -> None:
        """Close every connection. Idempotent."""
        with self._lock:
            self._closed = True
            connections = [self._listener, *self._open]
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _read_head(client: socket.socket) -> tuple[list[str], bytes]:
    """Return the header lines of a request and the bytes after them. Raises `ValueError` or `OSError`."""
    data, deadline = b"", time.monotonic() + HEAD_TIMEOUT_S
    while b"\r\n\r\n" not in data:
        client.settimeout(max(0.01, deadline - time.monotonic()))
        chunk = client.recv(4096)
        data += chunk
        if not chunk or len(data) > MAX_HEAD_BYTES:
            raise ValueError("incomplete request")
    head, _, rest = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    if not (_REQUEST_LINE.fullmatch(lines[0]) and all(_HEADER.fullmatch(line) for line in lines[1:])):
        raise ValueError("servers may read a line of the head differently")
    return lines, rest


def _is_public(text: str) -> bool:
    """Return whether an address is public, and also the IPv4 address that a translator or tunnel takes from it."""
    address = ipaddress.ip_address(text.partition("%")[0])
    inner = None
    if isinstance(address, ipaddress.IPv6Address):
        packed = ipaddress.IPv4Address(address.packed[-4:]) if address in _NAT64 else None
        inner = packed or address.ipv4_mapped or address.sixtofour
    return address.is_global and address not in _NAT64_LOCAL and (inner is None or inner.is_global)


def _rewrite_request(request: str, host: str, port: int, headers: list[str]) -> bytes:
    """Return an origin-form request with `Connection: close`, so that no second destination can follow."""
    dropped = ("proxy-", "connection:", "keep-alive:", "host:", "upgrade:")
    forwarded = [line for line in headers if not line.lower().startswith(dropped)]
    name = f"[{host}]" if ":" in host else host
    lines = [request, f"Host: {name}{'' if port == 80 else f':{port}'}", *forwarded, "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1")


def _respond(client: socket.socket, status: str, text: str = "") -> None:
    body = text.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with contextlib.suppress(OSError):
        client.sendall(head.encode() + body)


def _relay(one: socket.socket, other: socket.socket) -> None:
    """Copy bytes in both directions until both sides have closed or are idle for `IDLE_TIMEOUT_S`."""
    poller = select.poll()
    sides = {one.fileno(): (one, other), other.fileno(): (other, one)}
    for descriptor, (side, _) in sides.items():
        poller.register(descriptor, select.POLLIN)
        side.settimeout(IDLE_TIMEOUT_S)
    open_sides = len(sides)
    while open_sides:
        ready = poller.poll(IDLE_TIMEOUT_S * 1000)
        if not ready:
            return
        for descriptor, _ in ready:
            source, sink = sides[descriptor]
            data = source.recv(_CHUNK)
            if data:
                sink.sendall(data)
                continue
            poller.unregister(descriptor)
            open_sides -= 1
            sink.shutdown(socket.SHUT_WR)
