"""Checks that need a file next to the task file: `image` (a reference image) and `python` (a function).

Guest bytes are parsed, and the function runs, in a subprocess with bounded time and memory (`tasks.subprocess_call`).
"""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

from pydantic import Field

from deskhand.desktop.base import StageableDesktop
from deskhand.errors import EvaluatorError
from deskhand.tasks import document_readers, subprocess_call
from deskhand.tasks.checks.base import CheckModel, GuestPath, RelativePath, measure_file
from deskhand.tasks.guest_files import read_file
from deskhand.tasks.task import CheckResult


class ReferenceFileCheck(CheckModel):
    """A check that is measured with the folder of its task file."""

    def required_file(self) -> str | None:
        """Return the file that must exist in that folder, or None."""
        raise NotImplementedError

    async def measure(self, desktop: StageableDesktop, folder: Path) -> CheckResult:
        """Return the value; see `FactCheck.measure`."""
        raise NotImplementedError


class ImageCheck(ReferenceFileCheck):
    """An image (PNG, JPEG, BMP, GIF, TIFF or WebP): its `size` in pixels and its similarity to the image `like`.

    The mean structural similarity in grayscale (1: identical, 0: nothing in common) must be at least `similar`.
    """

    needs_one_of = ("size", "like")
    path: GuestPath
    size: tuple[int, int] | None = Field(default=None, strict=False)
    like: RelativePath | None = None
    similar: float = Field(default=0.95, gt=0, le=1)

    def required_file(self) -> str | None:
        return self.like

    async def measure(self, desktop: StageableDesktop, folder: Path) -> CheckResult:
        like = await asyncio.to_thread((folder / self.like).read_bytes) if self.like is not None else b""
        return await measure_file(desktop, self.path, lambda data: self._find_problem(data, like))

    def _find_problem(self, data: bytes, like: bytes) -> str | None:
        payload = len(like).to_bytes(8, "big") + like + data
        width, height, similar = subprocess_call.call_in_subprocess(
            f"{document_readers.__name__}:compare_images", payload
        )
        if self.size is not None and (width, height) != self.size:
            return f"has {width}x{height} pixels, not {self.size[0]}x{self.size[1]}"
        if similar is not None and similar < self.similar:
            return f"similarity to {self.like} is {similar:.3f}; minimum: {self.similar:g}"
        return None


class PythonCheck(ReferenceFileCheck):
    """A function of the task's author: `function(files, arguments)` in `file`.

    `files` has the bytes of the guest files `reads` by path (None if it is not a regular file). It returns a number
    in [0, 1], True or False, or such a value and a text.
    """

    file: RelativePath
    function: str = Field(pattern=r"^[A-Za-z_]\w*$")
    reads: list[GuestPath] = Field(min_length=1)
    arguments: Any = None
    timeout_s: float = Field(default=10.0, gt=0, le=60)

    def required_file(self) -> str | None:
        return self.file

    async def measure(self, desktop: StageableDesktop, folder: Path) -> CheckResult:
        source = await asyncio.to_thread((folder / self.file).read_text, encoding="utf-8")
        request = {
            "source": source,
            "name": self.file,
            "function": self.function,
            "files": {path: await _base64(desktop, path) for path in self.reads},
            "arguments": self.arguments,
        }
        result = await asyncio.to_thread(
            subprocess_call.call_in_subprocess,
            f"{subprocess_call.__name__}:call_user_function",
            json.dumps(request).encode(),
            timeout_s=self.timeout_s,
        )
        value, detail = result if isinstance(result, list) and len(result) == 2 else (result, "")
        if not isinstance(value, bool | int | float):
            raise EvaluatorError(
                f"{self.file}: {self.function} must return a number in [0, 1] or a bool, got {str(result)[:80]!r}"
            )
        return CheckResult(float(value), f"{self.function}: {detail or value}")


async def _base64(desktop: StageableDesktop, path: str) -> str | None:
    data = await read_file(desktop, path)
    return None if data is None else base64.b64encode(data).decode()
