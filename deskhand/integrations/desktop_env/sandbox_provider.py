"""OSWorld's own `desktop_env.DesktopEnv` on the sandboxes of a gateway. Invariant: as of `desktop_env_provider`: one function of
`desktop-env` is replaced, and no key stands in an address.

    register_gateway()   # OSWORLD_SANDBOX_ENDPOINT and OSWORLD_SANDBOX_TOKEN
    env = DesktopEnv(provider_name="docker", screen_size=(1280, 720))

`desktop-env` knows a host and a port only, so a small server on this machine's loopback passes its requests on to the sandbox's
port 5000, with the sandbox's key; while it runs, every program of this machine reaches that sandbox. Every revert is a new sandbox.
It runs on Python's standard library alone; a full gateway is asked again when it says so, for as long as it takes.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import http.server
import json
import logging
import os
import threading
import time
import uuid
from typing import Any
from urllib.parse import urlsplit

from deskhand.errors import ConfigError, InfrastructureError
from deskhand.integrations.desktop_env.server_provider import STARTED_CLEAN, ServerVMManager, replace_provider

ENDPOINT, TOKEN = "OSWORLD_SANDBOX_ENDPOINT", "OSWORLD_SANDBOX_TOKEN"
TTL_S = 120.0
BEATS = 4
BOOT_S = 600.0
WARN_S = 15 * 60.0
LONGEST_REPLY_S = 150.0
FULL = (429, 503)


class _Gateway:
    """Requests to the gateway at `endpoint`."""

    def __init__(self, endpoint: str, token: str | None) -> None:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ConfigError("the sandbox endpoint must be http://host:port or https://host:port, without a key in it")
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._place, self._root = (parts.hostname, parts.port), parts.path.rstrip("/")
        self.token = token

    def send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], key: str | None
    ) -> tuple[int, dict[str, str], bytes]:
        """(status, headers, body). Raises `OSError` and `http.client.HTTPException`."""
        connection = self._kind(*self._place, timeout=LONGEST_REPLY_S)
        try:
            shown = {"authorization": f"Bearer {key or self.token}"} if key or self.token else {}
            connection.request(method, self._root + path, body, headers | shown)
            reply = connection.getresponse()
            return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
        finally:
            connection.close()

    def ask(
        self, method: str, path: str, body: dict[str, Any] | None, request_id: str = ""
    ) -> tuple[int, dict[str, str], Any]:
        """The same with JSON. Raises `InfrastructureError` when nobody answers."""
        headers = {"content-type": "application/json"} | ({"x-request-id": request_id} if request_id else {})
        try:
            status, told, data = self.send(
                method, path, json.dumps(body).encode() if body is not None else None, headers, None
            )
            return status, told, json.loads(data or b"{}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise InfrastructureError(f"{method} {path} of the sandbox gateway: {type(error).__name__}") from error


class SandboxProvider:
    """What `DesktopEnv` asks of a `Provider`: each start is a sandbox."""

    def __init__(self, endpoint: str, token: str | None) -> None:
        self._gateway = _Gateway(endpoint, token)
        self._sandbox: dict[str, Any] | None = None
        self._server: http.server.ThreadingHTTPServer | None = None
        self._over = threading.Event()

    def start_emulator(self, path_to_vm: str, headless: bool = True, os_type: str = "Ubuntu") -> None:
        """Create a sandbox, unless there is one, and wait until it is ready. Raises `InfrastructureError`."""
        if self._sandbox is not None:
            return
        width, height = map(int, path_to_vm.removeprefix("deskhand:").split("x"))
        sandbox = self._create({"width": width, "height": height, "ttl_s": TTL_S})
        deadline = time.monotonic() + BOOT_S
        while sandbox["state"] == "creating" and time.monotonic() < deadline:
            time.sleep(1.0)
            sandbox |= self._gateway.ask("GET", f"/v1/sandboxes/{sandbox['id']}", None)[2]
        self._sandbox = sandbox
        if sandbox["state"] != "ready":
            self.stop_emulator()
            raise InfrastructureError(f"sandbox {sandbox['id']} is {sandbox['state']}: {sandbox.get('message', '')}")
        self._over = threading.Event()
        self._server = _forwarder(self._gateway, sandbox)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        threading.Thread(target=self._renew, args=(sandbox["id"], self._over), daemon=True).start()
        atexit.register(self.stop_emulator)

    def _create(self, body: dict[str, Any]) -> dict[str, Any]:
        warn_at, request_id = time.monotonic() + WARN_S, uuid.uuid4().hex
        while True:
            status, told, said = self._gateway.ask("POST", "/v1/sandboxes", body, request_id)
            if status == 201:
                return said
            if status not in FULL:
                raise InfrastructureError(
                    f"POST /v1/sandboxes of the sandbox gateway: {status} {said.get('error', '')}"
                )
            if time.monotonic() > warn_at:
                warn_at = time.monotonic() + WARN_S
                logging.getLogger(__name__).warning("the sandbox gateway has no room: %s; still waiting", status)
            wait = told.get("retry-after", "")
            time.sleep(min(60.0, float(wait)) if wait.replace(".", "", 1).isdecimal() else 5.0)

    def _renew(self, sandbox: str, over: threading.Event) -> None:
        while not over.wait(TTL_S / BEATS):
            with contextlib.suppress(InfrastructureError):
                self._gateway.ask("POST", f"/v1/sandboxes/{sandbox}/renew", {"ttl_s": TTL_S})

    def get_ip_address(self, path_to_vm: str) -> str:
        """`host:server:chromium:vnc:vlc`; only the in-VM server is there."""
        if self._server is None:
            raise InfrastructureError("there is no sandbox; start_emulator comes first")
        return ":".join(["127.0.0.1", *[str(self._server.server_address[1])] * 4])

    def save_state(self, path_to_vm: str, snapshot_name: str) -> None:
        raise NotImplementedError("the gateway keeps no snapshots; every sandbox begins in its start state")

    def revert_to_snapshot(self, path_to_vm: str, snapshot_name: str) -> str:
        """End the sandbox; the next start creates a new one."""
        self.stop_emulator(path_to_vm)
        return path_to_vm

    def stop_emulator(self, path_to_vm: str = "", *arguments: Any) -> None:
        """End the sandbox. Idempotent; one that cannot be ended now ends by itself."""
        sandbox, self._sandbox = self._sandbox, None
        server, self._server = self._server, None
        self._over.set()
        atexit.unregister(self.stop_emulator)
        if server is not None:
            server.shutdown()
            server.server_close()
        if sandbox is not None:
            with contextlib.suppress(InfrastructureError):
                self._gateway.ask("DELETE", f"/v1/sandboxes/{sandbox['id']}", None)


def _forwarder(gateway: _Gateway, sandbox: dict[str, Any]) -> http.server.ThreadingHTTPServer:
    """A server on a free port of the loopback that passes requests on to the sandbox's port 5000."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {
                name: value for name, value in self.headers.items() if name.lower() in ("content-type", "accept")
            }
            path = f"/v1/sandboxes/{sandbox['id']}/ports/5000{self.path}"
            try:
                status, told, data = gateway.send(self.command, path, body or None, headers, sandbox.get("key"))
            except (OSError, http.client.HTTPException):
                status, told, data = 502, {}, b""
            self.send_response(status)
            self.send_header("content-type", told.get("content-type", "text/plain"))
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = pass_on

        def log_message(self, format: str, *arguments: Any) -> None:
            return

    return http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def register_sandbox_provider(
    endpoint: str | None = None, token: str | None = None, *, name: str = STARTED_CLEAN
) -> None:
    """Let `DesktopEnv(provider_name=name)` use the gateway at `endpoint` (left out: the environment's). Raises `ConfigError`."""
    if endpoint is None:
        endpoint, token = os.environ.get(ENDPOINT, ""), os.environ.get(TOKEN)
    if not endpoint:
        raise ConfigError(f"{ENDPOINT} is not set; give the address of the sandbox gateway")
    _Gateway(endpoint, token)
    place, key = endpoint, token
    replace_provider(name, lambda: (ServerVMManager(), SandboxProvider(place, key)))
