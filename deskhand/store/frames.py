"""Screens on disk, each once. Invariant: a file's name is the SHA-256 of the raw RGB pixels inside it, and a file is whole or
absent."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from deskhand.errors import InfrastructureError


class Frames:
    """PNG files under `folder`, in 256 subfolders by the first two hexadecimal digits. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: set[str] = set()

    def path(self, sha256: str) -> Path:
        """Where the screen of that name is or would be."""
        return self.folder / sha256[:2] / f"{sha256}.png"

    def put(self, sha256: str, png: bytes) -> None:
        """Keep a screen; nothing is written when it is there already."""
        if sha256 in self._known:
            return
        path = self.path(sha256)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.partial")
            partial.write_bytes(png)
            partial.replace(path)
        self._known.add(sha256)

    def png(self, sha256: str) -> bytes:
        """The PNG bytes. Raises `InfrastructureError` when the screen is not there."""
        try:
            return self.path(sha256).read_bytes()
        except FileNotFoundError:
            raise InfrastructureError(f"screen {self.path(sha256)} is missing; the run folder is incomplete") from None

    def rgb(self, sha256: str) -> np.ndarray:
        """`uint8[H, W, 3]`. Raises `InfrastructureError` when the file is missing, unreadable or holds other pixels."""
        try:
            with Image.open(io.BytesIO(self.png(sha256))) as image:
                pixels = np.asarray(image.convert("RGB"))
        except (OSError, SyntaxError) as error:
            raise InfrastructureError(f"screen {self.path(sha256)} cannot be read: {error}") from error
        if hashlib.sha256(pixels.tobytes()).hexdigest() != sha256:
            raise InfrastructureError(f"screen {self.path(sha256)} does not hold the pixels that its name says; restore the file")
        return pixels

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self._known or self.path(sha256).exists()

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path in sorted(self.folder.glob("??/*.png")))
