"""pyautogui calls of guest programs, performed as ops: in 1 ms instead of 300 ms.

`ops_from_argv` translates `python -c` programs of plain calls with literal arguments, which OSWorld's clients send for
every action. Other programs run in the guest, with the pyautogui replacement of `guest_tools`; `PyAutoGuiRpc` (used by
`server.guest`) polls its request files, performs them and writes replies. Requests are parsed like a model's actions,
limited in size and number, and performed once; guest code is never run here.
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
from collections.abc import Iterator, Sequence
from dataclasses import replace

import structlog

from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.call_format import CallActionFormat
from deskhand.actions.formats.call_parser import parse_calls
from deskhand.actions.formats.pyautogui import GRAMMAR, KEY_CALLS, KEYS_IN_TURN, POINTER_CALLS, typing_calls
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

_PYTHON_PROGRAMS = ("python", "python3", "/usr/bin/python3", "/usr/bin/python")
_GRAMMAR = replace(GRAMMAR, words=frozenset())
_CODE = CallActionFormat(
    name="pyautogui code",
    specs=(*POINTER_CALLS, *typing_calls(named=False, keys=KEYS_IN_TURN), *KEY_CALLS),
    space=lambda view: view.screen,
    find=lambda text: parse_calls(text, 0, len(text), _GRAMMAR),
    layout=lambda lines, ops: "\n".join(lines),
    introduction=lambda view, space: "",
)


def parse_pyautogui(code: str, width: int, height: int) -> list[Op]:
    """Return the ops of code for a screen of this size in pixels. Raises `AgentError` unless it is plain calls."""
    return _CODE.parse(code, ScreenView.of_screen(width, height))


def ops_from_argv(argv: Sequence[str], width: int, height: int) -> list[Op] | None:
    """Return the ops that `argv` amounts to, or None if it is not a program of plain pyautogui calls."""
    if len(argv) != 3 or argv[0] not in _PYTHON_PROGRAMS or argv[1] != "-c" or "pyautogui" not in argv[2]:
        return None
    try:
        return parse_pyautogui(argv[2], width, height)
    except AgentError:
        return None


class PyAutoGuiRpc:
    """Serves the requests in `folder` of the guest's home, for a screen of `size` pixels."""

    def __init__(self, desktop: StageableDesktop, folder: str, size: tuple[int, int]) -> None:
        self._desktop, self._folder, self._size = desktop, folder, size
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
        return await self._desktop.perform(parse_pyautogui(code, *self._size), action_id=secrets.token_hex(16))
