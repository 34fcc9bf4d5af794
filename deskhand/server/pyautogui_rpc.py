"""Host side of the guest's pyautogui replacement (`guest_tools/pyautogui.py`): poll request files, perform them,
write replies.

Used by `server.guest`. Requests are parsed like a model's actions, limited in size and number, and performed once;
guest code is never run here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import posixpath
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator

import structlog

from deskhand.actions.ops import Op
from deskhand.desktop.base import Frame, StageableDesktop
from deskhand.errors import AgentError, DeskhandError

log = structlog.get_logger()
BUSY_POLL_S, IDLE_POLL_S = 0.02, 0.5
"""Polling intervals while a guest program runs, and otherwise."""
MAX_REQUEST_BYTES = 256 << 10
MAX_REQUESTS = 4096
MAX_POLL_SHARE = 0.2
"""Maximum share of time spent polling; a directory that the guest has filled is polled less often."""
_NAME = re.compile(r"[0-9a-f]{24}\.ask")


class PyAutoGuiRpc:
    """Serves the requests in `folder` of the guest's home; `parse` returns the ops of a request or raises
    `AgentError`."""

    def __init__(self, desktop: StageableDesktop, folder: str, parse: Callable[[str], list[Op]]) -> None:
        self._desktop = desktop
        self._folder = folder
        self._parse = parse
        self._handled: deque[str] = deque(maxlen=MAX_REQUESTS)
        self._running = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._serve())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    @contextlib.contextmanager
    def fast_polling(self) -> Iterator[None]:
        """Poll at the short interval while a guest program runs."""
        self._running += 1
        self._wake.set()
        try:
            yield
        finally:
            self._running -= 1

    async def _serve(self) -> None:
        while True:
            start = time.monotonic()
            poll_s = 0.0
            try:
                names = await self._desktop.listdir(self._folder)
                poll_s = time.monotonic() - start
                if len(names) > MAX_REQUESTS:  # more could not be tracked as handled
                    log.info("server.rpc_stopped", error=f"{len(names)} requests at once")
                    return
                for name in names:
                    if _NAME.fullmatch(name) and name not in self._handled:
                        self._handled.append(name)
                        await self._handle(name)
            except OSError:
                pass  # the guest removed or replaced the directory: there are no requests
            except DeskhandError as error:
                log.info("server.rpc_stopped", error=str(error))
                return
            self._wake.clear()
            await asyncio.sleep(poll_s * (1 / MAX_POLL_SHARE - 1))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BUSY_POLL_S if self._running else IDLE_POLL_S):
                    await (asyncio.sleep(BUSY_POLL_S) if self._running else self._wake.wait())

    async def _handle(self, name: str) -> None:
        path = posixpath.join(self._folder, name)
        data = await self._desktop.pull(path)
        try:
            frame = await self._perform(data)
            (x, y), (width, height) = frame.cursor, frame.size
            reply = {"x": x, "y": y, "width": width, "height": height, "error": ""}
        except AgentError as error:
            reply = {"error": str(error)}
        await self._desktop.push(path.removesuffix(".ask") + ".answer", (json.dumps(reply) + "\n").encode())

    async def _perform(self, data: bytes) -> Frame:
        if len(data) > MAX_REQUEST_BYTES:
            raise AgentError(f"request of {len(data)} bytes exceeds {MAX_REQUEST_BYTES}")
        try:
            code = data.decode()
        except UnicodeDecodeError:
            raise AgentError("the request must be UTF-8") from None
        if not code:
            return await self._desktop.observe()
        return await self._desktop.perform(self._parse(code), action_id=secrets.token_hex(16))
