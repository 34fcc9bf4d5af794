"""The viewer's web application: pages from `static/`, and JSON under `/api/` from runs, recordings and live desktops.

Used by `deskhand view`, `deskhand try` and `deskhand desktop open`; start with `serve_viewer`. It only reads; what a
person does on a live desktop is passed on to the process that runs it (`viewer.live_proxy`). `docs/viewer.md` says what
the pages show.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib import resources
from pathlib import Path
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from deskhand.errors import ConfigError, DeskhandError
from deskhand.reporting.viewer.live_proxy import LiveProxy
from deskhand.reporting.viewer.recording_views import RecordingViews
from deskhand.reporting.viewer.replies import NotFound, json_reply
from deskhand.reporting.viewer.run_views import RunViews
from deskhand.server.live_desktops import LiveDesktops
from deskhand.server.loopback import LoopbackAccess, LoopbackServer, listen_on_loopback
from deskhand.store.database import damaged
from deskhand.store.run import Run

_WRONG_RECORDS = (LookupError, TypeError, ValueError, AttributeError)
"""What reading a stored value of another shape raises."""


class DesktopViews:
    """A source that is live desktops alone, without anything stored."""

    kind, title, folder, where = "desktop", "Desktop", "", Path()


Source = Run | Path | LiveDesktops
"""A run, the folder of a recording, or desktops of this process."""
Views = RunViews | RecordingViews | DesktopViews


def create_app(sources: Sequence[Source], token: str, *, control: str | None = None) -> Starlette:
    """Return the application for these sources, whose runs the caller closes. `control`: token for taking over."""
    page = resources.files("deskhand.reporting").joinpath("static", "viewer.html").read_text(encoding="utf-8")
    views = [_views_of(source) for source in sources]
    live = [_live_of(source) for source in sources]

    def index(request: Request) -> Response:
        return HTMLResponse(page)

    def list_runs(request: Request) -> Response:
        found = [
            {"index": at, "title": one.title, "folder": str(one.folder), "kind": one.kind}
            for at, one in enumerate(views)
        ]
        return json_reply({"runs": found, "has_takeover": control is not None})

    def number_of_source(request: Request) -> int:
        number = request.path_params["run"]
        if number >= len(views):
            raise NotFound(f"no run {number}; {len(views)} are open")
        return number

    def of_run(name: str) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            source = views[number_of_source(request)]
            if not hasattr(source, name):
                raise NotFound(f"a {source.kind} has no {name}")
            try:
                found = getattr(source, name)(request)
            except _WRONG_RECORDS as error:
                raise damaged(source.where, f"{type(error).__name__} {error}") from error
            return found if isinstance(found, Response) else json_reply(found)

        return answer

    def of_live(path: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            proxy = live[number_of_source(request)]
            if proxy is None:
                raise NotFound("a recording has no live desktops")
            return await proxy.forward(request, path)

        return answer

    api = [
        Route("/runs", list_runs),
        *(
            Route(f"/runs/{{run:int}}{path}", of_run(name))
            for path, name in (
                ("", "summary"), ("/revision", "revision"), ("/values", "values"), ("/tasks", "tasks"),
                ("/episodes", "episodes"), ("/episodes/{episode}", "episode"),
                ("/episodes/{episode}/calls/{call:int}", "call"), ("/groups/{group}", "group"),
                ("/frames/{sha256}", "frame"), ("/sessions", "sessions"), ("/sessions/{session:path}", "session"),
            )
        ),
        Route("/runs/{run:int}/live", of_live("/wall")),
        Route("/runs/{run:int}/live/{desktop}", of_live("/desktops/{desktop}")),
        *(
            Route(f"/runs/{{run:int}}/live{path}", of_live(f"/desktops{path}"), methods=["POST"])
            for path in ("/{desktop}/takeover", "/{desktop}/act", "/{desktop}/release")
        ),
    ]  # fmt: skip
    static = StaticFiles(directory=str(resources.files("deskhand.reporting").joinpath("static")))
    return Starlette(
        routes=[Route("/", index), Mount("/static", static), Mount("/api", routes=api)],
        middleware=[Middleware(LoopbackAccess, token=token, control=control)],
        exception_handlers={DeskhandError: _on_error},
    )


def _views_of(source: Source) -> Views:
    if isinstance(source, Run):
        return RunViews(source)
    return RecordingViews(source) if isinstance(source, Path) else DesktopViews()


def _live_of(source: Source) -> LiveProxy | None:
    if isinstance(source, Run):
        return LiveProxy.of_run(source.folder)
    return None if isinstance(source, Path) else LiveProxy.of_process(source)


def _on_error(request: Request, error: Exception) -> Response:
    status = 404 if isinstance(error, NotFound) else 400 if isinstance(error, ConfigError) else 503
    return json_reply({"error": " ".join(str(error).split())}, status)


async def serve_viewer(
    sources: Sequence[Source], port: int, token: str, *, control: str | None = None, page: str = ""
) -> None:
    """Serve the sources on the loopback interface, print the page's URL, until Ctrl-C.

    With `control` a second URL is printed, which can take over. With `page`, the route of a page, only that one is
    printed and opens the page. Raises `ConfigError` if the port is taken.
    """
    with listen_on_loopback(port) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/#"
        if not page:
            print(f"{address}{urlencode({'token': token})}", flush=True)
        if control is not None:
            secrets = {"token": token, "control": control, **({"page": page} if page else {})}
            what = "" if page else "to take over: "
            print(f"{what}{address}{urlencode(secrets)}", flush=True)
        server = LoopbackServer(create_app(sources, token, control=control))
        await server.serve(sockets=[listener])
