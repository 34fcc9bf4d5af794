"""Checks that need a file which lies beside the task file: a picture to compare with, a function of the host. Invariant: guests'
bytes are read, and the function is run, in a process of its own with bounded time and memory (`tasks.isolated`).
"""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from deskhand.errors import EvaluatorError
from deskhand.tasks import document_readers, subprocess_call, user_function
from deskhand.tasks.checks.base import UNREADABLE, CheckModel, GuestPath, PathBeside, measure_file
from deskhand.tasks.task import CheckResult, StagedDesktopLike


class ReferenceFileCheck(CheckModel):
    """A check that is measured with the folder of its task file."""

    def needs(self) -> str | None:
        """The file that must lie there."""
        raise NotImplementedError

    async def measure(self, desktop: StagedDesktopLike, folder: Path) -> CheckResult:
        """See `Leaf.measure`."""
        raise NotImplementedError


class ImageCheck(ReferenceFileCheck):
    """A picture (PNG, JPEG, BMP, GIF, TIFF or WebP): its `size` in pixels, and how similar it is to the picture `like`: the mean
    structural similarity of the two in grey, where 1 is the same and 0 is nothing in common, is at least `similar`."""

    path: GuestPath
    size: tuple[int, int] | None = Field(default=None, strict=False)
    like: PathBeside | None = None
    similar: float = Field(default=0.95, gt=0, le=1)

    @model_validator(mode="after")
    def _asks(self) -> ImageCheck:
        if self.size is None and self.like is None:
            raise ValueError("give at least one of size, like")
        return self

    def needs(self) -> str | None:
        return self.like

    async def measure(self, desktop: StagedDesktopLike, folder: Path) -> CheckResult:
        like = await asyncio.to_thread((folder / self.like).read_bytes) if self.like is not None else b""
        return await measure_file(desktop, self.path, lambda data: self._look(data, like))

    def _look(self, data: bytes, like: bytes) -> str | None:
        joined = len(like).to_bytes(8, "big") + like + data
        width, height, similar = subprocess_call.call_in_subprocess(f"{document_readers.__name__}:picture", joined)
        if self.size is not None and (width, height) != self.size:
            return f"has {width}x{height} pixels, not {self.size[0]}x{self.size[1]}"
        if similar is not None and similar < self.similar:
            return f"is {similar:.3f} similar to {self.like}, not {self.similar:g}"
        return None


class PythonCheck(ReferenceFileCheck):
    """What a function of the task's author says of files of the guest: `function(files, arguments)` in `file`, where `files` has
    the bytes of what `reads` names by path, None for what is no plain file. It gives a number from 0 to 1, True or False, or such
    a value and a text."""

    file: PathBeside
    function: str = Field(pattern=r"^[A-Za-z_]\w*$")
    reads: list[GuestPath] = Field(min_length=1)
    arguments: Any = None
    timeout_s: float = Field(default=10.0, gt=0, le=60)

    def needs(self) -> str | None:
        return self.file

    async def measure(self, desktop: StagedDesktopLike, folder: Path) -> CheckResult:
        source = await asyncio.to_thread((folder / self.file).read_text, encoding="utf-8")
        files = {path: await _base64(desktop, path) for path in self.reads}
        asked = {
            "source": source,
            "name": self.file,
            "function": self.function,
            "files": files,
            "arguments": self.arguments,
        }
        said = await asyncio.to_thread(
            subprocess_call.call_in_subprocess,
            f"{user_function.__name__}:judge",
            json.dumps(asked).encode(),
            timeout_s=self.timeout_s,
        )
        value, detail = said if isinstance(said, list) and len(said) == 2 else (said, "")
        if not isinstance(value, bool | int | float):
            raise EvaluatorError(
                f"{self.file}: {self.function} gave {str(said)[:80]!r}; give a number from 0 to 1, True or False"
            )
        return CheckResult(float(value), f"{self.function}: {detail or value}")


async def _base64(desktop: StagedDesktopLike, path: str) -> str | None:
    try:
        return base64.b64encode(await desktop.pull(path)).decode()
    except UNREADABLE:
        return None
