"""Routes of OSWorld's in-VM server for one leased desktop; `TABLE` is the whole protocol.

Mounted by `server.app`, and in process by `osworld.clients`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Protocol

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deskhand.errors import DeskhandError
from deskhand.server.active_leases import ActiveLease
from deskhand.server.http_errors import HttpError
from deskhand.server.osworld import commands, files, recording, screen, wallpaper, windows

log = structlog.get_logger()
Handler = Callable[[ActiveLease, Request], Awaitable[Response]]
Finder = Callable[[Request], ActiveLease]

TABLE: tuple[tuple[str, tuple[str, ...], Handler], ...] = (
    ("POST", ("/execute", "/setup/execute"), commands.execute),
    ("POST", ("/execute_with_verification", "/setup/execute_with_verification"), commands.execute_with_verification),
    ("POST", ("/setup/launch",), commands.launch),
    ("POST", ("/run_python",), commands.run_python),
    ("POST", ("/run_bash_script",), commands.run_bash_script),
    ("GET", ("/screenshot",), screen.screenshot),
    ("GET", ("/accessibility",), screen.accessibility),
    ("GET", ("/terminal",), screen.terminal),
    ("POST", ("/screen_size",), screen.screen_size),
    ("POST", ("/window_size",), screen.window_size),
    ("GET", ("/cursor_position",), screen.cursor_position),
    ("GET", ("/platform",), screen.platform),
    ("POST", ("/desktop_path",), files.desktop_path),
    ("POST", ("/list_directory",), files.list_directory),
    ("POST", ("/file",), files.file),
    ("POST", ("/setup/upload",), files.upload),
    ("POST", ("/setup/download_file",), files.download_file),
    ("POST", ("/setup/open_file",), windows.open_file),
    ("POST", ("/setup/activate_window",), windows.activate_window),
    ("POST", ("/setup/close_window",), windows.close_window),
    ("POST", ("/start_recording",), recording.start_recording),
    ("POST", ("/end_recording",), recording.end_recording),
    ("POST", ("/wallpaper",), wallpaper.wallpaper),
    ("POST", ("/setup/change_wallpaper",), wallpaper.change_wallpaper),
)


class LeaseTouch(Protocol):
    """Tracks requests in progress on a lease (`ActiveLeases`)."""

    def using(self, lease: ActiveLease) -> AbstractContextManager[ActiveLease]: ...


def routes(find: Finder, leases: LeaseTouch, prefix: str = "") -> list[Route]:
    """Return a route for each path of `TABLE`. `find` returns the lease of a request or raises `HttpError`."""
    return [
        Route(prefix + path, _handle_errors(handler, find, leases), methods=[method])
        for method, paths, handler in TABLE
        for path in paths
    ]


def _handle_errors(handler: Handler, find: Finder, leases: LeaseTouch) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        try:
            with leases.using(find(request)) as lease:
                return await handler(lease, request)
        except HttpError as error:
            return error.response()
        except ClientDisconnect:
            return Response(status_code=499)
        except DeskhandError as error:
            log.warning("server.desktop_failed", endpoint=handler.__name__, error=str(error))
            return JSONResponse({"status": "error", "message": str(error)}, status_code=503)
        except Exception:  # not 500, which clients attribute to the guest
            log.exception("server.failed", endpoint=handler.__name__)
            return JSONResponse(
                {"status": "error", "message": "internal server error; see the server log"}, status_code=503
            )

    return handle
