"""`deskhand serve sandboxes`: one sandbox endpoint in front of several desktop servers."""

from __future__ import annotations

import os
from pathlib import Path

from deskhand.cli.common import check_tls
from deskhand.errors import ConfigError


def sandboxes(
    *servers: str,
    host: str = "127.0.0.1",
    port: int = 8750,
    tokens_file: Path,
    tls_certificate: Path | None = None,
    tls_key: Path | None = None,
) -> None:
    """Serve sandboxes of one or more desktop servers. Their admin key is read from DESKHAND_SERVER_API_KEY.

    Parameters
    ----------
    servers
        URLs of desktop servers (deskhand serve desktops), with ports.
    host
        Address to listen on.
    port
        Port to listen on; 0 selects a free one.
    tokens_file
        File that others cannot read, with one token per line, optionally followed by its maximum number of sandboxes.
    tls_certificate
        File with the certificate chain, for HTTPS.
    tls_key
        File with the certificate's private key.
    """
    from deskhand.desktop.remote.retrying_client import check_base_url
    from deskhand.server.api_keys import API_KEY_ENV, load_admin_key, read_private_file
    from deskhand.server.process import ServerConfig, run_until_signaled, serve_app
    from deskhand.server.sandbox_gateway import SandboxGatewayServer, UpstreamServer

    if not servers:
        raise ConfigError(
            "serve sandboxes: a desktop server is required, for example deskhand serve sandboxes http://127.0.0.1:8700 "
            "--tokens-file tokens.txt"
        )
    check_tls(tls_certificate, tls_key)
    tokens = parse_tokens(read_private_file(tokens_file), str(tokens_file))
    key = load_admin_key(None, os.environ)
    os.environ.pop(API_KEY_ENV, None)
    gateway = SandboxGatewayServer(
        [UpstreamServer(check_base_url(url, "URL of a desktop server"), key) for url in servers], tokens
    )

    async def main() -> None:
        settings = ServerConfig(host, port, certificate=tls_certificate, certificate_key=tls_key)
        async with serve_app(gateway.app(), settings) as (bound_port, ended):
            scheme = "https" if tls_certificate else "http"
            counts = f"{len(servers)} desktop servers, {len(tokens)} tokens"
            print(f"sandbox gateway at {scheme}://{host}:{bound_port}, {counts}", flush=True)
            try:
                await ended
            finally:
                await gateway.close()

    run_until_signaled(main, "its sandboxes are deleted")


def parse_tokens(text: str, file: str) -> dict[str, int | None]:
    """Return tokens with their quotas. Raises `ConfigError`, which names the line but no token."""
    from deskhand.server.api_keys import MIN_KEY_LENGTH

    tokens: dict[str, int | None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) > 2 or len(words[0]) < MIN_KEY_LENGTH or (len(words) == 2 and not words[1].isdecimal()):
            raise ConfigError(
                f"{file}:{number}: expected a token of at least {MIN_KEY_LENGTH} characters, "
                "optionally followed by a quota"
            )
        tokens[words[0]] = int(words[1]) if len(words) == 2 else None
    if not tokens:
        raise ConfigError(f"{file}: contains no token")
    return tokens
