"""Saved end state as a machine on which an OSWorld task can be scored again.

Nothing is run: set-up and postconfig steps ran before the state was saved. Data that was not saved raises
`EvaluatorError`; it is never treated as missing.
"""

from __future__ import annotations

from typing import Any

import httpx2

from deskhand.errors import EvaluatorError
from deskhand.osworld.local_client import LocalOsworldClient
from deskhand.osworld.setup_runner import SetupRunner
from deskhand.server.guest import OSWORLD_HOME, Guest
from deskhand.tasks.end_state import EndState
from deskhand.tasks.formats.file_cache import FileCache


class SavedGuest(Guest):
    """Files of the saved home."""

    async def expand(self, path: str) -> str:
        return f"{OSWORLD_HOME}/{path[2:]}" if path.startswith("~/") else path

    async def read(self, path: str) -> bytes:
        if path.startswith("/") and not path.startswith(f"{OSWORLD_HOME}/"):
            raise EvaluatorError(f"{path}: outside the home, so not saved; score on a live desktop")
        return await self.desktop.pull(path)


class SavedClient(LocalOsworldClient):
    """A saved end state instead of a server; `size` is the screen size in pixels."""

    is_local = False

    def __init__(self, state: EndState, size: tuple[int, int]) -> None:
        self._state: Any = state
        self._size = size
        self._guest = SavedGuest(self._state, *size)

    @property
    def desktop(self) -> Any:
        return self._state

    @property
    def guest(self) -> Guest:
        return self._guest

    @property
    def size(self) -> tuple[int, int]:
        return self._size

    async def request(self, method: str, path: str, *, timeout_s: float = 180.0, **body: Any) -> httpx2.Response:
        raise EvaluatorError(f"{path}: not available in a saved end state; score on a live desktop")

    async def close(self) -> None: ...


class SavedStageRunner(SetupRunner):
    """A set-up runner for a saved end state."""

    is_saved = True

    def __init__(self, state: EndState, size: tuple[int, int], cache: FileCache | None = None) -> None:
        super().__init__(SavedClient(state, size), cache)

    async def set_up(self, config: Any, *, judging: bool = False) -> None:
        """Do nothing: the steps ran before the state was saved."""
