"""A folder as `deskhand record` leaves it, without an agent and an endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recording import image_part

from deskhand.recorder.recording_proxy import ExchangeLog, StoredImages, without_images
from deskhand.recorder.session_store import SessionStore

REPLIES = ("Click the blue square", "Click the red square, then stop")


def talk(
    folder: Path, session: str, *, reward: float | None = None, tools: list[Any] | None = None, picture: int = 0
) -> None:
    """A session of two chat requests, the second going on from the first, with a picture in each, numbered from
    `picture` on."""
    files = SessionStore(folder)
    log, kept = ExchangeLog(files), StoredImages(files)
    messages: list[dict[str, Any]] = []
    for number, reply in enumerate(REPLIES):
        messages.append(
            {"role": "user", "content": [image_part(picture + number), {"type": "text", "text": f"go {number}"}]}
        )
        request = without_images({"model": "m", "messages": messages, **({"tools": tools} if tools else {})}, kept)
        said = {"role": "assistant", "content": reply}
        answer = {"choices": [{"index": 0, "message": said, "finish_reason": "stop"}]}
        log.append(
            session, {"exchange": {"id": f"{session}.{number}", "api": "chat", "request": request, "reply": answer}}
        )
        messages.append(said)
    if reward is not None:
        log.append(session, {"reward": {"reward": reward, "call_id": None}})
    files.close()
