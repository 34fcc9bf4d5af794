"""Encoding of frames and errors between the desktop server and its clients.

A frame is a JSON description in the header `x-deskhand-frame` and raw BGRX pixels as the body: the whole screen, or
the rectangle that differs from the frame whose hash the client sent (empty if nothing differs), as zstd if that is
smaller. An error is `{"error": code, "message": text}` with the HTTP status of its code.
"""

from __future__ import annotations

import base64
import json
from dataclasses import fields
from typing import Any

import numpy as np
import zstandard

from deskhand.desktop.base import Frame
from deskhand.desktop.local.framebuffer import changed_bbox
from deskhand.errors import AgentError, ConfigError, DeliveryUnknown, FrameError, GuestFailure, InfrastructureError

FRAME_HEADER = "x-deskhand-frame"
EPOCH_HEADER = "x-deskhand-epoch"
REQUEST_HEADER = "x-deskhand-request"
BASE_HEADER = "x-deskhand-base"
MAX_COMPRESSED_RATIO = 0.9
"""Compressed pixels are sent only if their size is at most this fraction of the raw size."""
SAMPLE_BYTES = 16 << 10
"""Bytes from the middle of the pixels that are compressed first; if they do not shrink (photographs, video),
compression is skipped."""


class RemoteLeaseExpired(InfrastructureError):
    """The lease has ended, or another epoch owns the desktop; nothing was performed."""


ERRORS: dict[str, tuple[int, type[Exception]]] = {
    "agent": (422, AgentError),
    "config": (400, ConfigError),
    "not_found": (404, FileNotFoundError),
    "denied": (403, PermissionError),
    "over": (410, RemoteLeaseExpired),
    "fenced": (409, RemoteLeaseExpired),
    "unknown": (500, DeliveryUnknown),
    "frame": (500, FrameError),
    "guest": (500, GuestFailure),
    "infrastructure": (500, InfrastructureError),
}
"""HTTP status and client exception by error code. An exception gets the first code whose class matches."""


def error_code(error: Exception) -> str | None:
    """Return the code of an exception, or None."""
    return next((code for code, (_, kind) in ERRORS.items() if isinstance(error, kind)), None)


def error_from_reply(body: Any, status: int, about: str) -> Exception:
    """Return the exception that a reply describes; `about` names the endpoint."""
    described = body if isinstance(body, dict) else {}
    code = described.get("error")
    if isinstance(code, str) and code in ERRORS:
        return ERRORS[code][1](str(described.get("message", "")))
    if status == 410:
        return RemoteLeaseExpired(f"{about}: 410 {str(code or '')[:300]}".rstrip())
    return InfrastructureError(f"{about}: {status} {str(code or '')[:300]}".rstrip())


def encode_frame(frame: Frame, base: Frame | None) -> tuple[str, bytes]:
    """Return header and body of `frame` for a client that has `base`, an earlier frame since the last reset."""
    height, width = frame.bgrx.shape[:2]
    box: tuple[int, int, int, int] | None = (0, 0, width, height)
    if is_delta_of(frame, base):
        box = frame.changed_bbox
    elif base is not None and base.bgrx.shape == frame.bgrx.shape:
        box = changed_bbox(*(each.bgrx.view(np.uint32)[:, :, 0] for each in (base, frame)))
    left, top, right, bottom = box or (0, 0, 0, 0)
    values = {
        item.name: _to_json(getattr(frame, item.name)) for item in fields(Frame) if item.init and item.name != "bgrx"
    }
    base_hash = base.content_hash if base is not None and base.bgrx.shape == frame.bgrx.shape else None
    pixels = frame.bgrx[top:bottom, left:right].tobytes()
    body = _compress(pixels)
    header = {"size": [width, height], "base": base_hash, "box": box, "zstd": body is not None, "frame": values}
    return json.dumps(header, separators=(",", ":")), pixels if body is None else body


def _compress(pixels: bytes) -> bytes | None:
    """Return `pixels` as zstd, or None if that saves too little."""
    compressor = zstandard.ZstdCompressor(level=1)
    if len(pixels) > 4 * SAMPLE_BYTES:
        start = (len(pixels) - SAMPLE_BYTES) // 2
        if len(compressor.compress(pixels[start : start + SAMPLE_BYTES])) > MAX_COMPRESSED_RATIO * SAMPLE_BYTES:
            return None
    body = compressor.compress(pixels)
    return body if len(body) < MAX_COMPRESSED_RATIO * len(pixels) else None


def is_delta_of(frame: Frame, base: Frame | None) -> bool:
    """Return whether `frame` directly follows `base`, so that its `changed_bbox` is the difference."""
    return base is not None and base.bgrx.shape == frame.bgrx.shape and frame.sequence == base.sequence + 1


def decode_frame(header: str | None, body: bytes, base: Frame | None, copy: np.ndarray | None = None) -> Frame:
    """Return the frame of a reply. Raises `FrameError` if it is incomplete.

    `base` is the client's frame; `copy` is a writable copy of its pixels (None: made here).
    """
    try:
        described = json.loads(header or "")
        width, height = described["size"]
        if described["base"] is None:
            pixels = np.empty((height, width, 4), np.uint8)
        elif base is not None and described["base"] == base.content_hash:
            pixels = base.bgrx.copy() if copy is None else copy
        else:
            raise FrameError("received a frame delta for an unknown base frame")
        left, top, right, bottom = described["box"] or (0, 0, 0, 0)
        if not (0 <= left <= right <= pixels.shape[1] and 0 <= top <= bottom <= pixels.shape[0]):
            raise FrameError("received a rectangle outside the screen")
        if described.get("zstd"):
            body = _decompress(body, (right - left) * (bottom - top) * 4)
        if len(body) != (right - left) * (bottom - top) * 4:
            raise FrameError(f"received {len(body)} bytes for {right - left}x{bottom - top} pixels: truncated frame")
        pixels[top:bottom, left:right] = np.frombuffer(body, np.uint8).reshape(bottom - top, right - left, 4)
        pixels.flags.writeable = False
        return Frame(bgrx=pixels, **{name: _from_json(value) for name, value in described["frame"].items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FrameError(f"received an invalid frame: {type(error).__name__} {error}") from None


def _decompress(body: bytes, size: int) -> bytes:
    """Return exactly `size` bytes. Raises `FrameError`."""
    try:
        if zstandard.frame_content_size(body) != size:
            raise FrameError("received pixels of the wrong size")
        return zstandard.ZstdDecompressor().decompress(body)
    except zstandard.ZstdError as error:
        raise FrameError(f"received pixels that cannot be decompressed: {error}") from None


def _to_json(value: Any) -> Any:
    """Return a frame field as JSON; an array becomes its shape and bytes."""
    if isinstance(value, np.ndarray):
        return {"shape": value.shape, "bytes": base64.b64encode(value.tobytes()).decode()}
    return [_to_json(item) for item in value] if isinstance(value, tuple) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return np.frombuffer(base64.b64decode(value["bytes"]), np.uint8).reshape(value["shape"])
    return tuple(_from_json(item) for item in value) if isinstance(value, list) else value
