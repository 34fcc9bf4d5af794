"""`env.controller` and `env.setup_controller` of OSWorld, for Deskhand's desktops.

Names, arguments and replies match `desktop-env`. If the desktop fails, `InfrastructureError` is raised where
`desktop-env` would log and return None.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from deskhand.actions.formats import computer_13
from deskhand.actions.formats.base import ScreenView
from deskhand.errors import ConfigError
from deskhand.osworld.clients import message_of
from deskhand.osworld.setup_runner import SetupRunner
from deskhand.osworld.sync_loop import SyncLoop
from deskhand.tasks.formats import osworld_setup_steps

PREFIX = "import pyautogui; import time; pyautogui.FAILSAFE = False; {command}"
SPECIAL = ("WAIT", "FAIL", "DONE")
_STEPS: TypeAdapter[osworld_setup_steps.Step] = TypeAdapter(osworld_setup_steps.Step)


class PythonController:
    """Screen, programs and files of the machine of the running episode."""

    def __init__(self, loop: SyncLoop, runner: Callable[[], SetupRunner]) -> None:
        self._loop, self._runner = loop, runner

    def _request(self, method: str, path: str, timeout_s: float = 180.0, **body: Any) -> Any:
        return self._loop.run(self._runner().client.request(method, path, timeout_s=timeout_s, **body))

    def _json(self, method: str, path: str, key: str | None = None, **body: Any) -> Any:
        reply = self._request(method, path, **body)
        if reply.status_code != 200:
            return None
        return reply.json() if key is None else reply.json()[key]

    def get_screenshot(self) -> bytes:
        """Return the settled screen as PNG, with the pointer."""
        return self._request("GET", "/screenshot").content

    def get_accessibility_tree(self) -> str | None:
        return self._json("GET", "/accessibility", "AT")

    def get_terminal_output(self) -> str | None:
        return self._json("GET", "/terminal", "output")

    def get_file(self, file_path: str) -> bytes | None:
        """Return a file's bytes, or None if it does not exist."""
        reply = self._request("POST", "/file", data={"file_path": file_path})
        return reply.content if reply.status_code == 200 else None

    def execute_python_command(self, command: str) -> dict[str, Any] | None:
        """Run Python in the guest with `pyautogui` and `time` imported; return its output and exit code."""
        argv = ["python", "-c", PREFIX.format(command=command)]
        return self._json("POST", "/execute", json={"command": argv, "shell": False})

    def run_python_script(self, script: str) -> dict[str, Any] | None:
        reply = self._request("POST", "/run_python", json={"code": script})
        if reply.status_code == 200:
            return reply.json()
        return {"status": "error", "message": "Failed to execute command.", "output": "", "error": message_of(reply)}

    def run_bash_script(self, script: str, timeout: int = 30, working_dir: str | None = None) -> dict[str, Any] | None:
        body = {"script": script, "timeout": timeout, "working_dir": working_dir}
        reply = self._request("POST", "/run_bash_script", timeout + 100, json=body)
        if reply.status_code == 200:
            return reply.json()
        return {"status": "error", "output": "", "error": message_of(reply), "returncode": -1}

    def execute_action(self, action: dict[str, Any] | str) -> None:
        """Perform a `computer_13` action. Raises `ParseError` (an `AgentError`) if it is invalid."""
        if action in SPECIAL or (isinstance(action, dict) and action.get("action_type") in SPECIAL):
            return
        client = self._runner().client
        ops = computer_13.FORMAT.parse(json.dumps(action), ScreenView.of_screen(*client.size))
        self._loop.run(client.perform(ops))

    def start_recording(self) -> None:
        self._json("POST", "/start_recording")

    def end_recording(self, dest: str) -> None:
        """Write the video since `start_recording` to `dest`."""
        reply = self._request("POST", "/end_recording")
        if reply.status_code == 200:
            Path(dest).write_bytes(reply.content)

    def get_vm_platform(self) -> str:
        return self._request("GET", "/platform").text

    def get_vm_screen_size(self) -> dict[str, int] | None:
        return self._json("POST", "/screen_size")

    def get_vm_window_size(self, app_class_name: str) -> dict[str, int] | None:
        return self._json("POST", "/window_size", data={"app_class_name": app_class_name})

    def get_vm_wallpaper(self) -> bytes | None:
        reply = self._request("POST", "/wallpaper")
        return reply.content if reply.status_code == 200 else None

    def get_vm_desktop_path(self) -> str | None:
        return self._json("POST", "/desktop_path", "desktop_path")

    def get_vm_directory_tree(self, path: str) -> dict[str, Any] | None:
        return self._json("POST", "/list_directory", "directory_tree", json={"path": path})


class SetupController:
    """Runs set-up steps. `_<type>_setup(...)` is the step of that type with its parameters, as in `desktop-env`."""

    def __init__(self, loop: SyncLoop, runner: Callable[[], SetupRunner]) -> None:
        self._loop, self._runner = loop, runner

    def setup(self, config: list[dict[str, Any]], use_proxy: bool = False) -> bool:
        """Run all steps in order.

        Raises `ConfigError` if a step is invalid, `InfrastructureError` if it fails.
        """
        self._loop.run(self._runner().set_up([_step_of(step) for step in config]))
        return True

    def reset_cache_dir(self, cache_dir: str) -> None:
        """Do nothing: downloads are in the cache of `deskhand tasks prefetch`."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        kind = name.removeprefix("_").removesuffix("_setup")
        if name != f"_{kind}_setup" or kind not in osworld_setup_steps.MODELS:
            raise AttributeError(f"unknown set-up step {name}")
        names = _parameters_of(kind)

        def run_step(*arguments: Any, **named: Any) -> None:
            parameters = dict(zip(names, arguments, strict=False)) | named
            self.setup([{"type": kind, "parameters": parameters}])

        return run_step


def _step_of(value: dict[str, Any]) -> osworld_setup_steps.Step:
    """Validate a step. Task files may have values of other types; a call that has one is a mistake."""
    kind = value.get("type") if isinstance(value, dict) else value
    try:
        model = osworld_setup_steps.MODELS.get(kind) if isinstance(kind, str) else None
        return _STEPS.validate_python(value) if model is None else model.model_validate(value)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        location = ".".join(map(str, problem["loc"]))
        raise ConfigError(f"set-up step {kind!r}: {location}: {problem['msg']}") from None


def _parameters_of(kind: str) -> list[str]:
    annotation: Any = osworld_setup_steps.MODELS[kind].model_fields["parameters"].annotation
    part = next((model for model in get_args(annotation) if hasattr(model, "model_fields")), annotation)
    return list(part.model_fields)
