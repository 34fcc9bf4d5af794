"""A machine that runs OSWorld's in-VM server, as a desktop. Invariant: an action and a command are carried out once, however often
they had to be sent; a screen that is not whole is never a frame.

What acts goes to `/execute` as a program of `remote.guest_code`, which knows its own id; a look is one `GET /screenshot`. `revert`
brings the machine back to its snapshot; without one the state of a machine stays as it is, and `reset` says so by raising.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from deskhand import pausable_timeout
from deskhand.actions.formats.limits import points_of
from deskhand.actions.ops import Op, Wait, to_screen_px
from deskhand.desktop.base import CommandResult, DesktopSpec, Frame, Window
from deskhand.desktop.local.idempotency_cache import IdempotencyCache
from deskhand.desktop.remote import guest_scripts, screenshots, wmctrl
from deskhand.desktop.remote.osworld_server import OsworldServer, ServerError
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.errors import AgentError, ConfigError, DeliveryUnknown, FrameError, InfrastructureError

ResetHook = Callable[[], Awaitable[str | None]]
"""Brings a machine back; gives the address that it has from then on, when it may be another."""
READY_S = 300.0
REMEMBERED_ACTIONS = 64


@dataclass
class ResetMarker:
    """Shared by all that use a machine after one another: the mark that the last reset left in it. One that brings its home back
    takes the mark away."""

    mark: str | None = None


@dataclass(frozen=True)
class ScreenPolling:
    """When the screen is looked at after an action: `pause_s` later, and again, every `pause_s`, until two looks agree or `cap_s`
    is over. `looks` 1 is one look, whatever it shows. `tries` is how often a picture that is not whole is asked for again."""

    pause_s: float = 0.25
    cap_s: float = 2.0
    looks: int = 2
    tries: int = 3


class OsworldDesktop:
    """Fulfils `StagedDesktop` on the machine at `client`. With `skip_reset` a machine without `revert` is taken as it is; with
    `marker` one that `revert` did not bring back has not been reset."""

    system: guest_scripts.System = "linux"

    def __init__(
        self,
        client: RetryingClient,
        *,
        revert: ResetHook | None = None,
        skip_reset: bool = False,
        polling: ScreenPolling | None = None,
        ready_s: float = READY_S,
        marker: ResetMarker | None = None,
    ) -> None:
        self.client = client
        self._marker = marker
        self._server = OsworldServer(client)
        self._untouched: tuple[DesktopSpec, Frame] | None = None
        self._revert = revert
        self._skip_reset = skip_reset
        self._polling = polling or ScreenPolling()
        self._ready_s = ready_s
        self._size: tuple[int, int] | None = None
        self._decoder = screenshots.ScreenshotDecoder()
        self._cursor = (0, 0)
        self._done = IdempotencyCache(REMEMBERED_ACTIONS)
        self._acting = asyncio.Lock()
        self._forget: list[str] = []
        self._closed = False

    @property
    def label(self) -> str:
        return self.client.base_url

    @property
    def server(self) -> OsworldServer:
        """Its endpoints; who takes them may change anything."""
        self._untouched = None
        return self._server

    async def reset(self, template: DesktopSpec) -> Frame:
        """Back to the snapshot, then ready: a screen that is not black, a pointer that can be asked for. Where nothing brings it
        back, at least no modifier and no button stays pressed and the pointer is in the middle. The machine has the screen that it
        has: another size than the template's is a `ConfigError`. A machine that was reset to `template` and that nobody has touched
        stays as it is."""
        self._check_open()
        if self._untouched is not None and self._untouched[0] == template:
            return self._untouched[1]
        if self._revert is not None:
            address = await self._revert()
            if address is not None:
                await self.client.move(address)
        elif not self._skip_reset:
            raise ConfigError(
                f"{self.client.base_url}: nothing brings this machine back to its start state; give revert, or skip_reset"
            )
        await self.wait_ready()
        await self._check_it_came_back()
        size = await self._server.screen_size()
        if size != (template.width, template.height):
            asked, is_now = (f"{width}x{height}" for width, height in ((template.width, template.height), size))
            raise ConfigError(
                f"{self.client.base_url}: its screen has {is_now} pixels, the task wants {asked}; set the machine's screen"
            )
        self._size, self._decoder = size, screenshots.ScreenshotDecoder()
        self._done.clear()
        self._forget.clear()
        if (
            self._revert is None
        ):  # a key that stays pressed, or a pointer that is in place, would be an earlier episode's doing
            await self._marked(guest_scripts.release_script(*size, self.system), 10.0)
        with contextlib.suppress(InfrastructureError):
            self._cursor = await self._server.cursor_position()
        frame = await self.observe()
        self._untouched = template, frame
        return frame

    async def _check_it_came_back(self) -> None:
        if self._marker is None or self._revert is None:
            return
        mark = f".cache/deskhand-{secrets.token_hex(8)}"
        if json.loads(await self._marked(guest_scripts.replace_marker_script(self._marker.mark, mark), 10.0)):
            raise InfrastructureError(
                f"{self.client.base_url}: it was not brought back, though desktop.reset_command ended well: ~/{self._marker.mark}, which was "
                "written after the last time, is still there"
            )
        self._marker.mark = mark

    async def wait_ready(self) -> None:
        """Wait until the machine shows a screen. Raises `InfrastructureError` after `ready_s`."""
        await self._until_ready(lambda: self._picture(1))

    async def _until_ready(self, look: Callable[[], Awaitable[object]]) -> None:
        said = "no answer"
        try:
            async with pausable_timeout.pausable_timeout(self._ready_s):
                while True:
                    try:
                        await look()
                        return
                    except InfrastructureError as error:
                        said = str(error)
                    await asyncio.sleep(min(2.0, self.client.timeouts.pause_s * 5))
        except TimeoutError:
            raise InfrastructureError(f"{self.client.base_url}: not ready within {self._ready_s:g} s: {said}") from None

    async def perform(self, ops: list[Op], *, action_id: str) -> Frame:
        """See `Desktop.perform`. One action at a time: the same one that is sent again while it goes on waits for its end."""
        self._check_open()
        if self._size is None:
            raise InfrastructureError(f"{self.client.base_url}: reset it first")
        size = self._size
        body = guest_scripts.action_script(ops, *size, self.system)
        longest_s = 10.0 + sum(_longest_s(op) for op in ops)
        if longest_s > self.client.timeouts.op_s:
            raise AgentError(
                f"these actions may take {longest_s:.0f} s; the most for one step is {self.client.timeouts.op_s:g} s"
            )
        async with self._acting:
            if earlier := self._done.get(action_id):
                return earlier
            self._done.begin(action_id)
            try:
                await self._act(body, longest_s)
            except DeliveryUnknown:
                raise
            except InfrastructureError:
                self._done.forget(action_id)
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
                    f"{self.client.base_url}: the action was performed, and its screen cannot be had: {error}"
                ) from error
            await asyncio.to_thread(self._done.finish, action_id, frame)
            return frame

    async def _act(self, body: str, longest_s: float) -> None:
        await self._marked(body, longest_s)

    async def _marked(self, body: str, longest_s: float) -> str:
        """Run a body once, whatever becomes of replies; what it said. Raises `DeliveryUnknown` and `InfrastructureError`."""
        self._check_open()
        self._untouched = None
        name, old = secrets.token_hex(12), list(self._forget)
        code = guest_scripts.with_marker(body, name, wait_s=longest_s, old=old)
        try:
            said = await self._server.execute(["python", "-c", code], may_take_s=2 * longest_s + 5.0, repeatable=True)
        except ServerError as error:
            raise DeliveryUnknown(str(error)) from error
        self._forget = [*(each for each in self._forget if each not in old), name]
        end = str(said.get("output", "")).strip().rpartition("deskhand ")[2]
        if said.get("returncode") != 0 or not end:
            raise DeliveryUnknown(
                f"{self.client.base_url}: the guest's Python failed: {str(said.get('error', ''))[-300:]}"
            )
        return parse_run_result(end, self.client.base_url)

    async def observe(self) -> Frame:
        self._check_open()
        bgrx = await self._picture(self._polling.tries)
        return await asyncio.to_thread(self._decoder.frame, bgrx, self._cursor, 0.0, "none")

    async def _settled(self) -> Frame:
        began, before, reason = time.monotonic(), None, "none"
        looks = max(1, self._polling.looks)
        await asyncio.sleep(self._polling.pause_s)
        bgrx = await self._picture(self._polling.tries)
        while looks > 1:
            if time.monotonic() - began > self._polling.cap_s:
                reason = "cap"
                break
            before = bgrx
            await asyncio.sleep(self._polling.pause_s)
            bgrx = await self._picture(self._polling.tries)
            if (bgrx == before).all():
                reason = "quiet"
                break
        return await asyncio.to_thread(self._decoder.frame, bgrx, self._cursor, (time.monotonic() - began) * 1000, reason)

    async def _picture(self, tries: int):
        """The pixels of the screen; a picture that is not whole is asked for again."""
        for attempt in range(tries):
            data = await self._server.screenshot()
            try:
                return await asyncio.to_thread(
                    screenshots.decode_screenshot, data, self._size, f"{self.client.base_url}/screenshot"
                )
            except FrameError:
                if attempt == tries - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def run(
        self, argv: list[str], *, timeout_s: float = 30.0, env: dict[str, str] | None = None, cwd: str | None = None
    ) -> CommandResult:
        """See `Desktop.run`; once, like an action. The server ends what takes longer than two minutes."""
        longest_s = min(timeout_s, self.client.timeouts.op_s - 10.0)
        return to_command_result(
            await self._marked(guest_scripts.run_script(argv, longest_s, env, cwd), longest_s + 3.0), self.client.base_url
        )

    async def shell(self, command: str, *, timeout_s: float = 30.0) -> CommandResult:
        """As `run`, of a line for the machine's own shell."""
        longest_s = min(timeout_s, self.client.timeouts.op_s - 10.0)
        body = guest_scripts.run_script([command], longest_s, None, None, shell=True)
        return to_command_result(await self._marked(body, longest_s + 3.0), self.client.base_url)

    async def launch(self, argv: list[str], *, env: dict[str, str] | None = None, cwd: str | None = None) -> int:
        return int(await self._marked(guest_scripts.launch_script(argv, env, cwd), 10.0))

    async def pull(self, path: str) -> bytes:
        self._check_open()
        return await self._server.file(self._home(path))

    async def push(self, path: str, data: bytes) -> None:
        self._check_open()
        self._untouched = None
        await self._server.upload(self._home(path), data)

    def _home(self, path: str) -> str:
        return path if path.startswith(("/", "~")) else f"~/{path}"

    async def listdir(self, path: str) -> list[str]:
        body = f"import json\n_said = json.dumps(sorted(os.listdir(os.path.expanduser({self._home(path)!r}))))"
        try:
            return json.loads(await self._marked(body, 10.0))
        except ProgramFailed as error:
            raise FileNotFoundError(2, "no such folder", path) from error

    async def accessibility_tree(self) -> str | None:
        self._check_open()
        return await self._server.accessibility()

    async def windows(self) -> list[Window]:
        done = await self.run(["wmctrl", "-lGx"], timeout_s=10)
        if done.returncode != 0:
            raise InfrastructureError(
                f"{self.client.base_url}: wmctrl failed: {done.stderr.decode(errors='replace')[:200]}"
            )
        return wmctrl.windows(done.stdout.decode(errors="replace"))

    async def wait_window(self, match: str, *, timeout_s: float = 20.0, count: int = 1) -> list[Window]:
        deadline = time.monotonic() + timeout_s
        while True:
            found = [each for each in await self.windows() if match.lower() in f"{each.wm_class}\n{each.title}".lower()]
            if len(found) >= count:
                return found
            if time.monotonic() > deadline:
                raise InfrastructureError(f"{self.client.base_url}: no window '{match}' within {timeout_s:g} s")
            await asyncio.sleep(0.25)

    async def place_window(
        self, window: Window, x: int, y: int, width: int | None = None, height: int | None = None
    ) -> Window:
        place = f"0,{x},{y},{width if width is not None else -1},{height if height is not None else -1}"
        await self.run(
            ["wmctrl", "-i", "-r", hex(window.id), "-b", "remove,maximized_vert,maximized_horz"], timeout_s=10
        )
        await self.run(["wmctrl", "-i", "-r", hex(window.id), "-e", place], timeout_s=10)
        return next((each for each in await self.windows() if each.id == window.id), window)

    async def activate_window(self, window: Window) -> None:
        await self.run(["wmctrl", "-i", "-a", hex(window.id)], timeout_s=10)

    async def close_window(self, window: Window) -> None:
        await self.run(["wmctrl", "-i", "-c", hex(window.id)], timeout_s=10)

    async def clipboard(self, selection: str = "CLIPBOARD") -> str | None:
        done = await self.run(["xclip", "-o", "-selection", selection.lower()], timeout_s=10)
        return done.stdout.decode(errors="replace") if done.returncode == 0 else None

    async def close(self) -> None:
        """Idempotent. The machine stays as it is."""
        self._closed = True
        await self.client.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InfrastructureError(f"the desktop at {self.client.base_url} is closed")


class ProgramFailed(InfrastructureError):
    """A program of the guest's Python raised before it had performed anything."""


def parse_run_result(end: str, about: str) -> str:
    """What a marked program said at its end. Raises `ProgramFailed` when nothing was performed, else `DeliveryUnknown`."""
    word, _, rest = end.partition(" ")
    if word == "done":
        return rest
    if word == "failed":
        number, _, said = rest.partition(" ")
        done = int(number) if number.isdecimal() else 1
        if done == 0:
            raise ProgramFailed(f"{about}: the guest's Python raised: {said[:300]}")
        raise DeliveryUnknown(f"{about}: the guest's Python raised after {done} inputs were sent: {said[:300]}")
    raise DeliveryUnknown(f"{about}: a program was begun and nobody knows its end")


def to_command_result(said: str, about: str) -> CommandResult:
    """The result of `guest_code.running`."""
    try:
        code, out, err = json.loads(said)
        return CommandResult(int(code), base64.b64decode(out), base64.b64decode(err))
    except (ValueError, TypeError):
        raise InfrastructureError(f"{about}: the guest's Python gave no result") from None


def _longest_s(op: Op) -> float:
    return guest_scripts.longest_s(op) + (op.seconds if isinstance(op, Wait) else 0.0)
