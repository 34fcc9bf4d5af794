"""Set-up steps of an OSWorld task: `SetupRunner`.

Steps match OSWorld's set-up controller, in the same order. Instead of OSWorld's sleeps, the runner waits for killed
programs to exit and for windows of launched applications to appear. A step that fails raises `InfrastructureError`, so
no agent is scored on an incomplete start state.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Sequence
from typing import Any

from deskhand.desktop.applications.browser import FLAGS
from deskhand.errors import InfrastructureError
from deskhand.osworld import chrome_devtools
from deskhand.osworld.clients import OsworldClient, message_of
from deskhand.server.guest import Guest
from deskhand.tasks.formats import osworld_setup_steps
from deskhand.tasks.formats.file_cache import FileCache
from deskhand.tasks.formats.osworld_setup_steps import Step
from deskhand.tasks.formats.shell_programs import program_of, programs_of

WINDOW_TIMEOUT_S = 90.0
"""Maximum wait for the window of an application."""
OPEN_TIMEOUT_S = 120.0
EXIT_TIMEOUT_S = 5.0
_MAX_FAILURES = 5
_RETRY_S = 0.3
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
"""Substring of a program's window class or title, by program."""
_LOCAL_WINDOWS = {"nautilus": "pcmanfm"}
"""The same on a local desktop, where another program runs under the name."""
_DETACHED = ("gnome-terminal",)
"""Programs that return at once and leave a window; what a step starts by them is launched, so that the limits of a
command that is waited for do not apply."""
_FORWARDERS = ("socat",)
"""Programs that only forward Chrome's port to the host; Deskhand reads it inside the guest."""

_CHROME = """\
#!/bin/sh
# Chromium by the name, with the profile and as the process that OSWorld's tasks know.
tools=$(dirname -- "$0")
real=/usr/lib/chromium/chromium
[ -x "$real" ] || real=$(command -v chromium) || {{ echo "chromium is not installed" >&2; exit 127; }}
[ -L "$tools/chrome" ] || ln -s "$real" "$tools/chrome"
exec "$tools/chrome" --user-data-dir="$HOME/.config/google-chrome" --start-maximized {flags} "$@"
"""
_PREPARE = """\
set -e
chmod 755 "$1/bin/google-chrome"
mkdir -p "$HOME/.config/google-chrome/Default"
cp -r "$HOME/.config/chromium/." "$HOME/.config/google-chrome/"
sed -i '/^HISTFILE=$/d' "$HOME/.bashrc"
rc="$HOME/.config/openbox/rc.xml"
sed -i 's#<keyboard>#<keyboard><keybind key="C-A-t"><action name="Execute"><command>xfce4-terminal --disable-server</command>\
</action></keybind>#' "$rc"
openbox --reconfigure
"""  # noqa: E501


class _Refused(InfrastructureError):
    """The guest rejected a step."""


