"""MP4 encoder for JPEG frames with individual durations.

Used by `screen_recording`. One video track with one JPEG per sample: ISO/IEC 14496-12 boxes, and a 14496-14 sample
entry with object type 0x6C (JPEG) of 14496-1. No codec is needed, and a static screen costs nothing.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass

TICKS_PER_S = 1000
_UNITY = struct.pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
_JPEG = 0x6C


@dataclass(frozen=True)
class VideoFrame:
    """A JPEG and the time in seconds at which it appears."""

    start_s: float
    jpeg: bytes


def encode_mp4(frames: Sequence[VideoFrame], end_s: float, width: int, height: int) -> bytes:
    """Encode at least one frame, in chronological order; the last one is shown until `end_s`."""
    times = [round(frame.start_s * TICKS_PER_S) for frame in frames] + [round(end_s * TICKS_PER_S)]
    durations = [max(1, later - earlier) for earlier, later in itertools.pairwise(times)]
    head = _box(b"ftyp", b"isom", struct.pack(">I", 0x200), b"isomiso2mp41")
    data = b"".join(frame.jpeg for frame in frames)
    start = len(head) + 8
    return head + _box(b"mdat", data) + _index(frames, durations, start, width, height)


def _box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def _full(kind: bytes, *parts: bytes, flags: int = 0) -> bytes:
    return _box(kind, struct.pack(">I", flags), *parts)


def _index(frames: Sequence[VideoFrame], durations: Sequence[int], start: int, width: int, height: int) -> bytes:
    length = sum(durations)
    times = struct.pack(">5IH10x", 0, 0, TICKS_PER_S, length, 0x10000, 0x100)
    movie_header = _full(b"mvhd", times, _UNITY, bytes(24), _uint32(2))
    size = struct.pack(">2I", width << 16, height << 16)
    track_header = _full(b"tkhd", struct.pack(">5I16x", 0, 0, 1, 0, length), _UNITY, size, flags=7)
    media_header = _full(b"mdhd", struct.pack(">4I2H", 0, 0, TICKS_PER_S, length, 0x55C4, 0))
    handler = _full(b"hdlr", bytes(4), b"vide", bytes(12), b"video\0")
    data_info = _box(b"dinf", _full(b"dref", _uint32(1), _full(b"url ", flags=1)))
    samples = _samples(frames, durations, start, width, height)
    media_info = _box(b"minf", _full(b"vmhd", bytes(8), flags=1), data_info, samples)
    return _box(b"moov", movie_header, _box(b"trak", track_header, _box(b"mdia", media_header, handler, media_info)))


def _samples(frames: Sequence[VideoFrame], durations: Sequence[int], start: int, width: int, height: int) -> bytes:
    sizes = [len(frame.jpeg) for frame in frames]
    entry = _box(
        b"mp4v", bytes(6), struct.pack(">H16x2H", 1, width, height), struct.pack(">3IH", 0x480000, 0x480000, 0, 1),
        bytes(32), struct.pack(">Hh", 24, -1), _decoder(max(sizes)),
    )  # fmt: skip
    return _box(
        b"stbl",
        _full(b"stsd", _uint32(1), entry),
        _full(b"stts", _uint32(len(durations)), b"".join(struct.pack(">2I", 1, ticks) for ticks in durations)),
        _full(b"stsc", struct.pack(">4I", 1, 1, len(sizes), 1)),
        _full(b"stsz", struct.pack(f">2I{len(sizes)}I", 0, len(sizes), *sizes)),
        _full(b"stco", struct.pack(">2I", 1, start)),
    )


def _decoder(largest: int) -> bytes:
    """Return the elementary stream descriptor of a JPEG video stream."""
    kind = struct.pack(">BB", _JPEG, 0x11) + largest.to_bytes(3, "big") + bytes(8)
    return _full(b"esds", _descriptor(3, struct.pack(">HB", 1, 0), _descriptor(4, kind), _descriptor(6, b"\x02")))


def _descriptor(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes([tag, len(body)]) + body


def _uint32(number: int) -> bytes:
    return struct.pack(">I", number)
