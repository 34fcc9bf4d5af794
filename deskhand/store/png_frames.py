"""Screens as PNG files, which anybody can open: for exports. Invariant: a name is the SHA-256 of the RGB pixels inside the file."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from deskhand.errors import InfrastructureError


class PngFrames:
    """PNG files under `folder`, in 256 subfolders by the first two hexadecimal digits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, sha256: str) -> Path:
        """Where the screen of that name is or would be."""
        return self.folder / sha256[:2] / f"{sha256}.png"

    def put(self, sha256: str, png: bytes) -> None:
        """Keep a screen; nothing is written when it is there already."""
        path = self.path(sha256)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png)

    def rgb(self, sha256: str) -> np.ndarray:
        """`uint8[H, W, 3]`. Raises `InfrastructureError` when the file is missing, unreadable or holds other pixels."""
        path = self.path(sha256)
        try:
            with Image.open(io.BytesIO(path.read_bytes())) as image:
                pixels = np.asarray(image.convert("RGB"))
        except FileNotFoundError:
            raise InfrastructureError(f"screen {path} is missing; the export is incomplete") from None
        except (OSError, SyntaxError) as error:
            raise InfrastructureError(f"screen {path} cannot be read: {error}") from error
        if hashlib.sha256(pixels.tobytes()).hexdigest() != sha256:
            raise InfrastructureError(f"screen {path} does not hold the pixels that its name says; restore the file")
        return pixels

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path in sorted(self.folder.glob("??/*.png")))
