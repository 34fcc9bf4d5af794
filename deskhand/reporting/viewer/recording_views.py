"""What the viewer's pages ask of a folder of `deskhand record`: `RecordingViews`. Used by `viewer.app`; blocking, so it
runs in threads. Reading changes nothing in the folder."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError
from starlette.requests import Request
from starlette.responses import Response

from deskhand.recorder.image_decoding import decode_rgb, pixels_sha256, read_data_uri
from deskhand.recorder.messages import ImagePart, Message
from deskhand.recorder.recording_proxy import IMAGE, ExchangeLog
from deskhand.recorder.session_store import SessionStore
from deskhand.recorder.sft_export import Conversation, RecordedSession, conversations, read_session
from deskhand.reporting.viewer.replies import FOREVER, SHA256, NotFound, number_of, page_of

_MAX_PIXELS = 4096 * 4096
_MAX_TITLE = 160
MIN_THUMBNAIL, MAX_THUMBNAIL = 32, 1024


class _ImageNames:
    """Names of the images in requests, as `StoredImages` gave them, without storing one."""

    def add_data_uri(self, url: str, *, param: str = "image_url.url") -> ImagePart:
        if url.startswith(IMAGE):
            return ImagePart(url.removeprefix(IMAGE))
        return ImagePart(pixels_sha256(decode_rgb(read_data_uri(url, param), max_pixels=_MAX_PIXELS, param=param)))


class RecordingViews:
    """The requests about one recording."""

    kind = "recording"

    def __init__(self, folder: Path) -> None:
        self.folder, self.where = folder, folder / "sessions"
        self._files = SessionStore(folder)
        self._log = ExchangeLog(self._files)
        self._known: dict[str, tuple[int, dict[str, Any]]] = {}
        """Line of each session by the size of its file, so that only sessions that grew are read again."""

    @property
    def title(self) -> str:
        return f"Recording {self.folder.resolve().name}"

    def summary(self, request: Request) -> dict[str, Any]:
        return {"kind": self.kind, "title": self.title, "folder": str(self.folder), **self.revision(request)}

    def revision(self, request: Request) -> dict[str, Any]:
        """Return a number that changes when a session is recorded."""
        sizes = {name: self._size(name) for name in self._log.sessions()}
        digest = hashlib.sha256(repr(sorted(sizes.items())).encode()).hexdigest()
        return {"revision": digest[:16], "in_flight": 0}

    def sessions(self, request: Request) -> dict[str, Any]:
        """Return a page of sessions, newest first, that contain `text`."""
        text = request.query_params.get("text", "").lower()
        rows = [self._line(name) for name in self._log.sessions()]
        rows = [row for row in rows if text in f"{row['id']} {row['title']}".lower()]
        rows.sort(key=lambda row: str(row["id"]), reverse=True)
        offset, limit = page_of(request.query_params)
        return {"total": len(rows), "rows": rows[offset : offset + limit]}

    def session(self, request: Request) -> dict[str, Any]:
        """Return the conversations of a session as recorded."""
        name = request.path_params["session"]
        if not self._size(name):
            raise NotFound(f"no session {name[:80]} in {self.folder}")
        session = self._read(name)
        found = conversations(session.exchanges)
        return {
            "id": name,
            "reward": session.total_reward,
            "skipped": dict(session.skipped),
            "conversations": [_conversation_data(one, session) for one in found],
        }

    def frame(self, request: Request) -> Response:
        """Return an image of a request as PNG; with `width`, a smaller one."""
        name, width = request.path_params["sha256"], request.query_params.get("width")
        if not SHA256.match(name):
            raise NotFound("no such image in the recording")
        try:
            image = Image.open(io.BytesIO(self._files.image(name)))
            if image.width * image.height > _MAX_PIXELS:
                raise NotFound("the image is too large to be shown")
            image = image.convert("RGB")
        except (KeyError, OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            raise NotFound("no such image in the recording, or it cannot be read") from error
        if width is not None:
            image.thumbnail((min(number_of(width, "width", MIN_THUMBNAIL, MAX_THUMBNAIL), image.width), image.height))
        buffer = io.BytesIO()
        image.save(buffer, "PNG", compress_level=1)
        return Response(buffer.getvalue(), media_type="image/png", headers=FOREVER)

    def _size(self, name: str) -> int:
        try:
            return (self._files.session_folder(name) / "exchanges.jsonl").stat().st_size
        except OSError:
            return 0

    def _read(self, name: str) -> RecordedSession:
        return read_session(self._log, _ImageNames(), name)

    def _line(self, name: str) -> dict[str, Any]:
        size, known = self._size(name), self._known.get(name)
        if known is not None and known[0] == size:
            return known[1]
        session = self._read(name)
        found = conversations(session.exchanges)
        first = next((one.text for row in found for one in row.messages if one.role == "user" and one.text), "")
        line = {
            "id": name,
            "title": " ".join(first.split())[:_MAX_TITLE],
            "replies": len(session.exchanges),
            "conversations": len(found),
            "images": len({sha256 for row in found for one in row.messages for sha256 in one.image_hashes}),
            "reward": session.total_reward,
            "skipped": sum(session.skipped.values()),
        }
        self._known[name] = size, line
        return line


def _conversation_data(row: Conversation, session: RecordedSession) -> dict[str, Any]:
    targets = set(row.targets)
    return {
        "tools": json.loads(row.tools),
        "rewards": session.rewards.of_calls(row.exchange_ids).by_call,
        "turns": [{**_turn(one), "is_reply": index in targets} for index, one in enumerate(row.messages)],
    }


def _turn(one: Message) -> dict[str, Any]:
    return {
        "role": one.role,
        "parts": [{"text": part} if isinstance(part, str) else {"image": part.sha256} for part in one.parts],
        "calls": [{"name": call.name, "arguments": call.arguments} for call in one.calls],
    }
