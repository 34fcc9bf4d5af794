"""Screen recordings: MP4 with the duration of each frame."""

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


def frames_of(video: bytes) -> list[tuple[Image.Image, int]]:
    """The pictures with how many milliseconds each is shown, found by way of the index."""
    table = box(video, "moov", "trak", "mdia", "minf", "stbl")
    _, count, *sizes = struct.unpack(f">{len(box(table, 'stsz')) // 4 - 1}I", box(table, "stsz")[4:])
    _, _, at = struct.unpack(">3I", box(table, "stco"))
    shown = struct.unpack(f">{2 * count}I", box(table, "stts")[8:])[1::2]
    found = []
    for size, ticks in zip(sizes, shown, strict=True):
        found.append((Image.open(io.BytesIO(video[at : at + size])), ticks))
        at += size
    return found


def test_each_frame_has_its_duration():
    def jpeg(color: str) -> bytes:
        buffer = io.BytesIO()
        Image.new("RGB", (64, 48), color).save(buffer, format="JPEG")
        return buffer.getvalue()

    frames = [VideoFrame(start_s, jpeg(name)) for start_s, name in ((0, "red"), (0.25, "lime"), (3, "blue"))]
    video = encode_mp4(frames, 4.5, 64, 48)
    assert [kind for kind, _ in boxes(video)] == ["ftyp", "mdat", "moov"]
    found = frames_of(video)
    assert [ticks for _, ticks in found] == [250, 2750, 1500]
    colors = [max(range(3), key=image.convert("RGB").getpixel((5, 5)).__getitem__) for image, _ in found]
    assert colors == [0, 1, 2]
    assert struct.unpack(">4I", box(video, "moov", "mvhd")[4:20])[2:] == (1000, 4500)


async def test_a_recording_contains_the_changed_screens(client):
    none = await client.post("/end_recording")
    assert (none.status_code, none.json()) == (400, {"status": "error", "message": "No recording in progress to stop."})
    started = await client.post("/start_recording")
    assert started.json() == {"status": "success", "message": "Started recording successfully."}
    twice = await client.post("/start_recording")
    assert (twice.status_code, twice.json()["message"]) == (400, "Recording is already in progress.")
    await client.post("/execute", json={"command": ["python", "-c", "import pyautogui; pyautogui.moveTo(60, 60)"]})
    await asyncio.sleep(1.2)
    reply = await client.post("/end_recording")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "video/mp4")
    found = frames_of(reply.content)
    assert len(found) == 2
    assert all(image.size == (320, 240) for image, _ in found)
    assert 1000 < sum(ticks for _, ticks in found) < 6000
