"""`deskhand gateway`: check a sandbox gateway against its protocol."""

from __future__ import annotations

import os

from cyclopts import App

from deskhand.cli.doctor import print_results
from deskhand.cli.output import Json
from deskhand.errors import ConfigError

gateway_app = App(name="gateway", help="Check sandbox gateways.")


@gateway_app.command
def check(
    url: str | None = None,
    /,
    *,
    token_env: str = "OSWORLD_SANDBOX_TOKEN",
    boot_s: float = 300.0,
    as_json: Json = False,
) -> None:
    """Check that a gateway follows the sandbox protocol, with at most two sandboxes. Exits with 2 if it does not.

    Parameters
    ----------
    url
        URL of the gateway (default: OSWORLD_SANDBOX_ENDPOINT).
    token_env
        Environment variable with its token.
    boot_s
        Seconds until a sandbox must be ready.
    """
    import asyncio

    from deskhand.desktop.remote.sandbox_api import endpoint_of
    from deskhand.doctor.check_gateway import check_gateway

    token = os.environ.get(token_env)
    if not token:
        raise ConfigError(f"{token_env} is not set; set it to a token of the gateway")
    results = asyncio.run(check_gateway(url or endpoint_of()[0], token, boot_s=boot_s))
    print_results(results, as_json=as_json)
