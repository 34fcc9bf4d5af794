"""Request authorization of the desktop server.

Used by every route and by `server.tunnel`. A lease key opens its own lease alone. Without an admin key the server is
open to this machine: requests must name a loopback host and must not come from a web page.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request

from deskhand.server.active_leases import ActiveLease, ActiveLeases
from deskhand.server.api_keys import digest, is_loopback, key_from_headers, key_matches
from deskhand.server.http_errors import HttpError, unauthorized


class LeaseAuth:
    """Authorizes requests by key, or by origin if `admin_key` is None."""

    def __init__(self, leases: ActiveLeases, admin_key: str | None) -> None:
        self._leases = leases
        self._admin_digest = digest(admin_key) if admin_key is not None else None

    def _is_authorized(self, request: Request, lease_digest: bytes | None) -> bool:
        if self._admin_digest is None:
            _require_local(request)
            return True
        key = key_from_headers(request.headers)
        # Both comparisons always run, so that timing reveals nothing.
        is_admin = key_matches(key, self._admin_digest)
        is_holder = key_matches(key, lease_digest or self._admin_digest)
        return bool(key) and (is_admin or is_holder)

    def require_admin(self, request: Request) -> None:
        """Raise `HttpError` (401, 403) unless the request has the admin key."""
        if not self._is_authorized(request, None):
            raise unauthorized("key")

    def _authorize(
        self, request: Request, lease: ActiveLease | None, released_digest: bytes | None = None
    ) -> ActiveLease:
        """Return `lease`. Only the admin and the former holder learn that a lease was released (410)."""
        if not self._is_authorized(request, lease.key_digest if lease is not None else released_digest):
            raise unauthorized("key")
        if lease is None:
            raise HttpError(410, "unknown or released lease; create one with POST /leases")
        return lease

    def by_id(self, request: Request, lease_id: str) -> ActiveLease:
        """Return the lease with this id. Raises `HttpError` (401, 403, 410)."""
        return self._authorize(request, self._leases.find(lease_id), self._leases.released_key_digest(lease_id))

    def by_path(self, request: Request) -> ActiveLease:
        """Return the lease named in the path."""
        return self.by_id(request, request.path_params["lease"])

    def by_port(self, request: Request) -> ActiveLease:
        """Return the lease that owns the port at which the request arrived."""
        return self._authorize(request, self._leases.by_port(port_of(request.scope)))


def port_of(scope: Any) -> int:
    """Return the local port at which a request arrived."""
    return (scope.get("server") or ("", 0))[1] or 0


def _require_local(request: Request) -> None:
    """Reject requests from web pages: a page must not reach an open server under any host name.

    Browsers send Sec-Fetch-Site with every request to a loopback address; "none" means that the user typed the
    address.
    """
    from_a_page = "origin" in request.headers or request.headers.get("sec-fetch-site", "none") != "none"
    if from_a_page or not is_loopback(_host_of(request)):
        message = "without an admin key the server accepts only local programs that use a loopback host name"
        raise HttpError(403, message)


def _host_of(request: Request) -> str:
    """Return the host that the request names, "" if invalid. Starlette would fall back to the local address."""
    named = request.headers.get("host")
    try:
        return (request.url.hostname if named is None else urlsplit(f"//{named}").hostname) or ""
    except ValueError:
        return ""
