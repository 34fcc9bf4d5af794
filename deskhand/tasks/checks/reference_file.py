"""Checks that need a file next to the task file: `image` (a reference image) and `python` (a function).

The function runs in a subprocess with bounded time and memory, like every parser (`tasks.subprocess_call`).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pydantic import Field

from deskhand.desktop.base import StageableDesktop
from deskhand.errors import EvaluatorError
from deskhand.tasks import file_problems
from deskhand.tasks.checks.base import CheckModel, GuestPath, RelativePath, measure_file
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.guest_files import read_file
from deskhand.tasks.reader_process import call_user_function
from deskhand.tasks.subprocess_call import read_in_subprocess
from deskhand.tasks.task import CheckResult

USER_MEMORY_MIB = 640
"""Memory of a task author's function, which may import large libraries; a fifth of it is the limit of its files."""


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
        fields = self.model_dump(exclude={"path"})
        return await measure_file(desktop, self.path, file_problems.image_problem, like, fields)


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
        read = {path: await read_file(desktop, path) for path in self.reads}
        files = {path: data for path, data in read.items() if data is not None}
        missing = [path for path in self.reads if path not in files]
        request = (list(files), missing, source, self.file, self.function, self.arguments)
        limits = {"cpu_s": self.timeout_s, "memory_mib": USER_MEMORY_MIB}
        try:
            result = await read_in_subprocess(call_user_function, list(files.values()), *request, **limits)
        except InvalidDocument as error:
            return CheckResult(0.0, f"{', '.join(files)}: {error}")
        value, detail = result if isinstance(result, list) and len(result) == 2 else (result, "")
        if not isinstance(value, bool | int | float):
            raise EvaluatorError(
                f"{self.file}: {self.function} must return a number in [0, 1] or a bool, got {str(result)[:80]!r}"
            )
        return CheckResult(float(value), f"{self.function}: {detail or value}")
