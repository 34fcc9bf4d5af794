"""Carrying out a task's set-up steps. Invariant: a step does what OSWorld's own set-up controller does, in the same order; what
could not be set up is an `InfrastructureError`, so that no agent is judged on a desktop that was never staged.

Two things are waited for that OSWorld sleeps for: that a program which was told to end has ended, and that the window of an
application which was launched is there.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Sequence
from typing import Any

from deskhand.errors import InfrastructureError
from deskhand.osworld import chrome_devtools
from deskhand.osworld.home_setup import prepare_home
from deskhand.osworld.local_client import LocalOsworldClient, message_of
from deskhand.tasks.formats import osworld_setup_steps
from deskhand.tasks.formats.file_cache import FileCache
from deskhand.tasks.formats.osworld_setup_steps import Step
from deskhand.tasks.formats.requirements import program_of

WINDOW_S = 90.0
"""How long an application may take to show its window."""
OPEN_S = 120.0
END_S = 5.0
_FAILURES = 5
_BETWEEN_TRIES_S = 0.3
_WINDOWS = {
    "google-chrome": "chrom",
    "chromium": "chrom",
    "gimp": "gnu image manipulation program",
    "vlc": "vlc",
    "libreoffice": "libreoffice",
    "soffice": "libreoffice",
    "thunderbird": "thunderbird",
    "nautilus": "nautilus",
    "gnome-terminal": "terminal",
}
"""By a program, what its windows have in their class or title."""
_FORWARDERS = ("socat",)
"""Programs that only carry Chrome's port to a host that reads it there; we read it inside the guest."""


class _Refused(InfrastructureError):
    """The guest answered, and would not."""


