"""Screenshots of a run, each stored once under the SHA-256 of its raw RGB pixels.

Used by `store.run` as `Run.frames`. A file is a small header and one zstd frame with either all pixels or the tiles
that differ from a base screenshot (one bit per tile, then the changed pixels; see `store.frame_delta`). A base may
itself be a delta; a chain has at most `MAX_DELTA_CHAIN` deltas.

Invariant: a file is complete or absent, and is written after its base.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import zstandard
from PIL import Image

from deskhand.errors import InfrastructureError
from deskhand.store import frame_delta

_HEADER = struct.Struct("<4sHHB32s")
_MAGIC = b"DHS2"
_WHOLE = bytes(32)
_LEVEL = 6
MAX_DELTA_CHAIN = 8
REMEMBERED_BYTES = 64 << 20
MIN_SIMILARITY = 0.3
"""Maximum share of differing pixels (of every eighth pixel of every eighth row) for a delta."""


class Frames:
    """Files under `folder`, in 256 subfolders by the first two hexadecimal digits. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: set[str] = set()
        self._recent: OrderedDict[str, tuple[np.ndarray, int, np.ndarray]] = OrderedDict()
        """Recently used screenshots: pixels, delta depth, and a sample of the pixels."""
        self._writing: dict[str, Future[None]] = {}
        self._lock = threading.Lock()

    def path(self, sha256: str) -> Path:
        """Return the path of the screenshot with that name, whether it exists or not."""
        return self.folder / sha256[:2] / f"{sha256}.zst"

    def put(self, sha256: str, rgb: np.ndarray) -> None:
        """Store a screenshot, `uint8[H, W, 3]`, unless it exists. Threads store different screenshots concurrently."""
        if sha256 in self._known:
            return
        with self._lock:  # otherwise two threads could write one file with different bases
            done = self._writing.get(sha256)
            is_owner = done is None
            if done is None:
                done = self._writing[sha256] = Future()
        if not is_owner:
            done.result()
            return
        try:
            if not self.path(sha256).exists():
                self._write(self.path(sha256), sha256, rgb)
            self._known.add(sha256)
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._writing[sha256]

    def _write(self, path: Path, sha256: str, rgb: np.ndarray) -> None:
        height, width = rgb.shape[:2]
        base = self._choose_base(rgb)
        if base is None:
            depth, body = 0, rgb.tobytes()
        else:
            before, depth = self._base(base, MAX_DELTA_CHAIN)
            depth, (changed, pixels) = depth + 1, frame_delta.encode_delta(before, rgb)
            body = np.packbits(changed).tobytes() + pixels
        head = _HEADER.pack(_MAGIC, width, height, depth, bytes.fromhex(base) if base else _WHOLE)
        packed = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(body)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.partial")
        partial.write_bytes(head + packed)
        partial.replace(path)
        self._remember(sha256, rgb, depth)

    def rgb(self, sha256: str) -> np.ndarray:
        """Return the pixels, `uint8[H, W, 3]`. Raises `InfrastructureError` if missing, unreadable or altered."""
        pixels, _ = self._read(sha256)
        if hashlib.sha256(np.ascontiguousarray(pixels).data).hexdigest() != sha256:
            raise InfrastructureError(f"{self.path(sha256)}: pixels do not match the file name; restore the file")
        return pixels

    def pixels(self, sha256: str) -> np.ndarray:
        """Like `rgb`, for readers that compare the hash themselves, such as `ImageCache(fetch=...)`."""
        return self._read(sha256)[0]

    def png(self, sha256: str) -> bytes:
        """Return the screenshot as PNG. Raises `InfrastructureError` if the file is missing or unreadable."""
        buffer = io.BytesIO()
        Image.fromarray(self._read(sha256)[0]).save(buffer, "PNG", compress_level=1)
        return buffer.getvalue()

    def size(self, sha256: str) -> tuple[int, int] | None:
        """Return (width, height) from the file's header; None if the screenshot is not stored."""
        try:
            with self.path(sha256).open("rb") as file:
                magic, width, height, _, _ = _HEADER.unpack(file.read(_HEADER.size))
        except (OSError, struct.error):
            return None
        return (width, height) if magic == _MAGIC else None

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self._known or self.path(sha256).exists()

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path in sorted(self.folder.glob("??/*.zst")))

    def _file(self, sha256: str) -> tuple[int, int, int, bytes, bytes]:
        path = self.path(sha256)
        try:
            data = path.read_bytes()
            magic, width, height, depth, base = _HEADER.unpack(data[: _HEADER.size])
            if magic != _MAGIC or depth > MAX_DELTA_CHAIN or (depth == 0) != (base == _WHOLE):
                raise ValueError("not a screenshot file of this version")
            rows, columns = frame_delta.grid(width, height)
            max_bytes = width * height * 3 + rows * columns
            body = zstandard.ZstdDecompressor().decompress(data[_HEADER.size :], max_output_size=max_bytes)
        except FileNotFoundError:
            raise InfrastructureError(f"{path}: missing; the run directory is incomplete") from None
        except (OSError, ValueError, struct.error, zstandard.ZstdError) as error:
            raise InfrastructureError(f"{path}: cannot be read ({error})") from error
        return width, height, depth, base, body

    def _read(self, sha256: str, max_depth: int = MAX_DELTA_CHAIN) -> tuple[np.ndarray, int]:
        """Return the pixels and the delta depth. Raises `InfrastructureError`, also for a depth above `max_depth`."""
        width, height, depth, base, body = self._file(sha256)
        try:
            if depth > max_depth:  # ends the recursion on damaged files
                raise ValueError("frame delta chain is cyclic or too long")
            if depth == 0:
                return np.frombuffer(body, np.uint8).reshape(height, width, 3), 0
            before, _ = self._base(base.hex(), depth - 1)
            if before.shape != (height, width, 3):
                raise ValueError(f"its base {self.path(base.hex())} has another size")
            rows, columns = frame_delta.grid(width, height)
            bits = -(-rows * columns // 8)
            changed = np.unpackbits(np.frombuffer(body[:bits], np.uint8), count=rows * columns).reshape(rows, columns)
            return frame_delta.apply_delta(before, changed, body[bits:]), depth
        except ValueError as error:
            raise InfrastructureError(f"{self.path(sha256)}: cannot be read ({error})") from error

    def _base(self, sha256: str, max_depth: int) -> tuple[np.ndarray, int]:
        """Return pixels and depth of a base, from memory or from its file."""
        with self._lock:
            if sha256 in self._recent:
                self._recent.move_to_end(sha256)
                return self._recent[sha256][:2]
        pixels, depth = self._read(sha256, max_depth)
        self._remember(sha256, pixels, depth)
        return pixels, depth

    def _remember(self, sha256: str, pixels: np.ndarray, depth: int) -> None:
        with self._lock:
            self._recent[sha256] = pixels, depth, _sample(pixels)
            max_entries = max(1, REMEMBERED_BYTES // pixels.nbytes)
            while len(self._recent) > max_entries:
                self._recent.popitem(last=False)

    def _choose_base(self, rgb: np.ndarray) -> str | None:
        """Return the most similar screenshot in memory; None if it differs too much or its chain is full.

        The second most similar is not considered: later screenshots would chain on it although they differ more.
        """
        sample = _sample(rgb)
        with self._lock:
            recent = [
                (name, depth, its) for name, (pixels, depth, its) in self._recent.items() if pixels.shape == rgb.shape
            ]
        if not recent:
            return None
        share, _, name, depth = min(
            (float((its != sample).mean()), -at, name, depth) for at, (name, depth, its) in enumerate(recent)
        )
        return name if share <= MIN_SIMILARITY and depth < MAX_DELTA_CHAIN else None


def _sample(rgb: np.ndarray) -> np.ndarray:
    red, green, blue = np.moveaxis(rgb[::8, ::8].astype(np.uint32), 2, 0)
    return red << 16 | green << 8 | blue
