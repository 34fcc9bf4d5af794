"""Frames and errors between a bridge and its clients. Invariant: a frame arrives with the pixels that it left with, or not at all.

A frame is its description as JSON, in the header `x-deskhand-frame`, and raw BGRX pixels as the body: of the whole screen, or of
the rectangle that differs from the frame whose hash the client named as its own (nothing when none does); as zstd where that makes
them fewer. An error is `{"error": word, "message": text}` with the status of its word.
"""

from __future__ import annotations

import base64
import json
from dataclasses import fields
from typing import Any

import numpy as np
import zstandard

from deskhand.desktop.base import Frame
from deskhand.errors import AgentError, ConfigError, DeliveryUnknown, FrameError, InfrastructureError

FRAME_HEADER = "x-deskhand-frame"
EPOCH_HEADER = "x-deskhand-epoch"
REQUEST_HEADER = "x-deskhand-request"
BASE_HEADER = "x-deskhand-base"
WORTH_IT = 0.9
"""Packed pixels are sent when they are no more than this share of the raw ones."""
SAMPLE = 16 << 10
"""Bytes from the middle of the pixels that are packed first: where these get no smaller (photographs, films), the rest is left."""


class RemoteLeaseExpired(InfrastructureError):
    """The lease has ended, or another epoch holds the desktop: nothing was performed."""


ERRORS: dict[str, tuple[int, type[Exception]]] = {
    "agent": (422, AgentError),
    "config": (400, ConfigError),
    "not_found": (404, FileNotFoundError),
    "denied": (403, PermissionError),
    "over": (410, RemoteLeaseExpired),
    "fenced": (409, RemoteLeaseExpired),
    "unknown": (500, DeliveryUnknown),
    "frame": (500, FrameError),
    "infrastructure": (500, InfrastructureError),
}
"""By word: the status of the reply and what the client raises. The first whose class an error has is its word."""


def error_code(error: Exception) -> str | None:
    """The word of an error; None for one that has none."""
    return next((word for word, (_, kind) in ERRORS.items() if isinstance(error, kind)), None)


def error_from_reply(body: Any, status: int, about: str) -> Exception:
    """The error that a reply tells of; `about` names the endpoint."""
    word = body.get("error") if isinstance(body, dict) else None
    message = body.get("message", "") if isinstance(body, dict) else ""
    if isinstance(word, str) and word in ERRORS:
        return ERRORS[word][1](str(message))
    if status == 410:
        return RemoteLeaseExpired(f"{about}: 410 {str(word or '')[:300]}".rstrip())
    return InfrastructureError(f"{about}: {status} {str(word or '')[:300]}".rstrip())


def encode_frame(frame: Frame, base: Frame | None) -> tuple[str, bytes]:
    """The header and the body of `frame` for a client that has `base`, a frame of the same desktop since its last reset."""
    height, width = frame.bgrx.shape[:2]
    box: tuple[int, int, int, int] | None = (0, 0, width, height)
    if is_delta_of(frame, base):
        box = frame.changed_bbox
    elif base is not None and base.bgrx.shape == frame.bgrx.shape:
        box = _changed(base.bgrx, frame.bgrx)
    left, top, right, bottom = box or (0, 0, 0, 0)
    told = {item.name: _plain(getattr(frame, item.name)) for item in fields(Frame) if item.init and item.name != "bgrx"}
    known = base.content_hash if base is not None and base.bgrx.shape == frame.bgrx.shape else None
    pixels = frame.bgrx[top:bottom, left:right].tobytes()
    body = _smaller(pixels)
    header = {"size": [width, height], "base": known, "box": box, "zstd": body is not None, "frame": told}
    return json.dumps(header, separators=(",", ":")), pixels if body is None else body


def _smaller(pixels: bytes) -> bytes | None:
    """`pixels` as zstd; None where that is not worth it."""
    compressor = zstandard.ZstdCompressor(level=1)
    if len(pixels) > 4 * SAMPLE:
        begin = (len(pixels) - SAMPLE) // 2
        if len(compressor.compress(pixels[begin : begin + SAMPLE])) > WORTH_IT * SAMPLE:
            return None
    body = compressor.compress(pixels)
    return body if len(body) < WORTH_IT * len(pixels) else None


def is_delta_of(frame: Frame, base: Frame | None) -> bool:
    """Whether `frame` came right after `base`: then it says itself what has changed."""
    return base is not None and base.bgrx.shape == frame.bgrx.shape and frame.sequence == base.sequence + 1


def decode_frame(header: str | None, body: bytes, base: Frame | None, copy: np.ndarray | None = None) -> Frame:
    """The frame of a reply; `base` is the frame that the client has, `copy` a copy of its pixels that may be drawn on (None: it is
    made here). Raises `FrameError` for one that is not whole."""
    try:
        told = json.loads(header or "")
        width, height = told["size"]
        if told["base"] is None:
            pixels = np.empty((height, width, 4), np.uint8)
        elif base is not None and told["base"] == base.content_hash:
            pixels = base.bgrx.copy() if copy is None else copy
        else:
            raise FrameError("the bridge sent changes of a frame that is not here")
        left, top, right, bottom = told["box"] or (0, 0, 0, 0)
        if not (0 <= left <= right <= pixels.shape[1] and 0 <= top <= bottom <= pixels.shape[0]):
            raise FrameError("the bridge sent a rectangle beyond the screen")
        if told.get("zstd"):
            body = _unpacked_pixels(body, (right - left) * (bottom - top) * 4)
        if len(body) != (right - left) * (bottom - top) * 4:
            raise FrameError(
                f"the bridge sent {len(body)} bytes for {right - left}x{bottom - top} pixels; the frame is cut short"
            )
        pixels[top:bottom, left:right] = np.frombuffer(body, np.uint8).reshape(bottom - top, right - left, 4)
        pixels.flags.writeable = False
        return Frame(bgrx=pixels, **{name: _restored(value) for name, value in told["frame"].items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FrameError(f"the bridge sent no frame: {type(error).__name__} {error}") from None


def _unpacked_pixels(body: bytes, size: int) -> bytes:
    """zstd of exactly `size` bytes. Raises `FrameError`."""
    try:
        if zstandard.frame_content_size(body) != size:
            raise FrameError("the bridge sent pixels of another size than it says")
        return zstandard.ZstdDecompressor().decompress(body)
    except zstandard.ZstdError as error:
        raise FrameError(f"the bridge sent pixels that cannot be unpacked: {error}") from None


def _plain(value: Any) -> Any:
    """A field of a frame as JSON; an array is its shape and its bytes."""
    if isinstance(value, np.ndarray):
        return {"shape": value.shape, "bytes": base64.b64encode(value.tobytes()).decode()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        return np.frombuffer(base64.b64decode(value["bytes"]), np.uint8).reshape(value["shape"])
    return tuple(_restored(item) for item in value) if isinstance(value, list) else value


def _changed(before: np.ndarray, after: np.ndarray) -> tuple[int, int, int, int] | None:
    """The half-open rectangle in which two screens differ."""
    differs = before.view(np.uint32)[:, :, 0] != after.view(np.uint32)[:, :, 0]
    rows = np.flatnonzero(differs.any(axis=1))
    if not rows.size:
        return None
    columns = np.flatnonzero(differs[rows[0] : rows[-1] + 1].any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
