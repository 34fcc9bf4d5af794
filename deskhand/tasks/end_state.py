"""End states that are kept, to be judged again later. Invariant: what was not kept is never read as absent: a check that asks for
it leaves the state unscored.

A folder of end states holds one JSON file each (`<task>-<n>.json`) and `blobs/`, files by the SHA-256 of their bytes. A state is
the guest's home, the windows, the clipboard and the screen at the time of judging, with the outcome of then. Running commands,
live pages and accessibility trees cannot be kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

from deskhand.errors import ConfigError, EvaluatorError
from deskhand.tasks.outcome import Outcome, Scored
from deskhand.tasks.task import StagedDesktopLike, Task

FORMAT = 1
BLOBS = "blobs"
MOST_FILES = 5000
MOST_BYTES = 256 * 2**20
LEFT_OUT = (".cache", "Cache", "Code Cache", "GPUCache", "ShaderCache", "GrShaderCache", "component_crx_cache")
"""Folders that programs fill for themselves."""
_UNREADABLE = (FileNotFoundError, PermissionError, IsADirectoryError)


async def save_end_state(
    task: Task, desktop: StagedDesktopLike, outcome: Outcome, folder: Path, *, failed: bool = False
) -> Path:
    """Keep a desktop as it was judged; returns the JSON file. `failed`: the agent's last word was that the task cannot be done.

    Raises `InfrastructureError` when the desktop cannot be read."""
    (folder / BLOBS).mkdir(parents=True, exist_ok=True)
    files: dict[str, str | None] = {}
    folders: dict[str, list[str]] = {}
    left_out: list[str] = []
    size, pending = 0, ["."]
    while pending:
        path = pending.pop()
        try:
            names = await desktop.listdir(path)
        except _UNREADABLE:
            pass
        else:
            folders[path] = names
            for name in names:
                place = name if path == "." else f"{path}/{name}"
                (left_out if name in LEFT_OUT else pending).append(place)
            continue
        if len(files) >= MOST_FILES or size > MOST_BYTES:
            left_out.append(path)
            continue
        try:
            data = await desktop.pull(path)
        except _UNREADABLE:
            files[path] = None
            continue
        size += len(data)
        files[path] = await asyncio.to_thread(_put, folder, data)
    screen = await desktop.observe()
    record = {
        "format": FORMAT,
        "task": {
            "id": task.id,
            "family": task.family,
            "suite": task.suite,
            "seed": task.seed,
            "instruction": task.instruction,
        },
        "outcome": {"kind": "scored" if isinstance(outcome, Scored) else "unscored", **asdict(outcome)},
        "failed": failed,
        "windows": [asdict(window) for window in await desktop.windows()],
        "clipboard": await desktop.clipboard(),
        "screen": await asyncio.to_thread(lambda: _put(folder, screen.png())),
        "files": files,
        "folders": folders,
        "left_out": left_out,
    }
    return await asyncio.to_thread(_write, folder, re.sub(r"[^A-Za-z0-9._-]+", "-", task.id), record)


def _put(folder: Path, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    place = folder / BLOBS / digest
    if not place.exists():
        partial = place.with_suffix(
            f".{secrets.token_hex(8)}.partial"
        )  # states that are kept at once hold the same files
        partial.write_bytes(data)
        partial.rename(place)
    return digest


def _write(folder: Path, stem: str, record: dict[str, Any]) -> Path:
    for number in range(1_000_000):
        try:
            with (folder / f"{stem}-{number}.json").open("x", encoding="utf-8") as file:
                json.dump(record, file)
            return folder / f"{stem}-{number}.json"
        except FileExistsError:
            continue
    raise ConfigError(f"{folder} holds a million states of one task; clear it")


@dataclass(frozen=True)
class EndState:
    """A state that was kept, as a desktop that can only be read."""

    path: Path
    record: dict[str, Any]

    @property
    def value(self) -> float | None:
        """What it scored then; None when it was unscored."""
        return self.record["outcome"].get("value")

    @property
    def failed(self) -> bool:
        """Whether the agent's last word was that the task cannot be done."""
        return bool(self.record.get("failed"))

    @property
    def title(self) -> str:
        return f"{self.record['task']['id']} ({self.path.stem})"

    def _plain(self, path: str) -> str:
        pure = PurePosixPath(path)
        if pure.is_absolute():
            pure = PurePosixPath(*pure.parts[3:]) if pure.is_relative_to("/home/user") else pure
        plain = os.path.normpath(str(pure))
        if plain.startswith(("..", "/")):
            raise FileNotFoundError(path)
        for place in self.record["left_out"]:
            if plain == place or plain.startswith(f"{place}/"):
                raise EvaluatorError(f"{path} was not kept with the end state {self.path.name}")
        return plain

    async def pull(self, path: str) -> bytes:
        plain = self._plain(path)
        if plain in self.record["folders"]:
            raise IsADirectoryError(path)
        if plain not in self.record["files"]:
            raise FileNotFoundError(path)
        digest = self.record["files"][plain]
        if digest is None:
            raise PermissionError(path)
        return await asyncio.to_thread(self._blob, digest)

    def _blob(self, digest: str) -> bytes:
        data = (self.path.parent / BLOBS / digest).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise EvaluatorError(f"{self.path.parent / BLOBS / digest} is not what was kept; its bytes have changed")
        return data

    async def listdir(self, path: str) -> list[str]:
        plain = self._plain(path)
        if plain not in self.record["folders"]:
            raise FileNotFoundError(path)
        return list(self.record["folders"][plain])

    async def windows(self) -> list[Any]:
        return [SimpleNamespace(**window) for window in self.record["windows"]]

    async def clipboard(self, selection: str = "CLIPBOARD") -> str | None:
        if selection != "CLIPBOARD":
            raise EvaluatorError(f"the selection {selection} is not kept with an end state")
        return self.record["clipboard"]

    async def observe(self) -> _Picture:
        return _Picture(await asyncio.to_thread(self._blob, self.record["screen"]))

    async def run(self, argv: list[str], **_: Any) -> Any:
        raise EvaluatorError(f"{argv[0]} cannot be run in an end state that was kept; judge it on a live desktop")

    async def shell(self, command: str, **_: Any) -> Any:
        raise EvaluatorError(
            f"{command[:80]!r} cannot be run in an end state that was kept; judge it on a live desktop"
        )

    async def accessibility_tree(self) -> str | None:
        raise EvaluatorError("the accessibility tree is not kept with an end state; judge it on a live desktop")


@dataclass(frozen=True)
class _Picture:
    """A kept screen, with what checks ask of a frame."""

    data: bytes

    def png(self) -> bytes:
        return self.data

    def rgb(self) -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(self.data)).convert("RGB"))

    @cached_property
    def content_hash(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def load_end_states(places: list[Path]) -> Iterator[EndState]:
    """The states of files and folders, in the order of their names. Raises `ConfigError` for a place that holds none."""
    for place in places:
        paths = sorted(place.rglob("*.json")) if place.is_dir() else [place]
        found = 0
        for path in paths:
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise ConfigError(f"{path} is no end state: {error}") from None
            if not isinstance(record, dict) or record.get("format") != FORMAT or "left_out" not in record:
                if place.is_dir():
                    continue
                raise ConfigError(f"{path} is no end state of format {FORMAT}")
            found += 1
            yield EndState(path, record)
        if not found:
            raise ConfigError(
                f"{place} holds no end states; `deskhand eval` keeps them with --set evaluation.save_end_states=true"
            )
