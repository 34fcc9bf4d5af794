"""Screens on disk, each once. Invariant: a file's name is the SHA-256 of the raw RGB pixels inside it; a file is whole or absent,
and written after the one that it builds on.

A file is a small header and one zstd frame: the RGB rows of the screen, or, where little has changed, the tiles that differ from
another screen (a bit for each tile, then the pixels of those that differ; `tiles.py`). That one may build on another in turn, but
at most `DEEPEST` follow each other before a screen is stored whole again: so many files and one more are read at most.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterator
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
"""A screen builds on another when at most this share of its pixels differs (of every eighth pixel of every eighth row)."""


class Frames:
    """Files under `folder`, in 256 subfolders by the first two hexadecimal digits. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: set[str] = set()
        self._recent: OrderedDict[str, tuple[np.ndarray, int, np.ndarray]] = OrderedDict()
        """Screens that were written or needed lately, on how many each builds, and a sample of its pixels."""
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    def path(self, sha256: str) -> Path:
        """Where the screen of that name is or would be."""
        return self.folder / sha256[:2] / f"{sha256}.zst"

    def put(self, sha256: str, rgb: np.ndarray) -> None:
        """Keep a screen, `uint8[H, W, 3]`; nothing is written when it is there already."""
        if sha256 in self._known:
            return
        with self._writing:  # or two threads could build one screen on two others
            if not self.path(sha256).exists():
                self._write(self.path(sha256), sha256, rgb)
        self._known.add(sha256)

    def _write(self, path: Path, sha256: str, rgb: np.ndarray) -> None:
        height, width = rgb.shape[:2]
        base = self._likest(rgb)
        if base is None:
            depth, body = 0, rgb.tobytes()
        else:
            before, depth = self._screen(base, MAX_DELTA_CHAIN)
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
        """`uint8[H, W, 3]`. Raises `InfrastructureError` when the file is missing, unreadable or holds other pixels."""
        pixels, _ = self._read(sha256)
        if hashlib.sha256(pixels.tobytes()).hexdigest() != sha256:
            raise InfrastructureError(
                f"screen {self.path(sha256)} does not hold the pixels that its name says; restore the file"
            )
        return pixels

    def png(self, sha256: str) -> bytes:
        """The screen as a PNG. Raises `InfrastructureError` when the file is missing or unreadable."""
        buffer = io.BytesIO()
        Image.fromarray(self._read(sha256)[0]).save(buffer, "PNG", compress_level=1)
        return buffer.getvalue()

    def size(self, sha256: str) -> tuple[int, int] | None:
        """(width, height) from the file's header; None when the screen is not kept."""
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

    def builds_on(self, sha256: str) -> str | None:
        """The screen from which a kept one was told apart; None for one that is stored whole. Raises `InfrastructureError`."""
        base = self._file(sha256)[3]
        return None if base == _WHOLE else base.hex()

    def _file(self, sha256: str) -> tuple[int, int, int, bytes, bytes]:
        """(width, height, depth, base, body) of a file."""
        path = self.path(sha256)
        try:
            data = path.read_bytes()
            magic, width, height, depth, base = _HEADER.unpack(data[: _HEADER.size])
            if magic != _MAGIC or depth > MAX_DELTA_CHAIN or (depth == 0) != (base == _WHOLE):
                raise ValueError("it is no screen of this version")
            rows, columns = frame_delta.grid(width, height)
            most = width * height * 3 + rows * columns
            body = zstandard.ZstdDecompressor().decompress(data[_HEADER.size :], max_output_size=most)
        except FileNotFoundError:
            raise InfrastructureError(f"screen {path} is missing; the run folder is incomplete") from None
        except (OSError, ValueError, struct.error, zstandard.ZstdError) as error:
            raise InfrastructureError(f"screen {path} cannot be read: {error}") from error
        return width, height, depth, base, body

    def _read(self, sha256: str, deepest: int = MAX_DELTA_CHAIN) -> tuple[np.ndarray, int]:
        """The pixels, and on how many others they build, which are `deepest` at most. Raises `InfrastructureError`."""
        width, height, depth, base, body = self._file(sha256)
        try:
            if depth > deepest:  # so it ends, whatever the files say
                raise ValueError("what builds on it builds on no more than it does")
            if depth == 0:
                return np.frombuffer(body, np.uint8).reshape(height, width, 3), 0
            before, _ = self._screen(base.hex(), depth - 1)
            if before.shape != (height, width, 3):
                raise ValueError(f"{self.path(base.hex())}, on which it builds, is of another size")
            rows, columns = frame_delta.grid(width, height)
            bits = -(-rows * columns // 8)
            changed = np.unpackbits(np.frombuffer(body[:bits], np.uint8), count=rows * columns).reshape(rows, columns)
            return frame_delta.apply_delta(before, changed, body[bits:]), depth
        except ValueError as error:
            raise InfrastructureError(f"screen {self.path(sha256)} cannot be read: {error}") from error

    def _screen(self, sha256: str, deepest: int) -> tuple[np.ndarray, int]:
        """A screen that others build on, from memory or from its file."""
        with self._lock:
            if sha256 in self._recent:
                self._recent.move_to_end(sha256)
                return self._recent[sha256][:2]
        pixels, depth = self._read(sha256, deepest)
        self._remember(sha256, pixels, depth)
        return pixels, depth

    def _remember(self, sha256: str, pixels: np.ndarray, depth: int) -> None:
        with self._lock:
            self._recent[sha256] = pixels, depth, _sample(pixels)
            most = max(1, REMEMBERED_BYTES // pixels.nbytes)
            while len(self._recent) > most:
                self._recent.popitem(last=False)

    def _likest(self, rgb: np.ndarray) -> str | None:
        """The screen in memory from which `rgb` differs least, if that is little and not too many build on each other there.

        The next best is no choice: many screens would build on it before one is whole again, and all of them differ more from it.
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
    """One number for every eighth pixel of every eighth row."""
    red, green, blue = np.moveaxis(rgb[::8, ::8].astype(np.uint32), 2, 0)
    return red << 16 | green << 8 | blue
