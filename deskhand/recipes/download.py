"""Download of a hub model's weights, once everything that can be checked without them is checked.

Used by `recipes.train` and `recipes.evaluate`, when the desktops are open, and by `recipes.sft`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from deskhand.config.load import Config
from deskhand.models.load import check_device, download_weights
from deskhand.recipes.step_report import ProgressListener


async def fetch_weights(config: Config, source: str, listener: ProgressListener, *, trains: bool = False) -> None:
    """Download the weights of `source`, if it is a hub id and is loaded here. The event loop keeps running meanwhile.

    Raises `ConfigError` if this process would load them and has no such device, or they cannot be downloaded.
    """
    engine = config.engine
    is_loaded_here = trains or engine.backend == "hf"
    if is_loaded_here:
        await asyncio.to_thread(check_device, config.device)
    if is_loaded_here or (engine.backend == "vllm" and engine.base_url is None):
        await _in_daemon_thread(lambda: download_weights(source, listener.log))


async def _in_daemon_thread(work: Callable[[], None]) -> None:
    """Await blocking work that an interrupt abandons: Python waits at its exit for the threads of its executors."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: Exception | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        failed: Exception | None = None
        try:
            work()
        except Exception as error:
            failed = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, failed)

    threading.Thread(target=run, name="deskhand-download", daemon=True).start()
    await done
