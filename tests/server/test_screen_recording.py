"""A recording is a film that a player reads, with each screen shown at its time."""

from __future__ import annotations

import asyncio
import io
import struct
from collections.abc import Iterator

from PIL import Image

from deskhand.server.mp4 import VideoFrame, encode_mp4


def boxes(data: bytes, start: int = 0) -> Iterator[tuple[str, bytes]]:
    while start < len(data):
        size, kind = struct.unpack_from(">I4s", data, start)
        assert 8 <= size <= len(data) - start
        yield kind.decode(), data[start + 8 : start + size]
        start += size


def box(data: bytes, *path: str) -> bytes:
    for name in path:
        data = dict(boxes(data))[name]
    return data


def pictures_of(film: bytes) -> list[tuple[Image.Image, int]]:
    """The pictures with how many milliseconds each is shown, found by way of the index."""
    table = box(film, "moov", "trak", "mdia", "minf", "stbl")
    _, count, *sizes = struct.unpack(f">{len(box(table, 'stsz')) // 4 - 1}I", box(table, "stsz")[4:])
    _, _, at = struct.unpack(">3I", box(table, "stco"))
    shown = struct.unpack(f">{2 * count}I", box(table, "stts")[8:])[1::2]
    found = []
    for size, ticks in zip(sizes, shown, strict=True):
        found.append((Image.open(io.BytesIO(film[at : at + size])), ticks))
        at += size
    return found


def test_a_film_shows_each_picture_for_its_time():
    def jpeg(colour: str) -> bytes:
        buffer = io.BytesIO()
        Image.new("RGB", (64, 48), colour).save(buffer, format="JPEG")
        return buffer.getvalue()

    film = encode_mp4(
        [VideoFrame(0, jpeg("red")), VideoFrame(0.25, jpeg("lime")), VideoFrame(3, jpeg("blue"))], 4.5, 64, 48
    )
    assert [kind for kind, _ in boxes(film)] == ["ftyp", "mdat", "moov"]
    found = pictures_of(film)
    assert [ticks for _, ticks in found] == [250, 2750, 1500]
    colours = [max(range(3), key=image.convert("RGB").getpixel((5, 5)).__getitem__) for image, _ in found]
    assert colours == [0, 1, 2]
    assert struct.unpack(">4I", box(film, "moov", "mvhd")[4:20])[2:] == (1000, 4500)


async def test_a_recording_holds_what_was_to_be_seen(client):
    none = await client.post("/end_recording")
    assert (none.status_code, none.json()) == (400, {"status": "error", "message": "No recording in progress to stop."})
    started = await client.post("/start_recording")
    assert started.json() == {"status": "success", "message": "Started recording successfully."}
    twice = await client.post("/start_recording")
    assert (twice.status_code, twice.json()) == (
        400,
        {"status": "error", "message": "Recording is already in progress."},
    )
    await client.post("/execute", json={"command": ["python", "-c", "import pyautogui; pyautogui.moveTo(60, 60)"]})
    await asyncio.sleep(1.2)
    reply = await client.post("/end_recording")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "video/mp4")
    found = pictures_of(reply.content)
    assert len(found) == 2
    assert all(image.size == (320, 240) for image, _ in found)
    assert 1000 < sum(ticks for _, ticks in found) < 6000
