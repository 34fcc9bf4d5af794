"""Runs the code of an OpenAdapt `python` check on guest files, in the process of `reader_process`.

Used by `formats.openadapt_checks`. Keep the imports light: the process imports this module for each call.
"""

from __future__ import annotations

import builtins
import io
import os
import os.path
import posixpath
from collections.abc import Sequence
from typing import Any

from deskhand.tasks.document_readers import InvalidDocument

MISTAKES = (NameError, ImportError, SyntaxError)
"""What the guest's files cannot cause: the code is wrong, whatever they contain."""
MAX_SHOWN = 200


class _NeedsFile(BaseException):
    """The code asked for a file that was not brought along. No `except Exception` of the code stops it."""


class GuestFiles:
    """The functions of `builtins`, `io` and `os.path` that open files, on files by path (None: there is none)."""

    def __init__(self, files: dict[str, bytes | None]) -> None:
        self._files = files

    def _get(self, path: Any) -> bytes | None:
        name = os.fsdecode(path)
        if name not in self._files:
            raise _NeedsFile(name)
        return self._files[name]

    def open(self, file: Any, mode: str = "r", *_: Any, encoding: str | None = None, **more: Any) -> Any:
        if set(mode) & set("wax+"):
            raise PermissionError(f"{file}: the files of the guest can only be read")
        data = self._get(file)
        if data is None:
            raise FileNotFoundError(2, "No such file", os.fsdecode(file))
        if "b" in mode:
            return io.BytesIO(data)
        kept = {name: more[name] for name in ("errors", "newline") if more.get(name) is not None}
        return io.TextIOWrapper(io.BytesIO(data), encoding=encoding or "utf-8", **kept)

    def exists(self, path: Any) -> bool:
        return self._get(path) is not None

    def getsize(self, path: Any) -> int:
        with self.open(path, "rb") as file:
            return len(file.read())

    def stat(self, path: Any, *_: Any, **__: Any) -> os.stat_result:
        """Return the status of a regular file, which pathlib asks for."""
        return os.stat_result((0o100644, 0, 0, 1, 0, 0, self.getsize(path), 0, 0, 0))


def run_code(*values: Any) -> dict[str, Any]:
    """Return {"holds": bool, "value": text}, or {"needs": path} if the code reads a file that is not among `values`.

    `values` are the files, then their paths, the paths of missing files, the body of the function, and its file.
    Raises `InvalidDocument` if the code fails on the guest's files, and its own exception if it is wrong.
    """
    *files, paths, missing, body, name = values
    return _run(dict(zip(paths, files, strict=True)) | dict.fromkeys(missing), body, name)


def _run(files: dict[str, bytes | None], body: str, name: str) -> dict[str, Any]:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    names: dict[str, Any] = {"__name__": "task"}
    program = compile(f"def check():\n{lines}\n", name, "exec")
    exec(program, names)
    guest = GuestFiles(files)
    replaced: Sequence[tuple[Any, str, Any]] = (
        (builtins, "open", guest.open),
        (io, "open", guest.open),
        (os, "stat", guest.stat),
        (os.path, "exists", guest.exists),
        (os.path, "isfile", guest.exists),
        (os.path, "getsize", guest.getsize),
        (posixpath, "exists", guest.exists),
    )
    own = [(place, key, getattr(place, key)) for place, key, _ in replaced]
    try:
        for place, key, function in replaced:
            setattr(place, key, function)
        value = names["check"]()
    except _NeedsFile as needed:
        return {"needs": str(needed)}
    except MISTAKES:
        raise
    except Exception as error:
        raise InvalidDocument(f"{type(error).__name__}: {error}") from None
    finally:
        for place, key, function in own:
            setattr(place, key, function)
    return {"holds": bool(value), "value": repr(value)[:MAX_SHOWN]}
