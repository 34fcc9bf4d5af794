"""Desktop of a machine that runs OSWorld's in-VM server.

Base class of `waa_desktop` and `sandbox_desktop`. Actions and commands are sent to `/execute` as programs of
`guest_scripts`, which carry an id and run once however often they are sent; a screenshot is one `GET /screenshot`.
`reset_hook` restores the machine's snapshot; without one, `reset` fails unless `skip_reset` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from deskhand import pausable_timeout
from deskhand.actions.formats.limits import points_of
from deskhand.actions.ops import Op, to_screen_px
from deskhand.desktop.base import CommandResult, DesktopSpec, Frame, Window
from deskhand.desktop.local.home import MAX_NAMES
from deskhand.desktop.local.idempotency_cache import IdempotencyCache
from deskhand.desktop.remote import guest_scripts, screenshots
from deskhand.desktop.remote.osworld_server import OsworldServer, ServerError
from deskhand.desktop.remote.replies import FromBase64, guest_json
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.errors import AgentError, ConfigError, DeliveryUnknown, FrameError, InfrastructureError

Result = TypeVar("Result")
ResetHook = Callable[[], Awaitable[str | None]]
"""Resets a machine; returns its new URL if that may have changed."""
READY_S = 300.0
CACHED_ACTIONS = 64


@dataclass
class ResetMarker:
    """File that the previous reset left; one that restores the home removes it. Shared by all users of a machine."""

    path: str | None = None


class OsworldDesktop:
    """Implements `StageableDesktop` for the machine behind `client`.

    With `skip_reset`, a machine without `reset_hook` is used as it is. With `marker`, a reset is verified.
    """

    system: guest_scripts.System = "linux"

    def __init__(
        self,
        client: RetryingClient,
        *,
        reset_hook: ResetHook | None = None,
        skip_reset: bool = False,
        polling: screenshots.ScreenPolling | None = None,
        ready_s: float = READY_S,
        marker: ResetMarker | None = None,
    ) -> None:
        self.client = client
        self._marker = marker
        self._server = OsworldServer(client)
        self._pristine: tuple[DesktopSpec, Frame] | None = None
        self._reset_hook = reset_hook
        self._skip_reset = skip_reset
        self._polling = polling or screenshots.ScreenPolling()
        self._ready_s = ready_s
        self._size: tuple[int, int] | None = None
        self._decoder = screenshots.ScreenshotDecoder()
        self._cursor = (0, 0)
        self._performed = IdempotencyCache(CACHED_ACTIONS)
        self._action_lock = asyncio.Lock()
        self._old_markers: list[str] = []
        self._closed = False

    @property
    def label(self) -> str:
        return self.client.base_url

    @property
    def server(self) -> OsworldServer:
        """The server's endpoints. The caller may change anything, so the next `reset` is a full one."""
        self._pristine = None
        return self._server

    async def reset(self, spec: DesktopSpec) -> Frame:
        """Restore the snapshot and wait for a screen that is not black.

        Without a reset hook, at least keys and buttons are released and the pointer is centered. The screen size
        cannot be changed: another one than the spec's raises `ConfigError`. A machine that was reset to
        `spec` and not used since stays as it is.
        """
        self._check_open()
        if self._pristine is not None and self._pristine[0] == spec:
            return self._pristine[1]
        self._decoder = screenshots.ScreenshotDecoder()
        if self._reset_hook is not None:
            address = await self._reset_hook()
            if address is not None:
                await self.client.move(address)
        elif not self._skip_reset:
            raise ConfigError(
                f"{self.label}: no way to reset this machine; set desktop.reset_command or desktop.skip_reset"
            )
        await self.wait_ready()
        await self._check_reset()
        size = await self._server.screen_size()
        if size != (spec.width, spec.height):
            raise ConfigError(
                f"{self.label}: the screen has {size[0]}x{size[1]} pixels, the task needs "
                f"{spec.width}x{spec.height}; change its resolution"
            )
        self._size = size
        self._performed.clear()
        self._old_markers.clear()
        if self._reset_hook is None:  # an earlier episode may have left keys pressed and the pointer on a target
            await self._run_marked(guest_scripts.release_script(*size, self.system), 10.0)
        with contextlib.suppress(InfrastructureError):
            self._cursor = await self._server.cursor_position()
        frame = await self.observe()
        self._pristine = spec, frame
        return frame

    async def _check_reset(self) -> None:
        if self._marker is None or self._reset_hook is None:
            return
        path = f".cache/deskhand-{secrets.token_hex(8)}"
        if await self._run_for(bool, guest_scripts.replace_marker_script(self._marker.path, path), 10.0):
            raise InfrastructureError(
                f"{self.label}: not reset, although desktop.reset_command succeeded: "
                f"~/{self._marker.path} from before the reset still exists"
            )
        self._marker.path = path

    async def wait_ready(self) -> None:
        """Wait until the machine shows a screen. Raises `InfrastructureError` after `ready_s`."""
        await self._until_ready(lambda: self._screenshot(1))

    async def _until_ready(self, probe: Callable[[], Awaitable[object]]) -> None:
        reason = "no reply"
        try:
            async with pausable_timeout.pausable_timeout(self._ready_s):
                while True:
                    try:
                        await probe()
                        return
                    except InfrastructureError as error:
                        reason = str(error)
                    await asyncio.sleep(min(2.0, self.client.timeouts.initial_backoff_s * 5))
        except TimeoutError:
            message = f"{self.label}: not ready within {self._ready_s:g} s: {reason}"
            raise InfrastructureError(message) from None

    async def perform(self, ops: list[Op], *, action_id: str) -> Frame:
        """See `Desktop.perform`. Actions are serialized; a repeat of the current action waits for its result."""
        self._check_open()
        if self._size is None:
            raise InfrastructureError(f"{self.label}: call reset first")
        size = self._size
        body = guest_scripts.action_script(ops, *size, self.system)
        max_duration_s = 10.0 + sum(guest_scripts.max_duration_s(op) for op in ops)
        if max_duration_s > (limit_s := self.client.timeouts.op_s):
            raise AgentError(f"these actions may take {max_duration_s:.0f} s; the most for one step is {limit_s:g} s")
        async with self._action_lock:
            if earlier := self._performed.get(action_id):
                return earlier
            self._performed.begin(action_id)
            try:
                await self._act(body, max_duration_s)
            except DeliveryUnknown:
                raise
            except InfrastructureError:
                self._performed.forget(action_id)
                raise
            for op in ops:
                for point in points_of(op)[-1:]:
                    self._cursor = to_screen_px(point, *size)
            try:
                frame = await self._settled()
            except FrameError:
                raise
            except InfrastructureError as error:
                raise DeliveryUnknown(
                    f"{self.label}: the action was performed, but its screenshot failed: {error}"
                ) from error
            await asyncio.to_thread(self._performed.finish, action_id, frame)
            return frame

    async def _act(self, body: str, max_duration_s: float) -> None:
        await self._run_marked(body, max_duration_s)

    async def _run_marked(self, body: str, timeout_s: float) -> str:
        """Run a program once and return its output. Raises `DeliveryUnknown` and `InfrastructureError`."""
        self._check_open()
        self._pristine = None
        name, old = secrets.token_hex(12), list(self._old_markers)
        code = guest_scripts.with_marker(body, name, wait_s=timeout_s, old=old)
        try:
            reply = await self._server.execute(["python", "-c", code], may_take_s=2 * timeout_s + 5.0, repeatable=True)
        except ServerError as error:
            raise DeliveryUnknown(str(error)) from error
        self._old_markers = [*(each for each in self._old_markers if each not in old), name]
        end = reply.output.strip().rpartition("deskhand ")[2]
        if reply.returncode != 0 or not end:
            raise DeliveryUnknown(f"{self.label}: the guest's Python failed: {reply.error[-300:]}")
        return self._parse_result(end)

    async def _run_for(self, kind: type[Result], body: str, timeout_s: float) -> Result:
        """Run a program once and return the JSON that it prints. Raises `InfrastructureError` for another shape."""
        return guest_json(kind, await self._run_marked(body, timeout_s), self.label)

    def _parse_result(self, result: str) -> str:
        """Return the output of a marked program. Raises `ProgramFailed` (nothing performed) or `DeliveryUnknown`."""
        state, _, rest = result.partition(" ")
        if state == "done":
            return rest
        about = f"{self.label}: the guest's Python"
        if state != "failed":
            raise DeliveryUnknown(f"{about} was started and its outcome is unknown")
        number, _, message = rest.partition(" ")
        if number == "0":
            raise ProgramFailed(f"{about} raised: {message[:300]}", message.strip("'\""))
        raise DeliveryUnknown(f"{about} raised after {number} inputs were started: {message[:300]}")

    async def observe(self) -> Frame:
        self._check_open()
        bgrx = await self._screenshot(self._polling.max_attempts)
        return await asyncio.to_thread(self._decoder.frame, bgrx, self._cursor, 0.0, "none")

    async def _settled(self) -> Frame:
        start, before, reason = time.monotonic(), None, "none"
        while True:
            await asyncio.sleep(self._polling.pause_s)
            bgrx = await self._screenshot(self._polling.max_attempts)
            if self._polling.max_screenshots <= 1:
                break
            if before is not None and (bgrx == before).all():
                reason = "quiet"
                break
            if time.monotonic() - start > self._polling.cap_s:
                reason = "cap"
                break
            before = bgrx
        settle_ms = (time.monotonic() - start) * 1000
        return await asyncio.to_thread(self._decoder.frame, bgrx, self._cursor, settle_ms, reason)

    async def _screenshot(self, max_attempts: int) -> np.ndarray:
        about = f"{self.label}/screenshot"
        for attempt in range(max_attempts):
            data = await self._server.screenshot()
            try:
                return await asyncio.to_thread(self._decoder.decode, data, self._size, about)
            except FrameError:
                if attempt == max_attempts - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def run(
        self, argv: list[str], *, timeout_s: float = 30.0, env: dict[str, str] | None = None, cwd: str | None = None
    ) -> CommandResult:
        """See `Desktop.run`; runs once, like an action. The server kills commands after two minutes."""
        return await self._run_command(argv, timeout_s, env, cwd)

    async def shell(self, command: str, *, timeout_s: float = 30.0) -> CommandResult:
        """Run a command line in the machine's own shell, like `run`."""
        return await self._run_command([command], timeout_s, shell=True)

    async def launch_shell(self, command: str) -> None:
        await self.server.launch(command, shell=True)

    async def open_file(self, path: str) -> None:
        await self.server.open_file(path)

    async def _run_command(
        self,
        argv: list[str],
        timeout_s: float,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        shell: bool = False,
    ) -> CommandResult:
        limit_s = min(timeout_s, self.client.timeouts.op_s - 10.0)
        script = guest_scripts.run_script(argv, limit_s, env, cwd, shell)
        return CommandResult(*await self._run_for(tuple[int, FromBase64, FromBase64], script, limit_s + 3.0))

    async def launch(self, argv: list[str], *, env: dict[str, str] | None = None, cwd: str | None = None) -> int:
        return await self._run_for(int, guest_scripts.launch_script(argv, env, cwd), 10.0)

    async def pull(self, path: str) -> bytes:
        self._check_open()
        return await self._server.file(self._home(path))

    async def push(self, path: str, data: bytes) -> None:
        self._check_open()
        self._pristine = None
        await self._server.upload(self._home(path), data)

    def _home(self, path: str) -> str:
        return path if path.startswith(("/", "~")) else f"~/{path}"

    async def listdir(self, path: str) -> list[str]:
        body = (
            f"import json\n_names = os.listdir(os.path.expanduser({self._home(path)!r}))[:{MAX_NAMES}]\n"
            "_said = json.dumps(sorted(os.fsencode(each).decode('utf-8', 'backslashreplace') for each in _names))"
        )
        try:
            return await self._run_for(list[str], body, 10.0)
        except ProgramFailed as error:
            if error.raised.startswith(("FileNotFoundError", "NotADirectoryError")):
                raise FileNotFoundError(2, "no such folder", path) from error
            if error.raised.startswith(("PermissionError", "OSError: [Errno 36]", "OSError: [Errno 40]")):
                raise PermissionError(13, "the folder cannot be read", path) from error  # also a loop, or a long name
            raise

    async def accessibility_tree(self) -> str | None:
        self._check_open()
        return await self._server.accessibility()

    async def _wmctrl(self, *arguments: str) -> CommandResult:
        return await self.run(["wmctrl", *arguments], timeout_s=10)

    async def windows(self) -> list[Window]:
        done = await self._wmctrl("-lGx")
        if done.returncode != 0:
            message = done.stderr.decode(errors="replace")[:200]
            raise InfrastructureError(f"{self.label}: wmctrl failed: {message}")
        return parse_wmctrl(done.stdout.decode(errors="replace"))

    async def wait_window(self, match: str, *, timeout_s: float = 20.0, count: int = 1) -> list[Window]:
        deadline = time.monotonic() + timeout_s
        while True:
            found = [each for each in await self.windows() if match.lower() in f"{each.wm_class}\n{each.title}".lower()]
            if len(found) >= count:
                return found
            if time.monotonic() > deadline:
                raise InfrastructureError(f"{self.label}: no window '{match}' within {timeout_s:g} s")
            await asyncio.sleep(0.25)

    async def place_window(
        self, window: Window, x: int, y: int, width: int | None = None, height: int | None = None
    ) -> Window:
        geometry = f"0,{x},{y},{width if width is not None else -1},{height if height is not None else -1}"
        await self._wmctrl("-i", "-r", hex(window.id), "-b", "remove,maximized_vert,maximized_horz")
        await self._wmctrl("-i", "-r", hex(window.id), "-e", geometry)
        return next((each for each in await self.windows() if each.id == window.id), window)

    async def activate_window(self, window: Window) -> None:
        await self._wmctrl("-i", "-a", hex(window.id))

    async def close_window(self, window: Window) -> None:
        await self._wmctrl("-i", "-c", hex(window.id))

    async def clipboard(self, selection: str = "CLIPBOARD") -> str | None:
        done = await self.run(["xclip", "-o", "-selection", selection.lower()], timeout_s=10)
        return done.stdout.decode(errors="replace") if done.returncode == 0 else None

    async def close(self) -> None:
        """Close the connection; the machine stays as it is. Idempotent."""
        self._closed = True
        await self.client.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InfrastructureError(f"{self.label}: the desktop is closed")


class ProgramFailed(InfrastructureError):
    """A guest program raised before it began to perform anything; `raised` starts with the type of the exception."""

    def __init__(self, text: str, raised: str) -> None:
        super().__init__(text)
        self.raised = raised


def parse_wmctrl(text: str) -> list[Window]:
    """Parse the output of `wmctrl -lGx`; skips invalid lines, and panels (desktop -1)."""
    found = []
    for line in text.splitlines():
        words = line.split(None, 8)
        try:
            number, desktop, x, y, width, height = int(words[0], 16), *map(int, words[1:6])
        except (ValueError, IndexError):
            continue
        if desktop >= 0 and len(words) >= 8:
            found.append(Window(number, words[8] if len(words) > 8 else "", words[6], x, y, width, height))
    return found
