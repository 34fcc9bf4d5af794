"""Pictures as an MP4 file. Invariant: every picture is shown from its own time until the next one's, however unevenly they came.

The pictures are JPEG, one sample each, in one video track: the boxes of ISO/IEC 14496-12, the sample entry of 14496-14 with object
type 0x6C (JPEG) of 14496-1. Any player reads it, no encoder is needed, and a screen that stands still costs nothing.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass

TICKS = 1000
"""Of a second."""
_UNITY = struct.pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
_JPEG = 0x6C


@dataclass(frozen=True)
class VideoFrame:
    """A JPEG and when it was first to be seen, in seconds."""

    at_s: float
    jpeg: bytes


def encode_mp4(pictures: Sequence[VideoFrame], end_s: float, width: int, height: int) -> bytes:
    """A film of one or more pictures in order of time, the last of which is shown until `end_s`."""
    times = [round(picture.at_s * TICKS) for picture in pictures] + [round(end_s * TICKS)]
    shown = [max(1, later - earlier) for earlier, later in itertools.pairwise(times)]
    head = _box(b"ftyp", b"isom", struct.pack(">I", 0x200), b"isomiso2mp41")
    data = b"".join(picture.jpeg for picture in pictures)
    start = len(head) + 8
    return b"".join(
        [head, struct.pack(">I4s", 8 + len(data), b"mdat"), data, _index(pictures, shown, start, width, height)]
    )


def _box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def _full(kind: bytes, *parts: bytes, flags: int = 0) -> bytes:
    return _box(kind, struct.pack(">I", flags), *parts)


def _index(pictures: Sequence[VideoFrame], shown: Sequence[int], start: int, width: int, height: int) -> bytes:
    length = sum(shown)
    movie = _full(
        b"mvhd",
        struct.pack(">4I", 0, 0, TICKS, length),
        struct.pack(">IH10x", 0x10000, 0x100),
        _UNITY,
        bytes(24),
        _word(2),
    )
    track = _full(
        b"tkhd",
        struct.pack(">5I", 0, 0, 1, 0, length),
        bytes(16),
        _UNITY,
        struct.pack(">2I", width << 16, height << 16),
        flags=7,
    )
    media = _full(b"mdhd", struct.pack(">4I2H", 0, 0, TICKS, length, 0x55C4, 0))
    handler = _full(b"hdlr", bytes(4), b"vide", bytes(12), b"video\0")
    here = _box(b"dinf", _full(b"dref", _word(1), _full(b"url ", flags=1)))
    information = _box(
        b"minf", _full(b"vmhd", bytes(8), flags=1), here, _samples(pictures, shown, start, width, height)
    )
    return _box(b"moov", movie, _box(b"trak", track, _box(b"mdia", media, handler, information)))


def _samples(pictures: Sequence[VideoFrame], shown: Sequence[int], start: int, width: int, height: int) -> bytes:
    sizes = [len(picture.jpeg) for picture in pictures]
    entry = _box(
        b"mp4v", bytes(6), struct.pack(">H16x2H", 1, width, height), struct.pack(">3IH", 0x480000, 0x480000, 0, 1), bytes(32),
        struct.pack(">Hh", 24, -1), _decoder(max(sizes)),
    )  # fmt: skip
    return _box(
        b"stbl",
        _full(b"stsd", _word(1), entry),
        _full(b"stts", _word(len(shown)), b"".join(struct.pack(">2I", 1, ticks) for ticks in shown)),
        _full(b"stsc", struct.pack(">4I", 1, 1, len(sizes), 1)),
        _full(b"stsz", struct.pack(f">2I{len(sizes)}I", 0, len(sizes), *sizes)),
        _full(b"stco", struct.pack(">2I", 1, start)),
    )


def _decoder(largest: int) -> bytes:
    """The elementary stream descriptor: a visual stream of JPEG pictures."""
    kind = struct.pack(">BB", _JPEG, 0x11) + largest.to_bytes(3, "big") + bytes(8)
    return _full(b"esds", _described(3, struct.pack(">HB", 1, 0), _described(4, kind), _described(6, b"\x02")))


def _described(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes([tag, len(body)]) + body


def _word(number: int) -> bytes:
    return struct.pack(">I", number)
