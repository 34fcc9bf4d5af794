"""A folder of `deskhand record` in the viewer: sessions, conversations, images, damage."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from PIL import Image
from recorded_folder import REPLIES, talk
from recording import picture
from viewer_client import KEY, TOKEN, get

from deskhand.recorder.image_decoding import pixels_sha256
from deskhand.reporting.viewer.app import create_app

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    talk(tmp_path, "session-1", reward=1.0)
    talk(tmp_path, "session-2/with a slash", tools=TOOLS, picture=4)
    return tmp_path


@pytest.fixture
async def client(folder: Path) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(create_app([folder], TOKEN))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", headers=KEY) as client:
        yield client


async def test_sessions_are_listed_searched_and_paged(client: httpx2.AsyncClient, folder: Path) -> None:
    (source,) = (await get(client, "/runs"))["runs"]
    assert (source["kind"], source["title"]) == ("recording", f"Recording {folder.name}")
    found = await get(client, "/runs/0/sessions")
    assert [row["id"] for row in found["rows"]] == ["session-2/with a slash", "session-1"]
    assert {key: found["rows"][1][key] for key in ("title", "replies", "conversations", "images", "reward")} == {
        "title": "go 0", "replies": 2, "conversations": 1, "images": 2, "reward": 1.0,
    }  # fmt: skip
    assert (await get(client, "/runs/0/sessions", text="SLASH"))["total"] == 1
    assert [row["id"] for row in (await get(client, "/runs/0/sessions", offset=1, limit=1))["rows"]] == ["session-1"]
    assert (await client.get("/api/runs/0/sessions?limit=0")).status_code == 400


async def test_a_session_has_its_conversations_with_images_tools_and_replies(client: httpx2.AsyncClient) -> None:
    found = await get(client, "/runs/0/sessions/session-2%2Fwith%20a%20slash")
    (one,) = found["conversations"]
    assert one["tools"] == TOOLS
    assert [turn["role"] for turn in one["turns"]] == ["user", "assistant"] * 2
    replies = [turn["parts"][0]["text"] for turn in one["turns"] if turn["is_reply"]]
    assert replies == list(REPLIES)
    first = one["turns"][0]["parts"]
    name = pixels_sha256(np.asarray(picture(4)))
    assert first == [{"image": name}, {"text": "go 0"}]
    shown = Image.open(io.BytesIO((await client.get(f"/api/runs/0/frames/{name}")).content))
    assert shown.tobytes() == picture(4).tobytes()
    for wrong in ("0" * 64, "..%2f..%2fkeys.json", name.upper()):
        assert (await client.get(f"/api/runs/0/frames/{wrong}")).status_code == 404
    for wrong in ("absent", "..%2f..", "%2e%2e/images"):
        assert (await client.get(f"/api/runs/0/sessions/{wrong}")).status_code == 404


async def test_new_sessions_are_noticed_and_reading_writes_nothing(client: httpx2.AsyncClient, folder: Path) -> None:
    def files() -> dict[Path, tuple[int, int]]:
        return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}

    before, kept = await get(client, "/runs/0/revision"), files()
    await get(client, "/runs/0/sessions")
    await get(client, "/runs/0/sessions/session-1")
    assert (await get(client, "/runs/0/revision"), files()) == (before, kept)
    talk(folder, "session-3")
    assert await get(client, "/runs/0/revision") != before
    talk(folder, "session-1")  # continues a known one
    rows: list[dict[str, Any]] = (await get(client, "/runs/0/sessions"))["rows"]
    assert {row["id"]: row["replies"] for row in rows}["session-1"] == 4


async def test_a_damaged_session_is_one_line(client: httpx2.AsyncClient, folder: Path) -> None:
    path = folder / "sessions" / "session-1" / "exchanges.jsonl"
    path.write_bytes(path.read_bytes() + b"{\n")
    reply = await client.get("/api/runs/0/sessions/session-1")
    assert reply.status_code in (400, 503)
    assert "damaged" in reply.json()["error"]
    assert (await client.get("/api/runs/0/live")).status_code == 404
