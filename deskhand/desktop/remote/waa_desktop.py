"""Desktop of a Windows Agent Arena machine.

Actions are sent to `/execute_windows`, which replies with a status only; queries go to `/execute`. The machine is
reset by `reset_hook` (a QEMU reset or a snapshot); without one, by closing all windows and emptying the task
directories. After that, no file in those directories (and without a hook, no window) may exist beyond the baseline. A
QEMU reset only reboots, so the directories are emptied then, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

import structlog
from pydantic import TypeAdapter

from deskhand.desktop.base import DesktopSpec, Frame, Window
from deskhand.desktop.remote import guest_scripts
from deskhand.desktop.remote.osworld_desktop import READY_S, OsworldDesktop, ProgramFailed, ResetHook
from deskhand.desktop.remote.osworld_server import ServerError
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.desktop.remote.screenshots import ScreenPolling
from deskhand.desktop.remote.waa_server import EVALUATOR_PORT, WaaServer
from deskhand.errors import ConfigError, DeliveryUnknown, InfrastructureError

log = structlog.get_logger()
_FAIL_SAFE = "FailSafe"
_STATE = """\
import json, pygetwindow
_titles = sorted(each.title for each in pygetwindow.getAllWindows() if each.title and each.visible)
_folders = [os.path.join(os.path.expanduser('~'), each) for each in ('Downloads', 'Desktop', 'Documents')]
_files = sorted(os.path.join(each, name) for each in _folders if os.path.isdir(each) for name in os.listdir(each))
_said = json.dumps({'windows': _titles, 'files': _files})"""
_WINDOWS = """\
import json, pygetwindow
_said = json.dumps([[each._hWnd, each.title, each.left, each.top, each.width, each.height]
    for each in pygetwindow.getAllWindows() if each.title and each.visible])"""
_ONE = """\
import pygetwindow
_window = next(each for each in pygetwindow.getAllWindows() if each._hWnd == {id!r})
_done = 1
"""
_CENTER_POINTER = """\
import pyautogui
pyautogui.FAILSAFE = False
pyautogui.moveTo(*[each // 2 for each in pyautogui.size()])"""
MAX_RESET_ATTEMPTS = 3
BASELINES_FILE = "machine_baselines.json"
"""File in a run directory."""
State = dict[str, list[str]]
"""Window titles and file paths of a machine, by kind."""
_STATES = TypeAdapter(dict[str, State])


class BaselineStore:
    """State of each machine when it was first seen clean, by URL, across processes if there is a `file`.

    Raises `ConfigError` if the file is damaged.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self._states: dict[str, State] = {}
        self._lock = threading.Lock()
        if file is not None and file.exists():
            try:
                self._states = _STATES.validate_json(file.read_bytes())
            except (OSError, ValueError):
                raise ConfigError(f"{file}: damaged; remove it to record the machines again") from None

    def get(self, address: str) -> State | None:
        return self._states.get(address)

    def save(self, address: str, state: State) -> None:
        """Blocks for a small file write. Safe to call from several threads: each machine is reset in its own."""
        with self._lock:
            self._states[address] = state
            if self.file is not None:
                partial = self.file.with_suffix(f".{os.getpid()}.partial")
                partial.write_text(json.dumps(self._states, indent=1), encoding="utf-8")
                partial.replace(self.file)


@dataclass(frozen=True)
class AccessibilityOptions:
    """Backend, timeout and size limit of the UI Automation tree. A late or oversized tree counts as none."""

    backend: Literal["off", "uia", "win32"] = "off"
    timeout_s: float = 10.0
    max_bytes: int = 4 << 20


class WaaDesktop(OsworldDesktop):
    """Implements `StageableDesktop` for the WAA machine behind `client`.

    `hook_reboots`: the reset hook reboots the machine and keeps its disk. `baselines` is shared by all users of the
    machine. `evaluator_port` is the port of the evaluate server on the machine's host.
    """

    system: guest_scripts.System = "windows"

    def __init__(
        self,
        client: RetryingClient,
        *,
        reset_hook: ResetHook | None = None,
        tree: AccessibilityOptions | None = None,
        polling: ScreenPolling | None = None,
        ready_s: float = READY_S,
        hook_reboots: bool = False,
        baselines: BaselineStore | None = None,
        evaluator_port: int = EVALUATOR_PORT,
    ) -> None:
        super().__init__(client, reset_hook=reset_hook, skip_reset=True, polling=polling, ready_s=ready_s)
        self._evaluator_port = evaluator_port
        self._server: WaaServer = WaaServer(client)
        self._tree = tree or AccessibilityOptions()
        self._hook_reboots = hook_reboots
        self._baselines = baselines or BaselineStore()
        self._baseline_key = client.base_url

    @property
    def server(self) -> WaaServer:
        """The server's endpoints. The caller may change anything, so the next `reset` is a full one."""
        self._pristine = None
        return self._server

    async def reset(self, spec: DesktopSpec) -> Frame:
        """Raises `InfrastructureError` if the machine cannot be cleaned."""
        if self._pristine is None or self._pristine[0] != spec:
            await self._check_reachable()
        return await super().reset(spec)

    def open_evaluator(self, port: int | None = None) -> RetryingClient:
        """See `HasTaskEvaluator`: the server on the machine's host."""
        parts = urlsplit(self.client.base_url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        url = urlunsplit((parts.scheme, f"{host}:{port or self._evaluator_port}", "", "", ""))
        return RetryingClient(url, timeouts=self.client.timeouts, wait_for_quota=False)

    async def _check_reset(self) -> None:
        if self._reset_hook is None:
            await self._clean("windows", "files", steps=(self._server.close_all, self._server.clear_task_files))
        else:  # windows are not compared: autostart programs open theirs at varying times
            await self._clean("files", steps=(self._server.clear_task_files,) if self._hook_reboots else ())

    async def _check_reachable(self) -> None:
        """A hanging server is tolerated if `reset` restarts the machine anyway."""
        try:
            async with asyncio.timeout(min(self._ready_s, 4 * self.client.timeouts.read_s)):
                await self._server.probe()
        except (InfrastructureError, TimeoutError) as error:
            if self._reset_hook is None:
                raise InfrastructureError(
                    f"{self.label}/probe: no reply, and no way to reset the machine: {error}"
                ) from error
            log.warning("waa.unresponsive", machine=self.label, error=str(error))

    async def wait_ready(self) -> None:
        """Wait for `/probe`, then for a screen."""
        await self._until_ready(self._server.probe)
        await super().wait_ready()

    async def _clean(self, *kinds: str, steps: Sequence[Callable[[], Awaitable[None]]]) -> None:
        baseline = self._baselines.get(self._baseline_key)
        left: dict[str, list[str]] = {}
        for attempt in range(1, MAX_RESET_ATTEMPTS + 1):
            succeeded = True
            for clean in steps:
                try:
                    await clean()
                except InfrastructureError as error:  # it may have closed the server itself
                    log.warning("waa.cleanup_failed", machine=self.label, error=str(error))
                    succeeded = False
                    await self.wait_ready()
            now = await self._state()
            if baseline is not None:
                left = {kind: sorted(set(now[kind]) - set(baseline.get(kind, ()))) for kind in kinds}
                if not any(left.values()):
                    return
            elif succeeded or attempt == MAX_RESET_ATTEMPTS:
                await asyncio.to_thread(self._baselines.save, self._baseline_key, now)
                return
        extra = "; ".join(f"{kind}: {', '.join(names[:3])}" for kind, names in left.items() if names)
        file = self._baselines.file
        hint = f"; if these belong to the machine, remove {file}" if file is not None else ""
        raise InfrastructureError(
            f"{self.label}: extra windows or files remain after {MAX_RESET_ATTEMPTS} resets: {extra}{hint}"
        )

    async def _state(self) -> dict[str, list[str]]:
        return await self._run_for(State, _STATE, 15.0)

    async def _act(self, body: str, max_duration_s: float) -> None:
        try:
            await self._execute_windows(body, max_duration_s)
        except ProgramFailed as error:
            if _FAIL_SAFE not in str(error):
                raise
            log.warning("waa.fail_safe_triggered", machine=self.label)
            await self._run_marked(_CENTER_POINTER, 10.0)  # not performed: the pointer was in a corner
            await self._execute_windows(body, max_duration_s)

    async def _execute_windows(self, body: str, timeout_s: float) -> None:
        self._pristine = None
        name, old = secrets.token_hex(12), list(self._old_markers)
        code = guest_scripts.with_marker(body, name, wait_s=timeout_s, old=old, raises=True)
        try:
            await self._server.execute_windows(code, may_take_s=2 * timeout_s + 5.0, repeatable=True)
        except ServerError as error:
            result = error.server_message.rpartition("deskhand ")[2] if "deskhand " in error.server_message else ""
            if not result:
                raise DeliveryUnknown(str(error)) from error
            self._parse_result(result)
        self._old_markers = [*(each for each in self._old_markers if each not in old), name]

    def _home(self, path: str) -> str:
        return path if path[1:2] == ":" or path.startswith(("\\", "/", "~")) else f"~/{path}"

    async def accessibility_tree(self) -> str | None:
        self._check_open()
        if self._tree.backend == "off":
            return None
        try:
            async with asyncio.timeout(self._tree.timeout_s):
                found = await self._server.accessibility(backend=self._tree.backend, may_take_s=self._tree.timeout_s)
        except (InfrastructureError, TimeoutError) as error:
            log.warning("waa.a11y_unavailable", machine=self.label, error=f"{type(error).__name__} {error}")
            return None
        if found is not None and len(found) > self._tree.max_bytes:
            log.warning("waa.a11y_too_large", machine=self.label, characters=len(found))
            return None
        return found

    async def windows(self) -> list[Window]:
        rows = await self._run_for(list[tuple[int, str, int, int, int, int]], _WINDOWS, 10.0)
        return [Window(number, title, "", x, y, width, height) for number, title, x, y, width, height in rows]

    async def place_window(
        self, window: Window, x: int, y: int, width: int | None = None, height: int | None = None
    ) -> Window:
        resize = f"\n_window.resizeTo({width}, {height})" if width is not None and height is not None else ""
        await self._run_marked(_ONE.format(id=window.id) + f"_window.restore()\n_window.moveTo({x}, {y}){resize}", 10.0)
        return next((each for each in await self.windows() if each.id == window.id), window)

    async def activate_window(self, window: Window) -> None:
        await self._run_marked(_ONE.format(id=window.id) + "_window.activate()", 10.0)

    async def close_window(self, window: Window) -> None:
        await self._run_marked(_ONE.format(id=window.id) + "_window.close()", 10.0)

    async def clipboard(self, selection: str = "CLIPBOARD") -> str | None:
        if selection != "CLIPBOARD":
            return None
        body = "import json, pyperclip\n_said = json.dumps(pyperclip.paste())"
        return await self._run_for(str, body, 10.0) or None
