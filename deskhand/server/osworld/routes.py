"""Routes of OSWorld's in-VM server for one leased desktop; `TABLE` is the whole protocol.

Mounted by `server.app`, and in process by `osworld.clients`. Requests about a leased machine are forwarded to its own
server (`server.machine_proxy`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deskhand.errors import DeskhandError
from deskhand.server.active_leases import ActiveLease
from deskhand.server.http_errors import reply_errors
from deskhand.server.machine_proxy import forward_to_machine, windows_routes
from deskhand.server.osworld import commands, files, screen, windows

log = structlog.get_logger()
Handler = Callable[[ActiveLease, Request], Awaitable[Response]]
LeaseFinder = Callable[[Request], AbstractContextManager[ActiveLease]]

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
    ("POST", ("/start_recording",), screen.start_recording),
    ("POST", ("/end_recording",), screen.end_recording),
    ("POST", ("/wallpaper",), screen.wallpaper),
    ("POST", ("/setup/change_wallpaper",), screen.change_wallpaper),
)


def routes(find: LeaseFinder, prefix: str = "") -> list[Route]:
    """Return the routes of `TABLE`. `find` returns a context with the lease of a request or raises `HttpError`."""

    def on_lease(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            with find(request) as lease:
                forwarded = await forward_to_machine(lease, request, prefix)
                return forwarded or await handler(lease, request)

        def on_error(error: Exception) -> Response:
            message = str(error)
            if isinstance(error, DeskhandError):
                log.warning("server.desktop_failed", endpoint=handler.__name__, error=message)
            else:  # not 500, which clients attribute to the guest
                log.exception("server.failed", endpoint=handler.__name__)
                message = "internal server error; see the server log"
            return JSONResponse({"status": "error", "message": message}, status_code=503)

        return reply_errors(handle, on_error)

    emulated = [
        Route(prefix + path, on_lease(handler), methods=[method]) for method, paths, handler in TABLE for path in paths
    ]
    return [*emulated, *windows_routes(find, prefix)]
