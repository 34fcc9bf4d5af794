"""The viewer's web application: pages from `static/`, and JSON under `/api/` from one or more run directories.

Used by `deskhand view`; start with `serve_viewer`. It only reads: a run may be finished, or written by another process.
`docs/viewer.md` says what the pages show.
"""

from __future__ import annotations

import io
import json
import math
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any

import uvicorn
from PIL import Image
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from deskhand.errors import ConfigError, DeskhandError
from deskhand.reporting.episode_view import DecodeTokens, call_data, calls_data, decoder_of, episode_data
from deskhand.reporting.run_view import find_alerts, steps_of_alert, task_rows
from deskhand.reporting.viewer.run_data import advantages_of, group_data, revision_of, summary_of, title_of
from deskhand.rollout.run_writer import load_result
from deskhand.server.loopback import LoopbackAccess
from deskhand.store.database import damaged
from deskhand.store.episode_search import EpisodeFilter, filter_of, list_values, search_episodes
from deskhand.store.run import TRAIN, Run

PAGE_ROWS = 50
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_FOREVER = {"cache-control": "private, max-age=31536000, immutable"}
"""Screenshots never change: their name is the hash of their pixels."""
MIN_THUMBNAIL, MAX_THUMBNAIL = 32, 1024


_WRONG_RECORDS = (LookupError, TypeError, ValueError, AttributeError)
"""What reading a stored value of another shape raises."""


class NotFound(DeskhandError):
    """What a URL names is not in the run."""


def create_app(runs: Sequence[Run], token: str) -> Starlette:
    """Return the application for these runs. The caller closes them."""
    page = resources.files("deskhand.reporting").joinpath("static", "viewer.html").read_text(encoding="utf-8")
    views = [_RunViews(run) for run in runs]

    def index(request: Request) -> Response:
        return HTMLResponse(page)

    def list_runs(request: Request) -> Response:
        found = [{"index": at, "title": title_of(run), "folder": str(run.folder)} for at, run in enumerate(runs)]
        return _json({"runs": found})

    def of_run(name: str) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            number = request.path_params["run"]
            if number >= len(views):
                raise NotFound(f"no run {number}; {len(views)} are open")
            try:
                found = getattr(views[number], name)(request)
            except _WRONG_RECORDS as error:
                raise damaged(runs[number].folder / "run.sqlite", f"{type(error).__name__} {error}") from error
            return found if isinstance(found, Response) else _json(found)

        return answer

    api = [
        Route("/runs", list_runs),
        *(
            Route(f"/runs/{{run:int}}{path}", of_run(name))
            for path, name in (
                ("", "summary"), ("/revision", "revision"), ("/values", "values"), ("/tasks", "tasks"),
                ("/episodes", "episodes"), ("/episodes/{episode}", "episode"),
                ("/episodes/{episode}/calls/{call:int}", "call"), ("/groups/{group}", "group"),
                ("/frames/{sha256}", "frame"),
            )
        ),
    ]  # fmt: skip
    static = StaticFiles(directory=str(resources.files("deskhand.reporting").joinpath("static")))
    return Starlette(
        routes=[Route("/", index), Mount("/static", static), Mount("/api", routes=api)],
        middleware=[Middleware(LoopbackAccess, token=token, control=None)],
        exception_handlers={DeskhandError: _on_error},
    )


def _on_error(request: Request, error: Exception) -> Response:
    status = 404 if isinstance(error, NotFound) else 400 if isinstance(error, ConfigError) else 503
    return _json({"error": " ".join(str(error).split())}, status)


