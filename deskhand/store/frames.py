"""Screens on disk, each once. Invariant: a file's name is the SHA-256 of the raw RGB pixels inside it; a file is whole or absent,
and written after the one that it builds on.

A file is a small header and one zstd frame: the RGB rows of the screen, or, where little has changed, their exclusive or with the
rows of a *key screen*, which is itself stored whole. So reading takes two files at most.
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

_HEADER = struct.Struct("<4sHH32s")
_MAGIC = b"DHS1"
_WHOLE = bytes(32)
_LEVEL = 1
KEYS_IN_MEMORY = 6
LIKE_ENOUGH = 0.3
"""A screen builds on a key screen when at most this share of its pixels differs (of every eighth pixel of every eighth row)."""


class Frames:
    """Files under `folder`, in 256 subfolders by the first two hexadecimal digits. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: set[str] = set()
        self._keys: OrderedDict[str, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    def path(self, sha256: str) -> Path:
        """Where the screen of that name is or would be."""
        return self.folder / sha256[:2] / f"{sha256}.zst"

    def put(self, sha256: str, rgb: np.ndarray) -> None:
        """Keep a screen, `uint8[H, W, 3]`; nothing is written when it is there already."""
        if sha256 in self._known:
            return
        with self._writing:  # or a screen could be held for a key screen by one thread and be written as none by another
            if not self.path(sha256).exists():
                self._write(self.path(sha256), sha256, rgb)
        self._known.add(sha256)

    def _write(self, path: Path, sha256: str, rgb: np.ndarray) -> None:
        height, width = rgb.shape[:2]
        base = self._likest(rgb)
        if base is None:
            head, body = _HEADER.pack(_MAGIC, width, height, _WHOLE), rgb
        else:
            head, body = _HEADER.pack(_MAGIC, width, height, bytes.fromhex(base)), rgb ^ self._key(base)
        packed = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(np.ascontiguousarray(body).data)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.partial")
        partial.write_bytes(head + packed)
        partial.replace(path)
        if base is None:
            self._remember(sha256, rgb)

    def rgb(self, sha256: str) -> np.ndarray:
        """`uint8[H, W, 3]`. Raises `InfrastructureError` when the file is missing, unreadable or holds other pixels."""
        pixels = self._pixels(sha256)
        if hashlib.sha256(pixels.tobytes()).hexdigest() != sha256:
            raise InfrastructureError(f"screen {self.path(sha256)} does not hold the pixels that its name says; restore the file")
        return pixels

    def png(self, sha256: str) -> bytes:
        """The screen as a PNG. Raises `InfrastructureError` when the file is missing or unreadable."""
        buffer = io.BytesIO()
        Image.fromarray(self._pixels(sha256)).save(buffer, "PNG", compress_level=1)
        return buffer.getvalue()

    def size(self, sha256: str) -> tuple[int, int] | None:
        """(width, height) from the file's header; None when the screen is not kept."""
        try:
            with self.path(sha256).open("rb") as file:
                magic, width, height, _ = _HEADER.unpack(file.read(_HEADER.size))
        except (OSError, struct.error):
            return None
        return (width, height) if magic == _MAGIC else None

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self._known or self.path(sha256).exists()

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path in sorted(self.folder.glob("??/*.zst")))

    def _pixels(self, sha256: str) -> np.ndarray:
        pixels, base = self._read(sha256)
        if base is None:
            return pixels
        key = self._key(base)
        if key.shape != pixels.shape:
            raise InfrastructureError(f"screen {self.path(sha256)} cannot be read: {self.path(base)} is of another size")
        return pixels ^ key

    def _read(self, sha256: str) -> tuple[np.ndarray, str | None]:
        """What the file holds, and the name of the key screen that it builds on."""
        path = self.path(sha256)
        try:
            data = path.read_bytes()
            magic, width, height, base = _HEADER.unpack(data[: _HEADER.size])
            if magic != _MAGIC:
                raise ValueError("it is no screen of this version")
            size = width * height * 3
            body = zstandard.ZstdDecompressor().decompress(data[_HEADER.size :], max_output_size=size)
            pixels = np.frombuffer(body, np.uint8).reshape(height, width, 3)
        except FileNotFoundError:
            raise InfrastructureError(f"screen {path} is missing; the run folder is incomplete") from None
        except (OSError, ValueError, struct.error, zstandard.ZstdError) as error:
            raise InfrastructureError(f"screen {path} cannot be read: {error}") from error
        return pixels, None if base == _WHOLE else base.hex()

    def _key(self, sha256: str) -> np.ndarray:
        with self._lock:
            if sha256 in self._keys:
                self._keys.move_to_end(sha256)
                return self._keys[sha256]
        pixels, base = self._read(sha256)
        if base is not None:
            raise InfrastructureError(f"screen {self.path(sha256)} cannot be read: it is no key screen, but another builds on it")
        self._remember(sha256, pixels)
        return pixels

    def _remember(self, sha256: str, pixels: np.ndarray) -> None:
        with self._lock:
            self._keys[sha256] = pixels
            while len(self._keys) > KEYS_IN_MEMORY:
                self._keys.popitem(last=False)

    def _likest(self, rgb: np.ndarray) -> str | None:
        """The key screen in memory from which `rgb` differs least, if that is little."""
        sample = rgb[::8, ::8]
        with self._lock:
            keys = [(name, key) for name, key in self._keys.items() if key.shape == rgb.shape]
        shares = [(float((key[::8, ::8] != sample).any(axis=2).mean()), name) for name, key in keys]
        share, name = min(shares, default=(1.0, ""))
        return name if share <= LIKE_ENOUGH else None
