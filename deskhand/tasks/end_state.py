"""Saved end states, and rescoring them with the current checks.

Written by the rollout and the audit (`save_end_state`), read by `deskhand rescore` (`load_end_states`,
`rescore_states`). A folder has one JSON file per state (`<task>-<n>.json`) and `blobs/`, files by the SHA-256 of their
bytes. A state is the guest's home, windows, programs, clipboard and screen at the time of judging, with the outcome and
what set-up noted. Commands, live pages and accessibility trees are not saved.

Invariant: data that was not saved is never read as absent: a check that needs it raises `EvaluatorError`.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import re
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from PIL import Image

from deskhand.desktop.base import HasProgramList, StageableDesktop
from deskhand.errors import ConfigError, EvaluatorError
from deskhand.tasks.guest_files import UNREADABLE
from deskhand.tasks.judge import judge
from deskhand.tasks.outcome import Errored, Outcome, Scored
from deskhand.tasks.setup_facts import all_noted
from deskhand.tasks.task import Task

FORMAT = 2
BLOBS = "blobs"
MAX_FILES = 5000
"""Files and folders. A folder with which there would be more is not saved."""
MAX_BYTES = 256 * 2**20
MAX_SECONDS = 60.0
SKIPPED_FOLDERS = (".cache", "Cache", "Code Cache", "GPUCache", "ShaderCache", "GrShaderCache", "component_crx_cache")
"""Caches of programs, which are not saved."""


async def save_end_state(
    task: Task,
    desktop: StageableDesktop,
    outcome: Outcome,
    folder: Path,
    *,
    declared_infeasible: bool = False,
    answer: str | None = None,
) -> Path:
    """Save a desktop as it was judged; return the JSON file. Raises `InfrastructureError`."""
    (folder / BLOBS).mkdir(parents=True, exist_ok=True)
    files, folders, skipped = await _save_home(desktop, folder)
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
        "outcome": {"kind": "scored" if isinstance(outcome, Scored) else "errored", **asdict(outcome)},
        "declared_infeasible": declared_infeasible,
        "answer": answer,
        "setup_facts": all_noted(desktop),
        "windows": [asdict(window) for window in await desktop.windows()],
        "programs": await desktop.running_programs() if isinstance(desktop, HasProgramList) else None,
        "exit_codes": await desktop.exit_codes() if isinstance(desktop, HasProgramList) else None,
        "clipboard": await desktop.clipboard(),
        "screen": await asyncio.to_thread(lambda: _put(folder, screen.png())),
        "files": files,
        "folders": folders,
        "skipped": skipped,
    }
    return await asyncio.to_thread(_write, folder, re.sub(r"[^A-Za-z0-9._-]+", "-", task.id), record)


async def _save_home(
    desktop: StageableDesktop, folder: Path
) -> tuple[dict[str, str | None], dict[str, list[str]], list[str]]:
    """Save the files of the home; return their digests (None: not readable), the names in each folder, and the paths
    that were not saved: caches, and what an agent that fills its home has beyond the limits."""
    files: dict[str, str | None] = {}
    folders: dict[str, list[str]] = {}
    skipped: list[str] = []
    size, pending, deadline = 0, deque(["."]), time.monotonic() + MAX_SECONDS
    while pending:
        path = pending.popleft()
        if size > MAX_BYTES or time.monotonic() > deadline:
            skipped.append(path)
            continue
        try:
            names = await desktop.listdir(path)
        except UNREADABLE:
            try:
                data = await desktop.pull(path)
            except UNREADABLE:
                files[path] = None
                continue
            size += len(data)
            files[path] = await asyncio.to_thread(_put, folder, data)
            continue
        if len(files) + len(folders) + len(pending) + len(names) > MAX_FILES:
            skipped.append(path)
            continue
        folders[path] = names
        for name in names:
            (skipped if name in SKIPPED_FOLDERS else pending).append(name if path == "." else f"{path}/{name}")
    return files, folders, skipped


def _put(folder: Path, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    blob = folder / BLOBS / digest
    if not blob.exists():
        # concurrently saved states share files
        partial = blob.with_suffix(f".{secrets.token_hex(8)}.partial")
        partial.write_bytes(data)
        partial.rename(blob)
    return digest


def _write(folder: Path, stem: str, record: dict[str, Any]) -> Path:
    for number in range(1_000_000):
        try:
            with (folder / f"{stem}-{number}.json").open("x", encoding="utf-8") as file:
                json.dump(record, file)
            return folder / f"{stem}-{number}.json"
        except FileExistsError:
            continue
    raise ConfigError(f"{folder}: more than a million end states of one task; choose an empty folder")


@dataclass(frozen=True)
class EndState:
    """A saved state: a read-only stand-in for the desktop."""

    path: Path
    record: dict[str, Any]

    @property
    def value(self) -> float | None:
        """The score at the time; None if the episode was errored."""
        return self.record["outcome"].get("value")

    @property
    def declared_infeasible(self) -> bool:
        """Whether the agent ended by declaring the task infeasible."""
        return bool(self.record.get("declared_infeasible"))

    @property
    def answer(self) -> str | None:
        """The text with which the agent ended."""
        return self.record.get("answer")

    @property
    def title(self) -> str:
        return f"{self.record['task']['id']} ({self.path.stem})"

    def _relative(self, path: str) -> str:
        pure = PurePosixPath(path)
        if pure.is_absolute():
            pure = PurePosixPath(*pure.parts[3:]) if pure.is_relative_to("/home/user") else pure
        plain = os.path.normpath(str(pure))
        if plain.startswith(("..", "/")):
            raise FileNotFoundError(path)
        if any(each in (".", plain) or plain.startswith(f"{each}/") for each in self.record["skipped"]):
            raise EvaluatorError(f"{self.path.name}: {path} was not saved with the end state")
        return plain

    async def pull(self, path: str) -> bytes:
        name = self._relative(path)
        if name in self.record["folders"]:
            raise IsADirectoryError(path)
        if name not in self.record["files"]:
            raise FileNotFoundError(path)
        digest = self.record["files"][name]
        if digest is None:
            raise PermissionError(path)
        return await asyncio.to_thread(self._blob, digest)

    def _blob(self, digest: str) -> bytes:
        data = (self.path.parent / BLOBS / digest).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise EvaluatorError(f"{self.path.parent / BLOBS / digest}: content does not match its name")
        return data

    async def listdir(self, path: str) -> list[str]:
        name = self._relative(path)
        if name not in self.record["folders"]:
            raise FileNotFoundError(path)
        return list(self.record["folders"][name])

    async def windows(self) -> list[Any]:
        return [SimpleNamespace(**window) for window in self.record["windows"]]

    @property
    def setup_facts(self) -> dict[str, Any]:
        """What set-up noted (`tasks.setup_facts`)."""
        return self.record.get("setup_facts", {})

    async def running_programs(self) -> dict[int, bool | None]:
        if (programs := self.record.get("programs")) is None:
            raise EvaluatorError(f"{self.path.name}: the running programs were not saved with the end state")
        return {int(program): ran for program, ran in programs.items()}

    async def exit_codes(self) -> dict[int, int]:
        if (codes := self.record.get("exit_codes")) is None:
            raise EvaluatorError(f"{self.path.name}: the programs' exit codes were not saved with the end state")
        return {int(program): code for program, code in codes.items()}

    async def wait_until_idle(self, timeout_s: float) -> None:
        """Return at once: nothing runs in a saved end state."""

    async def clipboard(self, selection: str = "CLIPBOARD") -> str | None:
        if selection != "CLIPBOARD":
            raise EvaluatorError(f"an end state has no selection {selection}")
        return self.record["clipboard"]

    async def observe(self) -> _SavedFrame:
        return _SavedFrame(await asyncio.to_thread(self._blob, self.record["screen"]))

    async def run(self, argv: list[str], **_: Any) -> Any:
        raise EvaluatorError(f"commands cannot run in an end state: {argv[0]}")

    async def shell(self, command: str, **_: Any) -> Any:
        raise EvaluatorError(f"commands cannot run in an end state: {command[:80]!r}")

    async def accessibility_tree(self) -> str | None:
        raise EvaluatorError("an end state has no accessibility tree")


@dataclass(frozen=True)
class _SavedFrame:
    """A saved screen with the methods of `desktop.base.Frame` that checks use."""

    data: bytes

    def png(self) -> bytes:
        return self.data

    def rgb(self) -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(self.data)).convert("RGB"))

    @cached_property
    def content_hash(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def load_end_states(paths: list[Path]) -> Iterator[EndState]:
    """Yield the states of files and folders, sorted by name. Raises `ConfigError` for a path without end states."""
    for root in paths:
        count = 0
        for path in sorted(root.rglob("*.json")) if root.is_dir() else [root]:
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise ConfigError(f"{path}: cannot be read as an end state: {error}") from None
            if not isinstance(record, dict) or not {"format", "task", "outcome", "folders"} <= record.keys():
                if root.is_dir():
                    continue
                raise ConfigError(f"{path}: is not an end state")
            if record["format"] != FORMAT:
                raise ConfigError(f"{path}: end state format must be {FORMAT}, got {record['format']}; save it again")
            count += 1
            yield EndState(path, record)
        if not count:
            raise ConfigError(
                f"{root}: no end states; save them with deskhand eval --set evaluation.save_end_states=true"
            )


@dataclass(frozen=True)
class Rescored:
    """A saved state with its score at the time (None: errored) and its outcome by the current checks."""

    state: EndState
    before: float | None
    outcome: Outcome

    @property
    def after(self) -> float | None:
        return self.outcome.value if isinstance(self.outcome, Scored) else None

    @property
    def changed(self) -> bool:
        return self.before != self.after

    def data(self) -> dict[str, Any]:
        """Return both scores and the findings of the current checks as JSON types."""
        outcome = self.outcome
        return {
            "state": self.state.title,
            "before": self.before,
            "after": self.after,
            "changed": self.changed,
            "findings": [asdict(each) for each in outcome.findings] if isinstance(outcome, Scored) else [],
            "error": f"{outcome.cause}: {outcome.message}" if isinstance(outcome, Errored) else None,
        }

    def lines(self) -> list[str]:
        """Return the report lines: both scores, and every clause that fails."""
        change = f"{_score_text(self.before)} -> {_score_text(self.after)}"
        lines = [f"{self.state.title}: {change}{', CHANGED' if self.changed else ''}"]
        if isinstance(self.outcome, Errored):
            lines.append(f"    errored ({self.outcome.cause}): {self.outcome.message}")
        else:
            lines += [
                f"    {finding.clause}: read {finding.read}"
                + (f", expected {finding.expected}" if finding.expected else "")
                for finding in self.outcome.failed
            ]
        return lines


def _score_text(value: float | None) -> str:
    return "errored" if value is None else f"{value:g}"


async def rescore_states(states: Iterable[EndState], task_of: Callable[[EndState], Task]) -> AsyncIterator[Rescored]:
    """Judge each state with the checks of `task_of(state)`. Raises `ConfigError` if there is no such task."""
    for state in states:
        desktop = cast(StageableDesktop, state)  # checks only read
        end = {"declared_infeasible": state.declared_infeasible, "answer": state.answer}
        outcome = await judge(task_of(state), desktop, grace_s=0.0, **end)
        yield Rescored(state, state.value, outcome)


def original_task(state: EndState, make_task: Callable[[str, int], Task]) -> Task:
    """Regenerate the task that a state was saved for. Raises `ConfigError` if `make_task` does not know it."""
    saved = state.record["task"]
    try:
        return make_task(str(saved["family"]), int(saved["seed"]))
    except ConfigError as error:
        raise ConfigError(
            f"{state.path}: {error}; pass the suite's config with --config, or a task file with --task"
        ) from None
