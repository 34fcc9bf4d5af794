"""What every check of a native task is made of. Invariant: what the agent did to a file (gone, a folder, not of its format) is a
wrong answer; what the desktop or the check itself did wrong is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Annotated, Protocol

from pydantic import AfterValidator, BaseModel, ConfigDict

from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.task import CheckResult, StagedDesktopLike

UNREADABLE = (FileNotFoundError, PermissionError, IsADirectoryError)
"""What a desktop raises for a path that is no plain file: the agent's doing."""
LONGEST_QUOTE = 200


class CheckModel(BaseModel):
    """A piece of a native task file: what is not known is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class FileCheckProtocol(Protocol):
    """One fact about the end state."""

    async def measure(self, desktop: StagedDesktopLike) -> CheckResult:
        """The fact as a value in [0, 1]. Raises `InfrastructureError` when the desktop cannot be read."""
        ...


def guest_path(path: str) -> str:
    """A path in the guest's home, as it is written. Raises `ValueError`."""
    parts = PurePosixPath(path).parts
    if not parts or ".." in parts or "\0" in path or path.endswith("/"):
        raise ValueError("give a file of the guest's home, relative to it or from /, without ..")
    return path


GuestPath = Annotated[str, AfterValidator(guest_path)]


def path_beside(path: str) -> str:
    """A path of the host below the folder of the task file, as it is written: what a file from elsewhere names must not carry other
    files of this machine into a guest. Raises `ValueError`."""
    pure = PurePosixPath(path)
    if not pure.parts or pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise ValueError("give a file beside the task file, or in a folder below it, without ..")
    return path


PathBeside = Annotated[str, AfterValidator(path_beside)]


async def measure_file(desktop: StagedDesktopLike, path: str, look: Callable[[bytes], str | None]) -> CheckResult:
    """1 when `look` finds nothing wrong with the file's bytes, 0 with what it says otherwise. `look` runs in a thread and raises
    `NotOfItsFormat` for what it cannot read."""
    try:
        data = await desktop.pull(path)
    except UNREADABLE as error:
        return CheckResult(0.0, f"{path}: {error.strerror or 'no plain file'}")
    try:
        wrong = await asyncio.to_thread(look, data)
    except InvalidDocument as error:
        return CheckResult(0.0, f"{path}: {error}")
    return CheckResult(float(wrong is None), f"{path}: {wrong or 'as asked'}")


def quoted(value: object) -> str:
    """A value as it is told in a check's detail, cut when it is long."""
    text = repr(value)
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}... ({len(text)} characters)"
