"""What a guest's own pyautogui asks for. Invariant: an ask is read as any action of a model is, bounded in size and number, and
performed once; whatever the guest writes, nothing of it is run here.
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
BUSY_S, IDLE_S = 0.02, 0.5
"""How often a guest is looked after while one of its programs runs, and while none does that we know of."""
LONGEST_ASK = 256 << 10
REMEMBERED = 4096
LOOKING_SHARE = 0.2
"""Of the time goes into looking for asks, at most: a folder that a guest has filled is looked at less often."""
_NAME = re.compile(r"[0-9a-f]{24}\.ask")


class PyAutoGuiRpc:
    """Answers the asks in `folder` of the guest's home; `read` gives the ops of lines of code or raises `AgentError`."""

    def __init__(self, desktop: StageableDesktop, folder: str, read: Callable[[str], list[Op]]) -> None:
        self._desktop = desktop
        self._folder = folder
        self._read = read
        self._answered: deque[str] = deque(maxlen=REMEMBERED)
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
    def attended(self) -> Iterator[None]:
        """While a program runs, its asks are answered promptly."""
        self._running += 1
        self._wake.set()
        try:
            yield
        finally:
            self._running -= 1

    async def _serve(self) -> None:
        while True:
            began = time.monotonic()
            looked_s = 0.0
            try:
                found = await self._desktop.listdir(self._folder)
                looked_s = time.monotonic() - began
                if len(found) > REMEMBERED:  # of more it could not be known which were answered
                    log.info("bridge.asks_ended", error=f"{len(found)} asks at once")
                    return
                for name in found:
                    if _NAME.fullmatch(name) and name not in self._answered:
                        self._answered.append(name)
                        await self._answer(name)
            except OSError:
                pass  # the guest has removed the folder, or put something else there: then it has nothing to ask
            except DeskhandError as error:
                log.info("bridge.asks_ended", error=str(error))
                return
            self._wake.clear()
            await asyncio.sleep(looked_s * (1 / LOOKING_SHARE - 1))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BUSY_S if self._running else IDLE_S):
                    await (asyncio.sleep(BUSY_S) if self._running else self._wake.wait())

    async def _answer(self, name: str) -> None:
        path = posixpath.join(self._folder, name)
        data = await self._desktop.pull(path)
        try:
            frame = await self._performed(data)
            (x, y), (width, height) = frame.cursor, frame.size
            said = {"x": x, "y": y, "width": width, "height": height, "error": ""}
        except AgentError as error:
            said = {"error": str(error)}
        await self._desktop.push(path.removesuffix(".ask") + ".answer", (json.dumps(said) + "\n").encode())

    async def _performed(self, data: bytes) -> Frame:
        if len(data) > LONGEST_ASK:
            raise AgentError(f"an ask of {len(data)} bytes; the most is {LONGEST_ASK}")
        try:
            code = data.decode()
        except UnicodeDecodeError:
            raise AgentError("an ask must be UTF-8") from None
        if not code:
            return await self._desktop.observe()
        return await self._desktop.perform(self._read(code), action_id=secrets.token_hex(16))
