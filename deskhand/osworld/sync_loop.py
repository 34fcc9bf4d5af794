"""An event loop beside the caller, for APIs that are not asynchronous. Invariant: what is asked of it runs in one loop, in one
thread, and is over when the call returns. It needs Python's standard library alone.
"""

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
"""Makes a desktop, or leases one; it is called in the loop in which the desktop is used."""


class SyncLoop:
    """A loop in a thread of its own; `run` waits for a coroutine in it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="deskhand-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """What `work` gives; raises what it raises. A caller that is interrupted cancels it."""
        if not self._thread.is_alive():
            work.close()
            raise InfrastructureError("this environment is closed; make a new one")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def desktop(self, make: MakeDesktop) -> StageableDesktop:
        """What `make` makes. Raises what it raises."""

        async def made() -> StageableDesktop:
            found = make()
            return await found if isinstance(found, Awaitable) else found

        return self.run(made())

    def close(self) -> None:
        """End the loop. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
