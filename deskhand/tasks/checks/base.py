"""Base of the checks in YAML task files.

Invariant: what the agent did to a file (removed, replaced, not of its format) is a problem answer; failures of the
desktop or the check are raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.document_readers import InvalidDocument
from deskhand.tasks.guest_files import UNREADABLE
from deskhand.tasks.subprocess_call import read_in_subprocess
from deskhand.tasks.task import CheckResult


class CheckModel(BaseModel):
    """A mapping of a YAML task file; unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    needs_one_of: ClassVar[tuple[str, ...]] = ()
    """Keys of which at least one must be set."""

    @model_validator(mode="after")
    def _require_any(self) -> Self:
        fields = {name: type(self).model_fields[name] for name in self.needs_one_of}
        # an empty list is unset where it is the default
        unset = [
            getattr(self, name) in ((None, [], {}) if field.default_factory else (None,))
            for name, field in fields.items()
        ]
        if unset and all(unset):
            raise ValueError(f"set at least one of {', '.join(field.alias or name for name, field in fields.items())}")
        return self


def guest_path(path: str) -> str:
    """Validate a path in the guest's home. Raises `ValueError`."""
    parts = PurePosixPath(path).parts
    if not parts or ".." in parts or "\0" in path or path.endswith("/"):
        raise ValueError("must be a file path relative to the guest's home or absolute, without ..")
    return path


GuestPath = Annotated[str, AfterValidator(guest_path)]


def relative_path(path: str) -> str:
    """Validate a host path below the task file's folder. Raises `ValueError`."""
    pure = PurePosixPath(path)
    # a task file from someone else must not copy other host files into a guest
    if not pure.parts or pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise ValueError("must be a path relative to the task file's folder, without ..")
    return path


RelativePath = Annotated[str, AfterValidator(relative_path)]


class FactCheck(CheckModel):
    """A check of one fact about the end state."""

    async def measure(self, desktop: StageableDesktop) -> CheckResult:
        """Return the value in [0, 1]. Raises `InfrastructureError` if the desktop cannot be read."""
        raise NotImplementedError


class FileCheckModel(FactCheck):
    """A check of one file of the guest by its bytes."""

    find_problem: ClassVar[Callable[..., str | None]]
    """Function of `tasks.file_problems`; takes the bytes and the fields."""
    path: GuestPath

    async def measure(self, desktop: StageableDesktop) -> CheckResult:
        return await measure_file(desktop, self.path, type(self).find_problem, self.model_dump(exclude={"path"}))


async def measure_file(
    desktop: StageableDesktop,
    path: str,
    find_problem: Callable[..., str | None],
    *arguments: Any,
    files: Sequence[bytes] = (),
) -> CheckResult:
    """Return 1 if `find_problem(data, *files, *arguments)` returns None, else 0 with its text as the detail.

    `data` are the bytes at `path`. Runs in a subprocess (`tasks.subprocess_call`).
    """
    try:
        data = await desktop.pull(path)
        problem = await read_in_subprocess(find_problem, (data, *files), *arguments)
    except UNREADABLE as error:
        return CheckResult(0.0, f"{path}: {error.strerror or 'not a regular file'}")
    except InvalidDocument as error:
        return CheckResult(0.0, f"{path}: {error}")
    return CheckResult(float(problem is None), f"{path}: {problem or 'as expected'}")