def _json(content: Any, status: int = 200) -> Response:
    """Return JSON; infinity and NaN, which it lacks, become null."""
    return Response(json.dumps(_finite(content), allow_nan=False), status, media_type="application/json")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _RunViews:
    """The requests about one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._decode: DecodeTokens | None = None

    def _decoder(self) -> DecodeTokens | None:
        if self._decode is None:  # a run that has begun has no checkpoint yet
            self._decode = decoder_of(self._run)
        return self._decode

    def summary(self, request: Request) -> dict[str, Any]:
        return summary_of(self._run)

    def revision(self, request: Request) -> dict[str, Any]:
        return revision_of(self._run)

    def values(self, request: Request) -> dict[str, Any]:
        """Return the choices of each filter."""
        alerts = find_alerts(self._run, self._run.metrics())
        return {**list_values(self._run), "alert": [alert["metric"] for alert in alerts]}

    def tasks(self, request: Request) -> dict[str, Any]:
        """Return a page of results by task or family."""
        given = request.query_params
        rows = task_rows(self._run, given.get("by", "family"), given.get("phase") or None)
        text = given.get("text", "").lower()
        rows = [row for row in rows if text in f"{row['name']} {row['family']}".lower()]
        sort = given.get("sort", "name")
        if rows and sort not in rows[0]:
            raise ConfigError(f"sort: must be one of {', '.join(rows[0])}, got {sort}")
        rows.sort(key=lambda row: (row["name"], row["phase"]))
        present = [row for row in rows if row[sort] is not None] if rows else []
        present.sort(key=lambda row: row[sort], reverse=given.get("descending") == "1")
        ordered = present + [row for row in rows if row[sort] is None]
        offset, limit = _page(given)
        return {"total": len(ordered), "rows": ordered[offset : offset + limit]}

    def episodes(self, request: Request) -> dict[str, Any]:
        """Return a page of episodes that meet the query's filter."""
        given, offset_limit = request.query_params, _page(request.query_params)
        total, rows = search_episodes(
            self._run,
            self._filter(given),
            sort=given.get("sort", "started_at"),
            descending=given.get("descending") == "1",
            offset=offset_limit[0],
            limit=offset_limit[1],
        )
        return {"total": total, "rows": rows}

    def _filter(self, given: Mapping[str, str]) -> EpisodeFilter:
        found = filter_of(given)
        if not given.get("alert"):
            return found
        steps = steps_of_alert(find_alerts(self._run, self._run.metrics()), given["alert"])
        values = {name: getattr(found, name) for name in EpisodeFilter.__slots__ if name != "steps"}
        return EpisodeFilter(**values, steps=steps)

    def episode(self, request: Request) -> dict[str, Any]:
        name = request.path_params["episode"]
        rows = self._run.rows("SELECT phase, state, step, group_id FROM episodes WHERE id = ?", (name,))
        if not rows:
            raise NotFound(f"no episode {name[:80]} in {self._run.folder}")
        phase, state, step, group = rows[0]
        if not self._run.has_record(name):
            return {"id": name, "phase": phase, "state": state, "has_record": False, "steps": []}
        result = load_result(self._run, name)
        members = self._run.episodes(group_id=group) if group else []
        advantages, explained = advantages_of(self._run, members) if phase == TRAIN and group else ({}, "")
        return {
            **episode_data(result, phase, self._run),
            "has_record": True,
            "state": state,
            "trained_in_step": step,
            "advantage": advantages.get(name),
            "explained": explained,
            "calls": calls_data(result.graph),
        }

    def call(self, request: Request) -> dict[str, Any]:
        result = load_result(self._run, request.path_params["episode"])
        ids, number = result.graph.ids, request.path_params["call"]
        if number >= len(ids):
            raise NotFound(f"no call {number}; the episode has {len(ids)}")
        return call_data(result.graph, ids[number], self._decoder())

    def group(self, request: Request) -> dict[str, Any]:
        return group_data(self._run, request.path_params["group"])

    def frame(self, request: Request) -> Response:
        """Return a screenshot as PNG; with `width`, a smaller one."""
        name, width = request.path_params["sha256"], request.query_params.get("width")
        if not _SHA256.match(name) or name not in self._run.frames:
            raise NotFound("no such screenshot in the run")
        if width is None:
            return Response(self._run.frames.png(name), media_type="image/png", headers=_FOREVER)
        image = Image.fromarray(self._run.frames.rgb(name))
        wanted = _number(width, "width", MIN_THUMBNAIL, MAX_THUMBNAIL)
        image.thumbnail((min(wanted, image.width), image.height))
        buffer = io.BytesIO()
        image.save(buffer, "PNG", compress_level=1)
        return Response(buffer.getvalue(), media_type="image/png", headers=_FOREVER)


def _page(given: Mapping[str, str]) -> tuple[int, int]:
    offset = _number(given.get("offset", "0"), "offset", 0, 10**9)
    return offset, _number(given.get("limit", str(PAGE_ROWS)), "limit", 1, 500)


def _number(text: str, name: str, low: int, high: int) -> int:
    if not re.fullmatch(r"\d{1,10}", text) or not low <= int(text) <= high:
        raise ConfigError(f"{name}: must be a number from {low} to {high}, got {text[:50]}")
    return int(text)


async def serve_viewer(runs: Sequence[Run], port: int, token: str) -> None:
    """Serve the runs on the loopback interface, print the page's URL, until Ctrl-C.

    Raises `ConfigError` if the port is taken.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(f"--port {port}: {error.strerror}; choose another port") from error
        listener.listen()  # clients that connect as soon as the URL is printed wait in the backlog
        print(f"http://127.0.0.1:{listener.getsockname()[1]}/#token={token}", flush=True)
        config = uvicorn.Config(create_app(runs, token), log_level="warning", access_log=False, lifespan="off")
        config.timeout_graceful_shutdown = 1
        await uvicorn.Server(config).serve(sockets=[listener])
