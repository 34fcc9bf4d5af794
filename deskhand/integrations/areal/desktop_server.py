"""Check of the desktop server that an experiment names, by the launcher and on every node of a Ray cluster."""

from __future__ import annotations

from deskhand.errors import ConfigError
from deskhand.integrations.areal.settings import Desktops
from deskhand.integrations.areal.worker_resources import server_api_key

TIMEOUT_S = 10.0


def check_server(desktops: Desktops, needed: int) -> None:
    """Raise `ConfigError` unless the desktop server responds and has `needed` desktops."""
    import httpx2

    address, key = str(desktops.server_url), server_api_key(desktops)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        reply = httpx2.get(f"{address.rstrip('/')}/leases", headers=headers, timeout=TIMEOUT_S)
        reply.raise_for_status()
        size = int(reply.json()["size"])
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, KeyError) as error:
        raise ConfigError(
            f"deskhand.workflow.desktops.server_url: {address} does not respond ({error}); run deskhand serve desktops"
        ) from None
    if size < needed:
        raise ConfigError(
            f"{address}: the server has {size} desktops, rollout.max_concurrent_rollouts x "
            f"deskhand.workflow.loop.group_size needs {needed}; start it with more"
        )
