"""`LocalDesktop`: a real X server, window manager and applications on this machine.

Input, pixels and files never pass through a guest process. One worker thread makes every blocking X call.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from deskhand.actions.ops import Key, Op
from deskhand.desktop.base import CommandResult, DesktopSpec, Frame, Window
from deskhand.desktop.local import accessibility, precedence, processes, windows
from deskhand.desktop.local.action_executor import ActionExecutor
from deskhand.desktop.local.clipboard import copied_text
from deskhand.desktop.local.clipboard import read as read_selection
from deskhand.desktop.local.desktop_session import X_EXIT_S, DesktopSession
from deskhand.desktop.local.idempotency_cache import IdempotencyCache
from deskhand.desktop.local.isolation import IsolationLevel, ResourceLimits, available_isolation
from deskhand.desktop.local.nul_pipes import NulPipes
from deskhand.desktop.local.screen_reader import Capture
from deskhand.desktop.local.x_connection import guests_doing, x_errors
from deskhand.errors import ConfigError, GuestFailure, InfrastructureError

Result = TypeVar("Result")

CACHED_ACTIONS = 64
REPLY_MARGIN_S = 5.0
_IDLE_READINGS, _IDLE_INTERVAL_S = 3, 0.02
"""No guest is busy in so many readings in a row: between two programs of a chain one reading may find none."""


class LocalDesktop:
    """Implements `StageableDesktop`.

    `settle_ms` without a change is a settled screen, `settle_timeout_s` the maximum wait for one. With `crashes_fail`
    False, launched programs may be killed, as some tasks require; otherwise a crash fails the desktop.
    `isolation_level` None selects the best available level; "namespaces" raises `ConfigError` where it is unavailable.
    `capture` None selects the fastest working method (`screen_reader`).
    """

    def __init__(
        self,
        *,
        label: str | None = None,
        isolation_level: IsolationLevel | None = None,
        limits: ResourceLimits | None = None,
        crashes_fail: bool = True,
        capture: Capture | None = None,
        settle_ms: float = 60.0,
        settle_timeout_s: float = 2.0,
    ) -> None:
        self._capture: Capture | None = capture
        self._requested_level: IsolationLevel | None = isolation_level
        self._limits = limits or ResourceLimits()
        self._crashes_fail = crashes_fail
        self.label = label or secrets.token_hex(6)
        self.settle_ms = settle_ms
        self.settle_timeout_s = settle_timeout_s
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"deskhand-desktop-{self.label}")
        self._helpers = ThreadPoolExecutor(max_workers=16, thread_name_prefix=f"deskhand-files-{self.label}")
        self._session: DesktopSession | None = None
        self._executor: ActionExecutor | None = None
        self._pending_budgets_s: deque[float] = deque()
        """Budgets of the calls submitted to the worker and not finished, in order."""
        self._cache = IdempotencyCache(CACHED_ACTIONS)
        self._pristine: Frame | None = None
        self._closed = False

    @property
    def isolation_level(self) -> IsolationLevel:
        """Isolation level of the guests. Blocks for some milliseconds before the first reset."""
        return self._requested_level or available_isolation()[0]

    async def _call(self, function: Callable[[], Result], budget_s: float) -> Result:
        """Run on the worker. Past the time limit the X server is killed, which ends the call with an error.

        The limit includes the budgets of the queued calls: a slow action must not make an observation kill the desktop.
        """
        if self._closed:
            raise InfrastructureError(f"desktop {self.label} is closed")
        future = self._worker.submit(function)
        self._pending_budgets_s.append(budget_s + REPLY_MARGIN_S)
        limit_s = sum(self._pending_budgets_s)
        waiting = asyncio.wrap_future(future)
        waiting.add_done_callback(self._is_done)
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(waiting)
        except InfrastructureError as error:
            if self._session is not None:
                await asyncio.to_thread(self._explain, self._session, error)
            raise
        except TimeoutError:
            if future.done():
                raise
            silent = InfrastructureError(f"desktop {self.label} did not respond within {limit_s:g} s")
            if self._session is not None:
                try:
                    await asyncio.to_thread(self._explain, self._session, silent)
                finally:
                    await asyncio.to_thread(self._session.x_server.stop)
            raise silent from None

    def _is_done(self, waiting: asyncio.Future[Any]) -> None:
        self._pending_budgets_s.popleft()
        _ = waiting.cancelled() or waiting.exception()  # mark as retrieved: the caller may be gone

    async def _on_helper(self, function: Callable[[DesktopSession], Result], *, changes: bool = False) -> Result:
        """Run on a helper thread: files and commands need no X connection."""
        session = self._active_session(changes)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._helpers, function, session)
        except InfrastructureError as error:
            await asyncio.to_thread(self._explain, session, error)
            raise

    async def _on_x(
        self, doing: str, budget_s: float, function: Callable[..., Result], *arguments: object, changes: bool = False
    ) -> Result:
        """Run `function(connection, *arguments)` on the worker."""
        job = functools.partial(function, self._active_session(changes).connection, *arguments)
        return await self._call(x_errors(doing)(job), budget_s)

    def _parts(self) -> tuple[DesktopSession, ActionExecutor]:
        if self._closed:
            raise InfrastructureError(f"desktop {self.label} is closed")
        if self._session is None or self._executor is None:
            raise InfrastructureError(f"desktop {self.label} has no session; call reset first")
        return self._session, self._executor

    def _active_session(self, changes: bool = False) -> DesktopSession:
        """Return the session, which works; a desktop that the caller `changes` is rebuilt by the next reset."""
        session, _ = self._parts()
        self._check_alive(session)
        if changes:
            self._pristine = None
        return session

    def _explain(self, session: DesktopSession, error: InfrastructureError) -> None:
        """Raise `GuestFailure` if guests caused `error`; for an error without a kind, why the desktop failed."""
        if isinstance(error, GuestFailure):
            return
        if session.failed_by_guests() or type(error) is InfrastructureError:
            self._check_alive(session)
        if session.failure() is not None:
            return
        if doing := guests_doing(error):
            raise GuestFailure(f"desktop {self.label}: {doing} ({error})") from error
        state = session.x_server.probe()
        if state == "gone" and session.x_server.ends_within(X_EXIT_S) and session.failed_by_guests():
            self._check_alive(session)
        if state == "grabbed":
            raise GuestFailure(f"desktop {self.label}: a guest has grabbed the X server ({error})") from error
        if state == "working":
            raise GuestFailure(f"desktop {self.label}: guests keep the X server at work ({error})") from error
        if session.is_disk_full_by(error):
            raise GuestFailure(f"desktop {self.label}: guests filled its disk ({error})") from error
        if session.connection.is_robbed(error):
            raise GuestFailure(f"desktop {self.label}: a guest destroyed what the host has in the X server ({error})")
        if state == "answers" and session.connection.is_lost():
            raise GuestFailure(f"desktop {self.label}: a guest closed the host's X connection ({error})") from error
        if session.jail.has_stopped_programs():
            raise GuestFailure(f"desktop {self.label}: a guest has stopped programs ({error})") from error

    def _check_alive(self, session: DesktopSession) -> None:
        if failure := session.failure():
            kind = GuestFailure if session.failed_by_guests() else InfrastructureError
            raise kind(f"desktop {self.label} has failed: {failure}")

    async def reset(self, spec: DesktopSpec) -> Frame:
        """Start a new X server, window manager and home. A desktop already in this state and unused is kept."""
        if self._pristine is not None and self._session is not None and self._session.spec == spec:
            return self._pristine

        def build() -> Frame:
            self._end_session()
            available, reason = available_isolation()
            if self.isolation_level == "namespaces" != available:
                raise ConfigError(f"isolation 'namespaces' is not available: {reason}; use isolation 'plain'")
            self._session = DesktopSession(self.label, spec, self.isolation_level, self._limits, self._capture)
            self._session.jail.crashes_fail = self._crashes_fail
            self._executor = ActionExecutor(self._session, self.settle_ms / 1000, self.settle_timeout_s)
            with x_errors("starting"):
                return self._executor.first_frame()

        self._pristine = None
        self._cache.clear()
        frame = await self._call(build, 40.0)
        self._pristine = frame
        return frame

    async def perform(self, ops: list[Op], *, action_id: str) -> Frame:
        """See `Desktop.perform`. Ops for the trainer (Done, Fail, Answer, Screenshot, Zoom) do nothing here."""
        session, executor = self._parts()
        plan = executor.plan(ops)

        def perform() -> Frame:
            if cached := self._cache.get(action_id):
                return cached
            self._cache.begin(action_id)
            frame = executor.perform(plan)
            self._check_alive(session)
            self._cache.finish(action_id, frame)
            return frame

        self._pristine = None
        return await self._call(perform, plan.budget_s)

    async def observe(self) -> Frame:
        session = self._active_session()
        _, executor = self._parts()
        frame = await self._call(x_errors("observing")(executor.observe), self.settle_timeout_s)
        self._check_alive(session)
        return frame

    def live_pixels(self, step: int = 1) -> np.ndarray | None:
        """See `HasLivePixels`. Reads the X server's memory, so it neither waits for an action nor delays one."""
        session = self._session
        return None if session is None else session.live_pixels(step)

    async def run(
        self, argv: list[str], *, timeout_s: float = 30.0, env: dict[str, str] | None = None, cwd: str | None = None
    ) -> CommandResult:
        return await self._on_helper(lambda session: session.jail.run(argv, timeout_s, env, cwd), changes=True)

    async def launch(self, argv: list[str], *, env: dict[str, str] | None = None, cwd: str | None = None) -> int:
        return await self._on_helper(lambda session: session.jail.launch(argv, env, cwd), changes=True)

    async def shell(self, command: str, *, timeout_s: float = 30.0) -> CommandResult:
        """Run a command line in `/bin/sh`."""
        return await self.run(["/bin/sh", "-c", command], timeout_s=timeout_s)

    async def launch_shell(self, command: str) -> None:
        await self.launch(["/bin/sh", "-c", command])

    async def open_file(self, path: str) -> None:
        raise ConfigError(f"{path}: a local desktop has no program for a type of file; launch the program instead")

    async def launch_piped(
        self, argv: list[str], *, env: dict[str, str] | None = None, cwd: str | None = None
    ) -> NulPipes:
        """Start a program that exchanges messages on descriptors 3 and 4. Its messages are untrusted."""
        pipes = await self._on_helper(lambda session: session.jail.launch_piped(argv, env, cwd), changes=True)
        pipes.explain = functools.partial(self._explain, self._active_session())
        return pipes

    async def windows(self) -> list[Window]:
        return await self._on_x("listing windows", 2.0, windows.list_windows)

    async def wait_window(self, match: str, *, timeout_s: float = 20.0, count: int = 1) -> list[Window]:
        check = functools.partial(self._check_alive, self._active_session())
        doing = f"waiting for window '{match}'"
        budget_s = timeout_s + 2 * windows.PROGRAM_TIMEOUT_S
        return await self._on_x(doing, budget_s, windows.wait_windows, match, timeout_s, count, check)

    async def place_window(
        self, window: Window, x: int, y: int, width: int | None = None, height: int | None = None
    ) -> Window:
        placed = (window, x, y, width, height)
        return await self._on_x("placing a window", windows.PLACE_TIMEOUT_S, windows.place, *placed, changes=True)

    async def activate_window(self, window: Window) -> None:
        await self._on_x("activating a window", 2.0, windows.activate, window, changes=True)

    async def close_window(self, window: Window) -> None:
        await self._on_x("closing a window", 2.0, windows.close, window, changes=True)

    async def socket_inside(self) -> socket.socket:
        return await self._on_helper(lambda session: session.socket_inside())

    async def listen_inside(self, port: int, on_close: Callable[[], None]) -> socket.socket:
        return await self._on_helper(lambda session: session.listen_inside(port, on_close))

    async def clipboard(self, selection: str = "CLIPBOARD") -> str | None:
        return await self._on_x("reading the clipboard", 2.0, read_selection, selection)

    async def copied_text(self, window: int) -> str | None:
        session = self._active_session(changes=True)
        _, executor = self._parts()
        plan = executor.plan([Key(("ctrl", "c"))])
        read = functools.partial(copied_text, session.connection, session.x_server, window)
        job = functools.partial(read, functools.partial(executor.perform, plan))
        return await self._call(x_errors("reading what a program copies")(job), plan.budget_s + 2.0)

    async def pull(self, path: str) -> bytes:
        return await self._on_helper(lambda session: session.home.read(path))

    async def push(self, path: str, data: bytes) -> None:
        await self._on_helper(lambda session: session.home.write(path, data), changes=True)

    async def listdir(self, path: str) -> list[str]:
        return await self._on_helper(lambda session: session.home.listdir(path))

    async def accessibility_tree(self, *, timeout_s: float = 10.0) -> str | None:
        """See `local.accessibility`; None unless the spec enables it. `timeout_s` excludes the start of the reader."""
        if not self._active_session().spec.accessibility:
            return None
        return await self._on_helper(lambda session: accessibility.read(session.jail, timeout_s))

    async def running_programs(self) -> dict[int, bool | None]:
        def read(session: DesktopSession) -> dict[int, bool | None]:
            launched = session.jail.launched
            return {pid: processes.has_run_commands(pid) for pid in launched if processes.is_alive(pid)}

        return await self._on_helper(read)

    async def exit_codes(self) -> dict[int, int]:
        return await self._on_helper(lambda session: session.jail.exit_codes())

    async def wait_until_idle(self, timeout_s: float) -> bool:
        deadline, idle = time.monotonic() + timeout_s, 0
        while idle < _IDLE_READINGS and time.monotonic() < deadline:
            idle = 0 if await self._on_helper(lambda session: session.busy()) else idle + 1
            await asyncio.sleep(_IDLE_INTERVAL_S)
        return idle == _IDLE_READINGS

    def processes(self) -> list[int]:
        """Return the host process ids of this desktop (X server, jail, guests)."""
        return self._session.processes() if self._session else []

    def parts(self) -> dict[str, list[int]]:
        """Return host process ids by role: "x server", "window manager", "applications" (launched programs)."""
        session = self._session
        if session is None:
            return {}
        launched = session.jail.launched[session.jail.launched.index(session.manager) + 1 :]
        return {
            "x server": [session.x_server.process.pid],
            "window manager": [session.manager],
            "applications": launched,
        }

    def _end_session(self) -> None:
        session, self._session, self._executor = self._session, None, None
        if session is not None:
            session.close()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._finish)

    def _finish(self) -> None:
        with precedence.precedence_if_overloaded():
            if self._session is not None:
                self._session.x_server.stop()
            self._worker.shutdown(wait=True, cancel_futures=True)
            self._end_session()
            self._helpers.shutdown(wait=True, cancel_futures=True)
