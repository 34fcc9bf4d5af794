"""A Windows machine of Windows Agent Arena, as a desktop. Invariant: as of `osworld`: once or not at all; and a machine is handed
out only when its reset was seen to have worked.

Actions go to `/execute_windows`, which answers nothing but a status; everything that is asked goes to `/execute`. Text goes in as
Unicode. The machine is brought back by `revert` (`remote.qemu.QemuMonitor.reset`, a provider's snapshot); without it by closing all
windows and emptying the folders of tasks. After that no window, and in any case no file in those folders, may be there that was not
there the first time. A monitor only starts the machine anew, so that the folders are emptied then, too.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import structlog

from deskhand.desktop.base import DesktopSpec, Frame, Window
from deskhand.desktop.remote import guest_scripts
from deskhand.desktop.remote.baselines import BaselineStore
from deskhand.desktop.remote.osworld_desktop import (
    READY_S,
    OsworldDesktop,
    ProgramFailed,
    ResetHook,
    ScreenPolling,
    parse_run_result,
)
from deskhand.desktop.remote.osworld_server import ServerError
from deskhand.desktop.remote.retrying_client import RetryingClient
from deskhand.desktop.remote.waa_server import WaaServer
from deskhand.errors import DeliveryUnknown, InfrastructureError

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
_ONE = "import pygetwindow\n_window = next(each for each in pygetwindow.getAllWindows() if each._hWnd == {id!r})\n"
_TO_CENTRE = """\
import pyautogui
pyautogui.FAILSAFE = False
pyautogui.moveTo(*[each // 2 for each in pyautogui.size()])"""
MAX_RESET_ATTEMPTS = 3


@dataclass(frozen=True)
class AccessibilityOptions:
    """Whether the UI Automation tree is read ("uia", "win32" or "off"), for how long at most, and how large it may be.

    A tree that is late or too large is none: nothing waits for it and no episode ends by it.
    """

    backend: Literal["off", "uia", "win32"] = "off"
    longest_s: float = 10.0
    most_bytes: int = 4 << 20


class WaaDesktop(OsworldDesktop):
    """Fulfils `StagedDesktop` on the machine at `client`. `reboots`: `revert` starts the machine anew and leaves its disk as it is.
    `baselines` is shared by all that use the machine after one another."""

    system: guest_scripts.System = "windows"

    def __init__(
        self,
        client: RetryingClient,
        *,
        revert: ResetHook | None = None,
        tree: AccessibilityOptions | None = None,
        polling: ScreenPolling | None = None,
        ready_s: float = READY_S,
        reboots: bool = False,
        baselines: BaselineStore | None = None,
    ) -> None:
        super().__init__(client, revert=revert, skip_reset=True, polling=polling, ready_s=ready_s)
        self._server: WaaServer = WaaServer(client)
        self._tree = tree or AccessibilityOptions()
        self._reboots = reboots
        self._baselines = baselines or BaselineStore()
        self._known_as = client.base_url

    @property
    def server(self) -> WaaServer:
        """Its endpoints; who takes them may change anything."""
        self._untouched = None
        return self._server

    async def reset(self, template: DesktopSpec) -> Frame:
        """Raises `InfrastructureError` for a machine that does not come back clean."""
        if self._untouched is None or self._untouched[0] != template:
            await self._reach()
        return await super().reset(template)

    async def _check_it_came_back(self) -> None:
        if self._revert is None:
            await self._clean("windows", "files", by=(self._server.close_all, self._server.clear_task_files))
        else:  # what opens its window when Windows starts does so sooner or later
            await self._clean("files", by=(self._server.clear_task_files,) if self._reboots else ())

    async def _reach(self) -> None:
        """A server that is stuck is brought back by `revert`, which `reset` calls in any case."""
        try:
            async with asyncio.timeout(min(self._ready_s, 4 * self.client.timeouts.read_s)):
                await self._server.probe()
        except (InfrastructureError, TimeoutError) as error:
            if self._revert is None:
                raise InfrastructureError(
                    f"{self.client.base_url}/probe: no answer, and nothing resets the machine: {error}"
                ) from error
            log.warning("waa.stuck", machine=self.client.base_url, error=str(error))

    async def wait_ready(self) -> None:
        """Wait for `/probe`, then for a screen."""
        await self._until_ready(self._server.probe)
        await super().wait_ready()

    async def _clean(self, *kinds: str, by: Sequence[Callable[[], Awaitable[None]]]) -> None:
        first = self._baselines.get(self._known_as)
        left: dict[str, list[str]] = {}
        for times in range(1, MAX_RESET_ATTEMPTS + 1):
            worked = True
            for clean in by:
                try:
                    await clean()
                except InfrastructureError as error:  # what it closes may be what runs it
                    log.warning("waa.cleaning_failed", machine=self.client.base_url, error=str(error))
                    worked = False
                    await self.wait_ready()
            now = await self._state()
            if first is not None:
                left = {kind: sorted(set(now[kind]) - set(first.get(kind, ()))) for kind in kinds}
                if not any(left.values()):
                    return
            elif worked or times == MAX_RESET_ATTEMPTS:
                await asyncio.to_thread(self._baselines.save, self._known_as, now)
                return
        said = "; ".join(f"{kind}: {', '.join(names[:3])}" for kind, names in left.items() if names)
        mend = f"; if it belongs there, remove {self._baselines.file}" if self._baselines.file is not None else ""
        raise InfrastructureError(
            f"{self.client.base_url}: after {MAX_RESET_ATTEMPTS} resets there is still what was not there at first: {said}{mend}"
        )

    async def _state(self) -> dict[str, list[str]]:
        return json.loads(await self._marked(_STATE, 15.0))

    async def _act(self, body: str, longest_s: float) -> None:
        try:
            await self._windows(body, longest_s)
        except ProgramFailed as error:
            if _FAIL_SAFE not in str(error):
                raise
            log.warning("waa.fail_safe", machine=self.client.base_url)
            await self._marked(_TO_CENTRE, 10.0)  # nothing was performed: the pointer stood in a corner
            await self._windows(body, longest_s)

    async def _windows(self, body: str, longest_s: float) -> None:
        self._untouched = None
        name, old = secrets.token_hex(12), list(self._forget)
        code = guest_scripts.with_marker(body, name, wait_s=longest_s, old=old, raises=True)
        try:
            await self._server.execute_windows(code, may_take_s=2 * longest_s + 5.0, repeatable=True)
        except ServerError as error:
            end = error.said.rpartition("deskhand ")[2] if "deskhand " in error.said else ""
            if not end:
                raise DeliveryUnknown(str(error)) from error
            parse_run_result(end, self.client.base_url)
        self._forget = [*(each for each in self._forget if each not in old), name]

    def _home(self, path: str) -> str:
        return path if path[1:2] == ":" or path.startswith(("\\", "/", "~")) else f"~/{path}"

    async def accessibility_tree(self) -> str | None:
        self._check_open()
        if self._tree.backend == "off":
            return None
        try:
            async with asyncio.timeout(self._tree.longest_s):
                found = await self._server.accessibility(backend=self._tree.backend, may_take_s=self._tree.longest_s)
        except (InfrastructureError, TimeoutError) as error:
            log.warning("waa.no_tree", machine=self.client.base_url, error=f"{type(error).__name__} {error}")
            return None
        if found is not None and len(found) > self._tree.most_bytes:
            log.warning("waa.tree_too_large", machine=self.client.base_url, characters=len(found))
            return None
        return found

    async def windows(self) -> list[Window]:
        rows = json.loads(await self._marked(_WINDOWS, 10.0))
        return [Window(number, title, "", x, y, width, height) for number, title, x, y, width, height in rows]

    async def place_window(
        self, window: Window, x: int, y: int, width: int | None = None, height: int | None = None
    ) -> Window:
        resize = f"\n_window.resizeTo({width}, {height})" if width is not None and height is not None else ""
        await self._marked(_ONE.format(id=window.id) + f"_window.restore()\n_window.moveTo({x}, {y}){resize}", 10.0)
        return next((each for each in await self.windows() if each.id == window.id), window)

    async def activate_window(self, window: Window) -> None:
        await self._marked(_ONE.format(id=window.id) + "_window.activate()", 10.0)

    async def close_window(self, window: Window) -> None:
        await self._marked(_ONE.format(id=window.id) + "_window.close()", 10.0)

    async def clipboard(self, selection: str = "CLIPBOARD") -> str | None:
        if selection != "CLIPBOARD":
            return None
        return (
            json.loads(await self._marked("import json, pyperclip\n_said = json.dumps(pyperclip.paste())", 10.0))
            or None
        )