class SetupRunner:
    """One desktop on which one task is set up, played and judged."""

    kept = False
    """Whether it is an end state of earlier, with no living programs."""

    def __init__(self, wire: LocalOsworldClient, cache: FileCache | None = None, *, password: str = "password") -> None:
        self.wire = wire
        self.cache = cache or FileCache()
        self.outputs: dict[str, bytes] = {}
        """What steps wrote, by the name that the step gave it."""
        self._password = password
        self.refused: list[str] = []
        """Steps before judging that the guest refused, for instance because the agent removed what they open."""
        self._expected: list[str] = []
        self._prepared = False

    async def prepare(self) -> None:
        """Make a home of ours OSWorld's, once."""
        if self.wire.ours and not self._prepared:
            await prepare_home(self.wire.guest)
            self._prepared = True

    async def set_up(self, config: Sequence[Step], *, judging: bool = False) -> None:
        """All steps in order, and then until the launched applications show their windows. Raises `InfrastructureError`.

        With `judging` the agent has had the desktop: what the guest refuses then is kept in `refused`, and the steps go on.
        """
        await self.prepare()
        for index, step in enumerate(config):
            try:
                await self._carry_out(step)
            except _Refused as error:
                if not judging:
                    raise InfrastructureError(
                        f"set-up step {index + 1} of {len(config)} ({step.type}): {error}"
                    ) from error
                self.refused.append(f"{step.type}: {error}")
            except InfrastructureError as error:
                raise InfrastructureError(f"set-up step {index + 1} of {len(config)} ({step.type}): {error}") from error
        for window in dict.fromkeys(self._expected):
            await self.wire.desktop.wait_window(window, timeout_s=WINDOW_S)
        self._expected.clear()

    async def _carry_out(self, step: Step) -> None:
        match step:
            case osworld_setup_steps.DownloadStep(parameters=given):
                for file in given.files:
                    await self._upload(file.path, await asyncio.to_thread(self.cache.read, file.url))
            case osworld_setup_steps.UploadStep(parameters=given):
                for file in given.files:
                    await self._upload(file.path, await asyncio.to_thread(self.cache.upload, file.local_path))
            case osworld_setup_steps.CommandStep(type="launch", parameters=given):
                await self._launch(given)
            case osworld_setup_steps.CommandStep(parameters=given):
                await self._execute(given)
            case osworld_setup_steps.VerifiedStep(parameters=given):
                await self._verify(given)
            case osworld_setup_steps.PathStep(type="open", parameters=given):
                await self._demand("/setup/open_file", {"path": given.path}, OPEN_S)
            case osworld_setup_steps.PathStep(type="change_wallpaper", parameters=given):
                await self._demand("/setup/change_wallpaper", {"path": given.path})
            case osworld_setup_steps.SleepStep(parameters=given):
                await asyncio.sleep(given.seconds)
            case osworld_setup_steps.WindowStep(parameters=given):
                body = {
                    "window_name": given.window_name,
                    "strict": bool(given.strict),
                    "by_class": bool(given.by_class),
                }
                await self._windows_are_up()
                await self.wire.ask("POST", f"/setup/{step.type}", json=body)
            case osworld_setup_steps.OpenTabsStep(parameters=given):
                await self._windows_are_up()
                await chrome_devtools.open_tabs(self.wire.guest, given.urls_to_open)
            case osworld_setup_steps.CloseTabsStep(parameters=given):
                await chrome_devtools.close_tabs(self.wire.guest, given.urls_to_close)
            case _:
                raise InfrastructureError(
                    f"this step cannot be carried out here: {unavailable(step) or 'it is of no known kind'}"
                )

    async def _windows_are_up(self) -> None:
        while self._expected:
            await self.wire.desktop.wait_window(self._expected.pop(), timeout_s=WINDOW_S)

    async def _upload(self, path: str, data: bytes) -> None:
        files = {"file_data": (posixpath.basename(path), data)}
        reply = await self.wire.ask("POST", "/setup/upload", data={"file_path": path}, files=files)
        if reply.status_code != 200:
            raise _Refused(f"{path} could not be written: {message_of(reply)}")

    async def _demand(self, path: str, body: dict[str, Any], timeout_s: float = 180.0) -> None:
        reply = await self.wire.ask("POST", path, json=body, timeout_s=timeout_s)
        if reply.status_code != 200:
            raise _Refused(message_of(reply))

    async def _launch(self, given: osworld_setup_steps.Command) -> None:
        command: Any = given.command
        if isinstance(command, str) and not given.shell:
            command = command.split()
        program = program_of(command)
        if program in _FORWARDERS and not await self.wire.guest.finds(program):
            return
        await self._demand("/setup/launch", {"command": command, "shell": bool(given.shell)})
        if program == "pkill":
            await self._until_ended(command)
        elif window := _WINDOWS.get(program):
            document = window == "libreoffice" and len(command.split() if isinstance(command, str) else command) > 1
            self._expected.append("- libreoffice" if document else window)  # the picture at its start has the bare name

    async def _until_ended(self, command: list[str] | str) -> None:
        words = command.split() if isinstance(command, str) else command
        patterns = [word for word in words[1:] if not word.startswith("-")]
        if patterns:
            wait = f'for i in $(seq {int(END_S / 0.05)}); do pgrep -- "$1" >/dev/null || exit 0; sleep 0.05; done'
            await self.wire.desktop.run(["/bin/sh", "-c", wait, "sh", patterns[-1]], timeout_s=END_S + 10)

    async def _execute(self, given: osworld_setup_steps.Command) -> None:
        body = {"command": self._filled(given.command), "shell": bool(given.shell)}
        until = given.until.model_dump(exclude_unset=True) if given.until is not None else {}
        failures = 0
        while True:
            reply = await self.wire.ask("POST", "/setup/execute", json=body)
            said: dict[str, Any] | None = reply.json() if reply.status_code == 200 else None
            if said is None:
                failures += 1
            else:
                self._keep(given.stdout, said["output"])
                self._keep(given.stderr, said["error"])
            if not until or failures >= _FAILURES or (said is not None and _seen(until, said)):
                return
            await asyncio.sleep(_BETWEEN_TRIES_S)

    def _keep(self, name: str | None, text: str) -> None:
        if name:
            self.outputs[name] = text.encode()

    async def _verify(self, given: osworld_setup_steps.VerifiedCommand) -> None:
        most_s = given.max_wait_time if given.max_wait_time is not None else 10
        body = {
            "command": given.command,
            "shell": bool(given.shell),
            "verification": given.verification.model_dump(exclude_unset=True) if given.verification is not None else {},
            "max_wait_time": most_s,
            "check_interval": given.check_interval if given.check_interval is not None else 1.0,
        }
        await self._demand("/setup/execute_with_verification", body, most_s + 130)

    def _filled(self, command: str | list[str]) -> str | list[str]:
        """The command with the size of the screen and the guest's password in their places."""
        width, height = self.wire.size
        values = {
            "{CLIENT_PASSWORD}": self._password,
            "{SCREEN_WIDTH_HALF}": str(width // 2),
            "{SCREEN_HEIGHT_HALF}": str(height // 2),
            "{SCREEN_WIDTH}": str(width),
            "{SCREEN_HEIGHT}": str(height),
        }

        def prefetch(text: str) -> str:
            for mark, value in values.items():
                text = text.replace(mark, value)
            return text

        return prefetch(command) if isinstance(command, str) else [prefetch(word) for word in command]


def unavailable(step: Step) -> str | None:
    """Why a step cannot be carried out on any desktop of ours, or None."""
    if isinstance(step, osworld_setup_steps.DriveStep | osworld_setup_steps.LoginStep):
        return "it needs an account in the web"
    if isinstance(step, osworld_setup_steps.ProxyStep):
        return "it installs a proxy"
    if isinstance(step, osworld_setup_steps.HistoryStep):
        return "it starts from a browser's history that must be downloaded"
    if isinstance(step, osworld_setup_steps.BareStep | osworld_setup_steps.CreateFileStep) or (
        isinstance(step, osworld_setup_steps.PathStep) and step.type not in ("open", "change_wallpaper")
    ):
        return "it is a step of Windows Agent Arena"
    return f"step {step.type!r} is not known" if isinstance(step, osworld_setup_steps.OtherStep) else None


def _seen(until: dict[str, Any], said: dict[str, Any]) -> bool:
    return (
        ("returncode" in until and said["returncode"] == until["returncode"])
        or ("stdout" in until and until["stdout"] in said["output"])
        or ("stderr" in until and until["stderr"] in said["error"])
    )
