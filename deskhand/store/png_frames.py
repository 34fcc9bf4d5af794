"""Screenshots as PNG files, for exports; named by the SHA-256 of their RGB pixels."""

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
        """Return the path of the screenshot with that name, whether it exists or not."""
        return self.folder / sha256[:2] / f"{sha256}.png"

    def put(self, sha256: str, png: bytes) -> None:
        """Write a screenshot unless it exists."""
        path = self.path(sha256)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png)

    def rgb(self, sha256: str) -> np.ndarray:
        """Return the pixels, `uint8[H, W, 3]`. Raises `InfrastructureError` if missing, unreadable or altered."""
        path = self.path(sha256)
        try:
            with Image.open(io.BytesIO(path.read_bytes())) as image:
                pixels = np.asarray(image.convert("RGB"))
        except FileNotFoundError:
            raise InfrastructureError(f"{path}: missing; the export is incomplete") from None
        except (OSError, SyntaxError) as error:
            raise InfrastructureError(f"{path}: cannot be read ({error})") from error
        if hashlib.sha256(pixels.tobytes()).hexdigest() != sha256:
            raise InfrastructureError(f"{path}: pixels do not match the file name; restore the file")
        return pixels

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path in sorted(self.folder.glob("??/*.png")))
