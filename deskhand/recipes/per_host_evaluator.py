"""WAA's evaluate server, found on the host of each machine. Used by `recipes.suite`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from deskhand.desktop.base import HasTaskEvaluator, StageableDesktop
from deskhand.desktop.remote.waa_server import WaaEvaluatorClient
from deskhand.errors import ConfigError, EvaluatorError
from deskhand.tasks.end_state import EndState


class PerHostEvaluator:
    """Client of the evaluate server on the host of a WAA machine, also behind a desktop server or gateway. Implements
    `waa.TaskEvaluator`; each request opens a connection, because episodes run in different event loops."""

    def __init__(self, desktop: StageableDesktop, port: int) -> None:
        if isinstance(desktop, EndState):
            raise EvaluatorError("WAA's evaluate server reads the live machine, so saved end states cannot be scored")
        if not isinstance(desktop, HasTaskEvaluator):
            raise ConfigError("only Windows Agent Arena machines have an evaluate server; set desktop.backend to waa")
        self._desktop, self._port = desktop, port

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[WaaEvaluatorClient]:
        link = self._desktop.open_evaluator(self._port)
        try:
            yield WaaEvaluatorClient(link)
        finally:
            await link.close()

    async def setup(self, config: list[dict[str, Any]]) -> None:
        async with self._open() as server:
            await server.setup(config)

    async def evaluate(self, task: dict[str, Any]) -> tuple[float, str]:
        async with self._open() as server:
            return await server.evaluate(task)