class SetupRunner:
    """One desktop on which one task is set up, played and scored."""

    def __init__(self, client: OsworldClient, cache: FileCache | None = None, *, password: str = "password") -> None:
        self.client = client
        self.cache = cache or FileCache()
        self.outputs: dict[str, bytes] = {}
        """Output of steps, by the name that the step sets."""
        self._password = password
        self.refused: list[str] = []
        """Postconfig steps that the guest rejected, e.g. because the agent removed a file."""
        self._expected_windows: list[str] = []
        self._prepared = not client.is_local

    async def set_up(self, config: Sequence[Step], *, judging: bool = False) -> None:
        """Run all steps in order, then wait for the windows of launched applications. Raises `InfrastructureError`.

        With `judging` the agent has used the desktop: rejected steps are recorded in `refused` and skipped. In a saved
        end state the steps ran before it was saved.
        """
        if self.client.is_saved:
            return
        if not self._prepared:
            await _prepare_home(self.client.guest)
            self._prepared = True
        for index, step in enumerate(config):
            try:
                await self._run_step(step)
            except _Refused as error:
                if not judging:
                    raise InfrastructureError(
                        f"set-up step {index + 1} of {len(config)} ({step.type}): {error}"
                    ) from error
                self.refused.append(f"{step.type}: {error}")
            except InfrastructureError as error:
                raise InfrastructureError(f"set-up step {index + 1} of {len(config)} ({step.type}): {error}") from error
        await self._wait_expected_windows()

    async def _run_step(self, step: Step) -> None:
        match step:
            case osworld_setup_steps.DownloadStep(parameters=parameters):
                for file in parameters.files:
                    await self._upload(file.path, await asyncio.to_thread(self.cache.read, file.url))
            case osworld_setup_steps.UploadStep(parameters=parameters):
                for file in parameters.files:
                    await self._upload(file.path, await asyncio.to_thread(self.cache.upload, file.local_path))
            case osworld_setup_steps.CommandStep(type="launch", parameters=parameters):
                await self._launch(parameters)
            case osworld_setup_steps.CommandStep(parameters=parameters) if window := self._detached_window(parameters):
                command = self._fill_placeholders(parameters.command)
                await self._launch(parameters.model_copy(update={"command": command}))
                self._expected_windows.append(window)
            case osworld_setup_steps.CommandStep(parameters=parameters):
                await self._execute(parameters)
            case osworld_setup_steps.VerifiedStep(parameters=parameters):
                await self._verify(parameters)
            case osworld_setup_steps.PathStep(type="open", parameters=parameters):
                await self._post("/setup/open_file", {"path": parameters.path}, OPEN_TIMEOUT_S)
            case osworld_setup_steps.PathStep(type="change_wallpaper", parameters=parameters):
                await self._post("/setup/change_wallpaper", {"path": parameters.path})
            case osworld_setup_steps.SleepStep(parameters=parameters):
                await asyncio.sleep(parameters.seconds)
            case osworld_setup_steps.WindowStep(parameters=parameters):
                flags = {"strict": bool(parameters.strict), "by_class": bool(parameters.by_class)}
                body = {"window_name": parameters.window_name, **flags}
                await self._wait_expected_windows()
                await self.client.request("POST", f"/setup/{step.type}", json=body)
            case osworld_setup_steps.OpenTabsStep(parameters=parameters):
                await self._wait_expected_windows()
                await chrome_devtools.open_tabs(self.client.guest, parameters.urls_to_open)
            case osworld_setup_steps.CloseTabsStep(parameters=parameters):
                await chrome_devtools.close_tabs(self.client.guest, parameters.urls_to_close)
            case _:
                raise InfrastructureError(f"unsupported step: {unavailable(step) or 'unknown type'}")

    async def _wait_expected_windows(self) -> None:
        windows, self._expected_windows = dict.fromkeys(self._expected_windows), []
        for window in windows:
            await self.client.desktop.wait_window(window, timeout_s=WINDOW_TIMEOUT_S)

    async def _upload(self, path: str, data: bytes) -> None:
        files = {"file_data": (posixpath.basename(path), data)}
        reply = await self.client.request("POST", "/setup/upload", data={"file_path": path}, files=files)
        if reply.status_code != 200:
            raise _Refused(f"{path}: cannot be written: {message_of(reply)}")

    async def _post(self, path: str, body: dict[str, Any], timeout_s: float = 180.0) -> None:
        reply = await self.client.request("POST", path, json=body, timeout_s=timeout_s)
        if reply.status_code != 200:
            raise _Refused(message_of(reply))

    async def _launch(self, parameters: osworld_setup_steps.Command) -> None:
        command: Any = parameters.command
        if isinstance(command, str) and not parameters.shell:
            command = command.split()
        program = program_of(command)
        if program in _FORWARDERS and not await self.client.guest.has_program(program):
            return
        await self._post("/setup/launch", {"command": command, "shell": bool(parameters.shell)})
        if program == "pkill":
            await self._wait_ended(command)
        elif window := self._window_of(program):
            has_document = window == "libreoffice" and len(command.split() if isinstance(command, str) else command) > 1
            # The splash screen has the bare name.
            self._expected_windows.append("- libreoffice" if has_document else window)

    def _window_of(self, program: str) -> str | None:
        return (_LOCAL_WINDOWS if self.client.is_local else _WINDOWS).get(program) or _WINDOWS.get(program)

    def _detached_window(self, parameters: osworld_setup_steps.Command) -> str | None:
        """Return the window that a command on a local desktop leaves by a program of `_DETACHED`."""
        if not self.client.is_local:
            return None
        last = programs_of(parameters.command, shell=bool(parameters.shell))[-1:]
        return self._window_of(last[0]) if last and last[0] in _DETACHED else None

    async def _wait_ended(self, command: list[str] | str) -> None:
        argv = command.split() if isinstance(command, str) else command
        patterns = [argument for argument in argv[1:] if not argument.startswith("-")]
        if patterns:
            wait = (
                f'for i in $(seq {int(EXIT_TIMEOUT_S / 0.05)}); do pgrep -- "$1" >/dev/null || exit 0; sleep 0.05; done'
            )
            await self.client.desktop.run(["/bin/sh", "-c", wait, "sh", patterns[-1]], timeout_s=EXIT_TIMEOUT_S + 10)

    async def _execute(self, parameters: osworld_setup_steps.Command) -> None:
        body = {"command": self._fill_placeholders(parameters.command), "shell": bool(parameters.shell)}
        until = parameters.until.model_dump(exclude_unset=True) if parameters.until is not None else {}
        failures = 0
        while True:
            reply = await self.client.request("POST", "/setup/execute", json=body)
            output: dict[str, Any] | None = reply.json() if reply.status_code == 200 else None
            if output is None:
                failures += 1
            else:
                self._store_output(parameters.stdout, output["output"])
                self._store_output(parameters.stderr, output["error"])
            if not until or failures >= _MAX_FAILURES or (output is not None and _is_reached(until, output)):
                return
            await asyncio.sleep(_RETRY_S)

    def _store_output(self, name: str | None, text: str) -> None:
        if name:
            self.outputs[name] = text.encode()

    async def _verify(self, parameters: osworld_setup_steps.VerifiedCommand) -> None:
        max_wait_s = parameters.max_wait_time if parameters.max_wait_time is not None else 10
        verification = parameters.verification.model_dump(exclude_unset=True) if parameters.verification else {}
        body = {
            "command": parameters.command,
            "shell": bool(parameters.shell),
            "verification": verification,
            "max_wait_time": max_wait_s,
            "check_interval": parameters.check_interval if parameters.check_interval is not None else 1.0,
        }
        await self._post("/setup/execute_with_verification", body, max_wait_s + 130)

    def _fill_placeholders(self, command: str | list[str]) -> str | list[str]:
        width, height = self.client.size
        values = {
            "{CLIENT_PASSWORD}": self._password,
            "{SCREEN_WIDTH_HALF}": str(width // 2),
            "{SCREEN_HEIGHT_HALF}": str(height // 2),
            "{SCREEN_WIDTH}": str(width),
            "{SCREEN_HEIGHT}": str(height),
        }

        def fill(text: str) -> str:
            for mark, value in values.items():
                text = text.replace(mark, value)
            return text

        return fill(command) if isinstance(command, str) else [fill(argument) for argument in command]


async def _prepare_home(guest: Guest) -> None:
    """Adapt a fresh local home to OSWorld's VM; nothing that a task requires is done.

    `google-chrome` starts Debian's Chromium with the profile where tasks and getters look for it, as a process named
    `chrome`, by which tasks kill it. Ctrl+Alt+T opens a terminal, whose shell keeps the history that tasks read.
    """
    tools = await guest.tools()
    chrome = _CHROME.format(flags=" ".join(FLAGS))
    await guest.desktop.push(posixpath.join(tools, "bin", "google-chrome"), chrome.encode())
    result = await guest.desktop.run(["/bin/sh", "-c", _PREPARE, "sh", tools])
    if result.returncode != 0:
        raise InfrastructureError(
            f"cannot adapt the home to OSWorld: {result.stderr.decode(errors='replace').strip()[:300]}"
        )


def unavailable(step: Step) -> str | None:
    """Return why a step cannot run on any of Deskhand's desktops, or None."""
    if isinstance(step, osworld_setup_steps.DriveStep | osworld_setup_steps.LoginStep):
        return "needs a web account"
    if isinstance(step, osworld_setup_steps.ProxyStep):
        return "installs a proxy"
    if isinstance(step, osworld_setup_steps.HistoryStep):
        return "needs a downloaded browser history"
    if isinstance(step, osworld_setup_steps.BareStep | osworld_setup_steps.CreateFileStep) or (
        isinstance(step, osworld_setup_steps.PathStep) and step.type not in ("open", "change_wallpaper")
    ):
        return "Windows Agent Arena only"
    return f"unknown step {step.type!r}" if isinstance(step, osworld_setup_steps.OtherStep) else None


def _is_reached(until: dict[str, Any], output: dict[str, Any]) -> bool:
    return (
        ("returncode" in until and output["returncode"] == until["returncode"])
        or ("stdout" in until and until["stdout"] in output["output"])
        or ("stderr" in until and until["stderr"] in output["error"])
    )
