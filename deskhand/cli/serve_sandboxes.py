"""The command `deskhand gateway`. Invariant: it does not listen without tokens, and keys come from variables and files alone."""

from __future__ import annotations

import os
from pathlib import Path


def gateway(
    *bridges: str,
    host: str = "127.0.0.1",
    port: int = 8750,
    tokens_file: Path,
    tls_certificate: Path | None = None,
    tls_key: Path | None = None,
) -> None:
    """Serve the sandbox gateway's protocol in front of bridges; their owners' key is read from DESKHAND_SERVER_API_KEY.

    Parameters
    ----------
    bridges
        Addresses of bridges (deskhand serve), with ports.
    host
        The address to listen on.
    port
        The port to listen on; 0 takes a free one.
    tokens_file
        A file that others cannot read: a token a line, and after it, if it has a quota, how many sandboxes it may have at a time.
    tls_certificate
        A file with the certificate chain, for HTTPS.
    tls_key
        A file with the certificate's private key.
    """
    from deskhand.desktop.remote.retrying_client import check_base_url
    from deskhand.errors import ConfigError
    from deskhand.server.api_keys import API_KEY_ENV, load_admin_key, read_private_file
    from deskhand.server.process import run_until_signaled, serve_app
    from deskhand.server.sandbox_gateway import SandboxGatewayServer, UpstreamServer

    if not bridges:
        raise ConfigError(
            "no bridge was named; for instance: deskhand gateway http://127.0.0.1:8700 --tokens-file tokens.txt"
        )
    if (tls_certificate is None) != (tls_key is None):
        raise ConfigError("--tls-certificate and --tls-key belong together; give both")
    tokens = tokens_of(read_private_file(tokens_file), str(tokens_file))
    key = load_admin_key(None, os.environ)
    os.environ.pop(API_KEY_ENV, None)
    server = SandboxGatewayServer(
        [UpstreamServer(check_base_url(each, "a bridge's address"), key) for each in bridges], tokens
    )

    async def main() -> None:
        async with serve_app(server.app(), host, port, certificate=tls_certificate, certificate_key=tls_key) as (
            taken,
            ended,
        ):
            scheme = "https" if tls_certificate else "http"
            print(f"gateway on {scheme}://{host}:{taken}, {len(bridges)} bridges, {len(tokens)} tokens", flush=True)
            try:
                await ended
            finally:
                await server.close()

    run_until_signaled(main, "its sandboxes are ended")


def tokens_of(text: str, file: str) -> dict[str, int | None]:
    """Tokens with their quotas. Raises `ConfigError`, which names the line and no token."""
    from deskhand.errors import ConfigError
    from deskhand.server.api_keys import MIN_KEY_LENGTH

    found: dict[str, int | None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) > 2 or len(words[0]) < MIN_KEY_LENGTH or (len(words) == 2 and not words[1].isdecimal()):
            raise ConfigError(
                f"{file}:{number}: write a token of {MIN_KEY_LENGTH} or more characters, and after it perhaps a number"
            )
        found[words[0]] = int(words[1]) if len(words) == 2 else None
    if not found:
        raise ConfigError(f"{file}: no token is in it")
    return found
