"""`SyncLoop`: an event loop in a background thread, for synchronous APIs. Uses only the standard library."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from deskhand.errors import InfrastructureError

if TYPE_CHECKING:
    from deskhand.desktop.base import StageableDesktop

Result = TypeVar("Result")
MakeDesktop: TypeAlias = "Callable[[], StageableDesktop | Awaitable[StageableDesktop]]"
"""Creates or leases a desktop; called in the loop in which the desktop is used."""


class SyncLoop:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="deskhand-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` in the loop and return its result. An interrupted caller cancels it."""
        if not self._thread.is_alive():
            work.close()
            raise InfrastructureError("this environment is closed; create a new one")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def desktop(self, make: MakeDesktop) -> StageableDesktop:

        async def build() -> StageableDesktop:
            desktop = make()
            return await desktop if isinstance(desktop, Awaitable) else desktop

        return self.run(build())

    def close(self) -> None:
        """Stop the loop. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
