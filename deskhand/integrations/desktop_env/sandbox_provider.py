"""Provider that gives OSWorld's own `desktop_env.DesktopEnv` sandboxes of a gateway.

    register_sandbox_provider()   # OSWORLD_SANDBOX_ENDPOINT and OSWORLD_SANDBOX_TOKEN
    env = DesktopEnv(provider_name="docker", screen_size=(1280, 720))

`desktop-env` knows host and port only, so a loopback server forwards its requests to the sandbox's port 5000 with the
sandbox's key; while it runs, every local program can reach that sandbox. Every revert is a new sandbox. Standard
library only; waits as long as the quota is exceeded.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import logging
import os
import threading
import time
import uuid
from typing import Any

from deskhand.errors import ConfigError, InfrastructureError
from deskhand.integrations.desktop_env.server_provider import (
    STARTED_CLEAN,
    LeaseProvider,
    LeaseServer,
    replace_provider,
)

ENDPOINT, TOKEN = "OSWORLD_SANDBOX_ENDPOINT", "OSWORLD_SANDBOX_TOKEN"
TTL_S = 120.0
RENEWALS_PER_TTL = 4
BOOT_TIMEOUT_S = 600.0
WARN_S = 15 * 60.0
QUOTA_STATUS = (429, 503)


class SandboxProvider(LeaseProvider):
    """Sandboxes of a gateway; only their in-VM server is available."""

    def __init__(self, endpoint: str, token: str | None) -> None:
        super().__init__(LeaseServer(endpoint, token, "the sandbox gateway"))

    def _take(self, width: int, height: int, held: contextlib.ExitStack) -> list[int]:
        """Create a sandbox and wait until it is ready. It is renewed until it is released."""
        sandbox = self._create({"width": width, "height": height, "ttl_s": TTL_S})
        path, deadline = f"/v1/sandboxes/{sandbox['id']}", time.monotonic() + BOOT_TIMEOUT_S
        held.callback(self._server.end, path)
        while sandbox["state"] == "creating" and time.monotonic() < deadline:
            time.sleep(1.0)
            sandbox |= self._server.ask("GET", path, None)[2]
        if sandbox["state"] != "ready":
            raise InfrastructureError(f"sandbox {sandbox['id']} is {sandbox['state']}: {sandbox.get('message', '')}")
        over, forwarder = threading.Event(), _forwarder(self._server, sandbox)
        held.callback(forwarder.server_close)
        threading.Thread(target=forwarder.serve_forever, daemon=True).start()
        held.callback(forwarder.shutdown)
        threading.Thread(target=self._renew, args=(path, over), daemon=True).start()
        held.callback(over.set)
        return [forwarder.server_address[1]] * 4

    def _create(self, body: dict[str, Any]) -> dict[str, Any]:
        warn_at, request_id = time.monotonic() + WARN_S, uuid.uuid4().hex
        while True:
            status, told, said = self._server.ask("POST", "/v1/sandboxes", body, request_id)
            if status not in QUOTA_STATUS:
                self._server.check("POST /v1/sandboxes", status, said)
                return said
            if time.monotonic() > warn_at:
                warn_at = time.monotonic() + WARN_S
                logging.getLogger(__name__).warning("sandbox quota exceeded (%s); still waiting", status)
            wait = told.get("retry-after", "")
            time.sleep(min(60.0, float(wait)) if wait.replace(".", "", 1).isdecimal() else 5.0)

    def _renew(self, path: str, over: threading.Event) -> None:
        while not over.wait(TTL_S / RENEWALS_PER_TTL):
            with contextlib.suppress(InfrastructureError):
                self._server.ask("POST", f"{path}/renew", {"ttl_s": TTL_S})


def _forwarder(gateway: LeaseServer, sandbox: dict[str, Any]) -> http.server.ThreadingHTTPServer:
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
    """Let `DesktopEnv(provider_name=name)` use the gateway at `endpoint` (default: from the environment). Raises
    `ConfigError`."""
    if endpoint is None:
        endpoint, token = os.environ.get(ENDPOINT, ""), os.environ.get(TOKEN)
    if not endpoint:
        raise ConfigError(f"{ENDPOINT} is not set; set it to the URL of the sandbox gateway")
    place, key = endpoint, token
    SandboxProvider(place, key)
    replace_provider(name, lambda: SandboxProvider(place, key))
