"""What the viewer's pages ask of one run: `RunViews`. Used by `viewer.app`; blocking, so it runs in threads."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from PIL import Image
from starlette.requests import Request
from starlette.responses import Response

from deskhand.errors import ConfigError
from deskhand.reporting.episode_view import DecodeTokens, call_data, calls_data, decoder_of, episode_data
from deskhand.reporting.run_view import find_alerts, steps_of_alert, task_rows
from deskhand.reporting.viewer.replies import (
    FOREVER,
    SHA256,
    NotFound,
    number_of,
    page_of,
)
from deskhand.reporting.viewer.run_data import advantages_of, group_data, revision_of, summary_of, title_of
from deskhand.rollout.run_writer import load_result
from deskhand.store.episode_search import EpisodeFilter, filter_of, list_values, search_episodes
from deskhand.store.run import TRAIN, Run

MIN_THUMBNAIL, MAX_THUMBNAIL = 32, 1024


class RunViews:
    """The requests about one run."""

    kind = "run"

    def __init__(self, run: Run) -> None:
        self._run, self.folder, self.where = run, run.folder, run.folder / "run.sqlite"
        self._decode: DecodeTokens | None = None

    @property
    def title(self) -> str:
        return title_of(self._run)

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
        offset, limit = page_of(given)
        return {"total": len(ordered), "rows": ordered[offset : offset + limit]}

    def episodes(self, request: Request) -> dict[str, Any]:
        """Return a page of episodes that meet the query's filter."""
        given, offset_limit = request.query_params, page_of(request.query_params)
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
        if not SHA256.match(name) or name not in self._run.frames:
            raise NotFound("no such screenshot in the run")
        if width is None:
            return Response(self._run.frames.png(name), media_type="image/png", headers=FOREVER)
        image = Image.fromarray(self._run.frames.rgb(name))
        wanted = number_of(width, "width", MIN_THUMBNAIL, MAX_THUMBNAIL)
        image.thumbnail((min(wanted, image.width), image.height))
        buffer = io.BytesIO()
        image.save(buffer, "PNG", compress_level=1)
        return Response(buffer.getvalue(), media_type="image/png", headers=FOREVER)
