"""An end state that was kept, as a stage on which a task of OSWorld can be judged again. Invariant: nothing is run and nothing is
staged, since the steps before judging were carried out before the state was kept; what was not kept is an `EvaluatorError`, never
read as absent.
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
    """The files of the home, as they were."""

    async def expand(self, path: str) -> str:
        return f"{OSWORLD_HOME}/{path[2:]}" if path.startswith("~/") else path

    async def read(self, path: str) -> bytes:
        if path.startswith("/") and not path.startswith(f"{OSWORLD_HOME}/"):
            raise EvaluatorError(f"{path} is not in the home, and was not kept; judge it on a live desktop")
        return await self.desktop.pull(path)


class SavedClient(LocalOsworldClient):
    """`state` in place of a server; `size` is that of the screen in pixels."""

    ours = False

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

    async def ask(self, method: str, path: str, *, timeout_s: float = 180.0, **body: Any) -> httpx2.Response:
        raise EvaluatorError(f"what {path} says is not kept with an end state; judge it on a live desktop")

    async def close(self) -> None:
        """There is nothing to close."""


class SavedStageRunner(SetupRunner):
    """A stage that was left."""

    kept = True

    def __init__(self, state: EndState, size: tuple[int, int], cache: FileCache | None = None) -> None:
        super().__init__(SavedClient(state, size), cache)

    async def set_up(self, config: Any, *, judging: bool = False) -> None:
        """It was, then."""
