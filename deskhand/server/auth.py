"""Who is let in. Invariant: no request without a valid key reaches a desktop, and a lease's key opens that lease alone.

Without an owner's key the bridge is open to this machine: then a request must name a loopback host and come from no web page.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request

from deskhand.server.active_leases import ActiveLease, ActiveLeases
from deskhand.server.api_keys import digest, is_loopback, key_from_headers, key_matches
from deskhand.server.http_errors import HttpError


class LeaseAuth:
    """Asks every request for its key. With `owner_key` None it asks whether it comes from this machine."""

    def __init__(self, book: ActiveLeases, owner_key: str | None) -> None:
        self._book = book
        self._kept = digest(owner_key) if owner_key is not None else None

    def _admitted(self, request: Request, lease: bytes | None) -> bool:
        """Whether the request shows the owner's key, or the one whose digest `lease` is."""
        if self._kept is None:
            _demand_local(request)
            return True
        key = key_from_headers(request.headers)
        of_owner, of_lease = key_matches(key, self._kept), key_matches(key, lease or self._kept)
        return bool(key) and (of_owner or of_lease)

    def require_admin(self, request: Request) -> None:
        """Raises `Refused` (401, 403)."""
        if not self._admitted(request, None):
            raise _unauthorised()

    def _found(self, request: Request, held: ActiveLease | None, over: bytes | None = None) -> ActiveLease:
        """`held`, for who has its key. That a lease is over is told to who had its key, and to the owner."""
        if not self._admitted(request, held.kept if held is not None else over):
            raise _unauthorised()
        if held is None:
            raise HttpError(410, "this lease is over, or never was; take a new one with POST /leases")
        return held

    def by_name(self, request: Request, lease: str) -> ActiveLease:
        """The lease of this id. Raises `Refused` (401, 403, 410)."""
        return self._found(request, self._book.find(lease), self._book.over(lease))

    def by_path(self, request: Request) -> ActiveLease:
        """The lease that the path names."""
        return self.by_name(request, request.path_params["lease"])

    def by_port(self, request: Request) -> ActiveLease:
        """The lease at whose door the request came in."""
        return self._found(request, self._book.by_port(port_of(request.scope)))


def port_of(scope: Any) -> int:
    """The port of this machine that the request came in at."""
    return (scope.get("server") or ("", 0))[1] or 0


def _demand_local(request: Request) -> None:
    """A web page of another site must not reach an open bridge, under whatever name it calls this machine.

    Browsers say of every request to a loopback where it comes from; "none" is an address that somebody typed.
    """
    from_a_page = "origin" in request.headers or request.headers.get("sec-fetch-site", "none") != "none"
    if from_a_page or not is_loopback(_host_of(request)):
        raise HttpError(
            403, "without a key the bridge answers only to programs of this machine that call it by a loopback name"
        )


def _host_of(request: Request) -> str:
    """The host that the request names; "" where that is no name, which Starlette would take for none: then it is this machine."""
    named = request.headers.get("host")
    try:
        return (request.url.hostname if named is None else urlsplit(f"//{named}").hostname) or ""
    except ValueError:
        return ""


def _unauthorised() -> HttpError:
    return HttpError(401, "a valid key is needed: Authorization: Bearer <key>", {"www-authenticate": "Bearer"})
