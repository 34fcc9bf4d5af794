"""The embedded desktop: a real X server, window manager and applications, driven from outside. Invariant: input, pixels and files
never pass through a guest process, and one worker thread does all that blocks, so the event loop never waits.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import socket
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from deskhand.actions.ops import Op
from deskhand.desktop.base import CommandResult, DesktopSpec, Frame, Window
from deskhand.desktop.local import accessibility, fingerprint, windows
from deskhand.desktop.local.action_executor import ActionExecutor
from deskhand.desktop.local.clipboard import read as read_selection
from deskhand.desktop.local.desktop_session import DesktopSession
from deskhand.desktop.local.fingerprint import Fingerprint
from deskhand.desktop.local.idempotency_cache import IdempotencyCache
from deskhand.desktop.local.isolation import Isolation, ResourceLimits, available_isolation
from deskhand.desktop.local.nul_pipes import NulPipes
from deskhand.desktop.local.screen_reader import Capture
from deskhand.desktop.local.x_connection import x_errors
from deskhand.errors import ConfigError, InfrastructureError

Result = TypeVar("Result")

CACHED_ACTIONS = 64
ANSWER_MARGIN_S = 5.0


class LocalDesktop:
    """Fulfils `StagedDesktop`. `quiet_ms` without change is a settled screen, `cap_s` the longest wait for one.

    `crashes_fail` False: programs may be killed, as some tasks ask for; otherwise a crash of one that was launched is an outage.
    `isolation` None takes the best that the machine allows; asking for "namespaces" where there are none is a `ConfigError`.
    `capture` None takes the quickest way to the pixels that works (`screen.py`).
    """

    def __init__(
        self,
        *,
        label: str | None = None,
        isolation: Isolation | None = None,
        limits: ResourceLimits | None = None,
        crashes_fail: bool = True,
        capture: Capture | None = None,
        quiet_ms: float = 60.0,
        cap_s: float = 2.0,
    ) -> None:
        self._capture: Capture | None = capture
        self._wanted_isolation: Isolation | None = isolation
        self._limits = limits or ResourceLimits()
        self._crashes_fail = crashes_fail
        self.label = label or secrets.token_hex(6)
        self.quiet_ms = quiet_ms
        self.cap_s = cap_s
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"deskhand-desktop-{self.label}")
        self._helpers = ThreadPoolExecutor(max_workers=16, thread_name_prefix=f"deskhand-files-{self.label}")
        self._session: DesktopSession | None = None
        self._performer: ActionExecutor | None = None
        self._budgets_s: deque[float] = deque()
        """Of what was given to the worker and is not done, in its order."""
        self._done = IdempotencyCache(CACHED_ACTIONS)
        self._untouched: Frame | None = None
        self._closed = False

    @property
    def isolation(self) -> Isolation:
        """What keeps the guests apart from the host. Blocks for some milliseconds when no desktop has been reset yet."""
        return self._wanted_isolation or available_isolation()[0]

    async def _call(self, function: Callable[[], Result], budget_s: float) -> Result:
        """Run on the worker; when it does not come back the X server is ended, which makes it come back with an error.

        Who waits for others to be done has their time too: what looks at a desktop beside something slow must not end it.
        """
        if self._closed:
            raise InfrastructureError(f"desktop {self.label} is closed")
        future = self._worker.submit(function)
        self._budgets_s.append(budget_s + ANSWER_MARGIN_S)
        limit_s = sum(self._budgets_s)
        waiting = asyncio.wrap_future(future)
        waiting.add_done_callback(self._is_done)
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(waiting)
        except InfrastructureError as error:
            if (
                type(error) is InfrastructureError
                and self._session is not None
                and (failure := self._session.failure())
            ):
                raise InfrastructureError(
                    f"desktop {self.label} has failed: {failure}"
                ) from error  # that is what it comes from
            raise
        except TimeoutError:
            if future.done():
                raise
            if self._session is not None:
                await asyncio.to_thread(self._session.x_server.stop)
            raise InfrastructureError(f"desktop {self.label} did not answer within {limit_s:g} s") from None

    def _is_done(self, waiting: asyncio.Future[Any]) -> None:
        self._budgets_s.popleft()
        _ = waiting.cancelled() or waiting.exception()  # nobody may be left to ask

    async def _aside(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Run beside the worker: files and commands need no X connection."""
        if self._closed:
            raise InfrastructureError(f"desktop {self.label} is closed")
        return await asyncio.get_running_loop().run_in_executor(self._helpers, functools.partial(function, *arguments))

    def _parts(self, alive: bool = True) -> tuple[DesktopSession, ActionExecutor]:
        if self._closed:
            raise InfrastructureError(f"desktop {self.label} is closed")
        if self._session is None or self._performer is None:
            raise InfrastructureError(f"desktop {self.label} has no session; reset it first")
        if alive:
            self._check_alive(self._session)
        return self._session, self._performer

    def _check_alive(self, session: DesktopSession) -> None:
        if failure := session.failure():
            raise InfrastructureError(f"desktop {self.label} has failed: {failure}")

    async def reset(self, template: DesktopSpec) -> Frame:
        """A new X server, window manager and home; a desktop in the state `template` that nobody has touched stays as it is."""
        if self._untouched is not None and self._session is not None and self._session.template == template:
            return self._untouched

        def build() -> Frame:
            self._end_session()
            available, reason = available_isolation()
            if self.isolation == "namespaces" != available:
                raise ConfigError(f"isolation 'namespaces' is not possible: {reason}; use isolation 'plain'")
            self._session = DesktopSession(self.label, template, self.isolation, self._limits, self._capture)
            self._session.box.crashes_fail = self._crashes_fail
            self._performer = ActionExecutor(self._session, self.quiet_ms / 1000, self.cap_s)
            with x_errors("starting"):
                return self._performer.first_frame()

        self._untouched = None
        self._done.clear()
        frame = await self._call(build, 40.0)
        self._untouched = frame
        return frame

    async def perform(self, ops: list[Op], *, action_id: str) -> Frame:
        """See `Desktop.perform`. Ops that only speak to the trainer (Done, Fail, Answer, Screenshot, Zoom) do nothing here."""
        session, performer = self._parts(alive=False)
        plan = performer.plan(ops)

        def perform() -> Frame:
            if earlier := self._done.get(action_id):
                return earlier
            self._done.begin(action_id)
            frame = performer.perform(plan)
            self._check_alive(session)
            self._done.finish(action_id, frame)
            return frame

        self._untouched = None
        return await self._call(perform, plan.longest_s)

    async def observe(self) -> Frame:
        session, performer = self._parts()
        frame = await self._on_x(performer.observe, "observing", self.cap_s)
        self._check_alive(session)
        return frame

    async def _on_x(self, function: Callable[[], Result], doing: str, budget_s: float) -> Result:
        def guarded() -> Result:
            with x_errors(doing):
                return function()

        return await self._call(guarded, budget_s)

    async def run(
        self, argv: list[str], *, timeout_s: float = 30.0, env: dict[str, str] | None = None, cwd: str | None = None
    ) -> CommandResult:
        session, _ = self._parts()
        self._untouched = None
        return await self._aside(session.box.run, argv, timeout_s, env, cwd)

    async def launch(self, argv: list[str], *, env: dict[str, str] | None = None, cwd: str | None = None) -> int:
        session, _ = self._parts()
        self._untouched = None
        return await self._aside(session.box.launch, argv, env, cwd)

    async def launch_piped(
        self, argv: list[str], *, env: dict[str, str] | None = None, cwd: str | None = None
    ) -> NulPipes:
        """Start a program that is talked to by messages on its descriptors 3 and 4; what it says is guest-trusted."""
        session, _ = self._parts()
        self._untouched = None
        return await self._aside(session.box.launch_piped, argv, env, cwd)

    async def windows(self) -> list[Window]:
        session, _ = self._parts()
        return await self._on_x(lambda: windows.list_windows(session.connection), "listing windows", 2.0)

    async def wait_window(self, match: str, *, timeout_s: float = 20.0, count: int = 1) -> list[Window]:
        session, _ = self._parts()

        def wait() -> list[Window]:
            return windows.wait_windows(session.connection, match, timeout_s, count, lambda: self._check_alive(session))

        return await self._on_x(wait, f"waiting for window '{match}'", timeout_s)

    async def place_window(
        self, window: Window, x: int, y: int, width: int | None = None, height: int | None = None
    ) -> Window:
        session, _ = self._parts()
        self._untouched = None
        return await self._on_x(
            lambda: windows.place(session.connection, window, x, y, width, height), "placing a window", 3.0
        )

    async def activate_window(self, window: Window) -> None:
        session, _ = self._parts()
        self._untouched = None
        await self._on_x(lambda: windows.activate(session.connection, window), "activating a window", 2.0)

    async def close_window(self, window: Window) -> None:
        session, _ = self._parts()
        self._untouched = None
        await self._on_x(lambda: windows.close(session.connection, window), "closing a window", 2.0)

    async def socket_inside(self) -> socket.socket:
        session, _ = self._parts()
        return await self._aside(session.socket_inside)

    async def clipboard(self, selection: str = "CLIPBOARD") -> str | None:
        session, _ = self._parts()
        return await self._on_x(lambda: read_selection(session.connection, selection), "reading the clipboard", 2.0)

    async def pull(self, path: str) -> bytes:
        session, _ = self._parts()
        return await self._aside(session.home.read, path)

    async def push(self, path: str, data: bytes) -> None:
        session, _ = self._parts()
        self._untouched = None
        await self._aside(session.home.write, path, data)

    async def listdir(self, path: str) -> list[str]:
        session, _ = self._parts()
        return await self._aside(session.home.names, path)

    async def fingerprint(self) -> Fingerprint:
        """What this desktop is now, as the host sees it; equal for two desktops that an episode could not tell apart."""
        session, performer = self._parts()

        def take() -> Fingerprint:
            frame = performer.observe()
            return fingerprint.take(session.connection, session.home.root, session.box.pids(), frame.content_hash)

        return await self._on_x(take, "taking a fingerprint", self.cap_s)

    async def accessibility_tree(self, *, timeout_s: float = 10.0) -> str | None:
        """See `accessibility.py`; None unless the template asked for it. It takes `timeout_s` at most, and some for the start."""
        session, _ = self._parts()
        if not session.template.accessibility:
            return None
        return await self._aside(accessibility.read, session.box, timeout_s)

    def processes(self) -> list[int]:
        """Host process ids of this desktop now (X server, box, guests)."""
        return self._session.processes() if self._session else []

    def parts(self) -> dict[str, list[int]]:
        """Host process ids by what they are: "x server", "window manager", "applications" (those that were launched)."""
        session = self._session
        if session is None:
            return {}
        launched = session.box.launched[session.box.launched.index(session.manager) + 1 :]
        return {
            "x server": [session.x_server.process.pid],
            "window manager": [session.manager],
            "applications": launched,
        }

    def _end_session(self) -> None:
        session, self._session, self._performer = self._session, None, None
        if session is not None:
            session.close()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._finish)

    def _finish(self) -> None:
        if self._session is not None:
            self._session.x_server.stop()
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._end_session()
        self._helpers.shutdown(wait=True, cancel_futures=True)
