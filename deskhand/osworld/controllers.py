"""`env.controller` and `env.setup_controller` of OSWorld, over a desktop of ours. Invariant: names, arguments and replies are
those of `desktop-env`; a desktop that fails raises `InfrastructureError` where theirs would log and answer None.
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
from deskhand.osworld.local_client import message_of
from deskhand.osworld.setup_runner import SetupRunner
from deskhand.osworld.sync_loop import SyncLoop
from deskhand.tasks.formats import osworld_setup_steps

PREFIX = "import pyautogui; import time; pyautogui.FAILSAFE = False; {command}"
SPECIAL = ("WAIT", "FAIL", "DONE")
_STEPS: TypeAdapter[osworld_setup_steps.Step] = TypeAdapter(osworld_setup_steps.Step)


class PythonController:
    """What agents ask of the machine: screen, programs, files. The stage is that of the running episode."""

    def __init__(self, loop: SyncLoop, stage: Callable[[], SetupRunner]) -> None:
        self._loop, self._stage = loop, stage

    def _ask(self, method: str, path: str, timeout_s: float = 180.0, **body: Any) -> Any:
        return self._loop.run(self._stage().wire.ask(method, path, timeout_s=timeout_s, **body))

    def _json(self, method: str, path: str, **body: Any) -> Any:
        reply = self._ask(method, path, **body)
        return reply.json() if reply.status_code == 200 else None

    def get_screenshot(self) -> bytes:
        """The settled screen as PNG, with the pointer."""
        return self._ask("GET", "/screenshot").content

    def get_accessibility_tree(self) -> str | None:
        return self._json("GET", "/accessibility")["AT"]

    def get_terminal_output(self) -> str | None:
        said = self._json("GET", "/terminal")
        return said["output"] if said else None

    def get_file(self, file_path: str) -> bytes | None:
        """A file's bytes, or None where there is none."""
        reply = self._ask("POST", "/file", data={"file_path": file_path})
        return reply.content if reply.status_code == 200 else None

    def execute_python_command(self, command: str) -> dict[str, Any] | None:
        """Run Python in the guest, with `pyautogui` and `time` imported; `output`, `error` and `returncode`."""
        words = ["python", "-c", PREFIX.format(command=command)]
        return self._json("POST", "/execute", json={"command": words, "shell": False})

    def run_python_script(self, script: str) -> dict[str, Any] | None:
        reply = self._ask("POST", "/run_python", json={"code": script})
        if reply.status_code == 200:
            return reply.json()
        return {"status": "error", "message": "Failed to execute command.", "output": "", "error": message_of(reply)}

    def run_bash_script(self, script: str, timeout: int = 30, working_dir: str | None = None) -> dict[str, Any] | None:
        body = {"script": script, "timeout": timeout, "working_dir": working_dir}
        reply = self._ask("POST", "/run_bash_script", timeout + 100, json=body)
        if reply.status_code == 200:
            return reply.json()
        return {"status": "error", "output": "", "error": message_of(reply), "returncode": -1}

    def execute_action(self, action: dict[str, Any] | str) -> None:
        """An action of `computer_13`. Raises `ParseError` (an `AgentError`) for what is none."""
        if action in SPECIAL or (isinstance(action, dict) and action.get("action_type") in SPECIAL):
            return
        wire = self._stage().wire
        ops = computer_13.FORMAT.parse(json.dumps(action), ScreenView.of_screen(*wire.size))
        self._loop.run(wire.perform(ops))

    def start_recording(self) -> None:
        self._json("POST", "/start_recording")

    def end_recording(self, dest: str) -> None:
        """Write the film of the episode since `start_recording` to `dest`."""
        reply = self._ask("POST", "/end_recording")
        if reply.status_code == 200:
            Path(dest).write_bytes(reply.content)

    def get_vm_platform(self) -> str:
        return self._ask("GET", "/platform").text

    def get_vm_screen_size(self) -> dict[str, int] | None:
        return self._json("POST", "/screen_size")

    def get_vm_window_size(self, app_class_name: str) -> dict[str, int] | None:
        return self._json("POST", "/window_size", data={"app_class_name": app_class_name})

    def get_vm_wallpaper(self) -> bytes | None:
        reply = self._ask("POST", "/wallpaper")
        return reply.content if reply.status_code == 200 else None

    def get_vm_desktop_path(self) -> str | None:
        said = self._json("POST", "/desktop_path")
        return said["desktop_path"] if said else None

    def get_vm_directory_tree(self, path: str) -> dict[str, Any] | None:
        said = self._json("POST", "/list_directory", json={"path": path})
        return said["directory_tree"] if said else None


class SetupController:
    """Carries out set-up steps. `_<kind>_setup(...)` is the step of that kind with its parameters, as in `desktop-env`."""

    def __init__(self, loop: SyncLoop, stage: Callable[[], SetupRunner]) -> None:
        self._loop, self._stage = loop, stage

    def setup(self, config: list[dict[str, Any]], use_proxy: bool = False) -> bool:
        """All steps in order. Raises `ConfigError` for what is no step and `InfrastructureError` for one that cannot be done."""
        self._loop.run(self._stage().set_up([_step_of(step) for step in config]))
        return True

    def reset_cache_dir(self, cache_dir: str) -> None:
        """Nothing: what is downloaded lies in the cache of `deskhand tasks prefetch`."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        kind = name.removeprefix("_").removesuffix("_setup")
        if name != f"_{kind}_setup" or kind not in osworld_setup_steps.CLASS_OF:
            raise AttributeError(f"there is no set-up step {name}")
        names = _parameters_of(kind)

        def one(*arguments: Any, **named: Any) -> None:
            given = dict(zip(names, arguments, strict=False)) | named
            self.setup([{"type": kind, "parameters": given}])

        return one


def _step_of(value: dict[str, Any]) -> osworld_setup_steps.Step:
    try:
        return _STEPS.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        kind = value.get("type") if isinstance(value, dict) else value
        raise ConfigError(f"set-up step {kind!r}: {where}: {first['msg']}") from None


def _parameters_of(kind: str) -> list[str]:
    """Names of a step's parameters in their order."""
    model = next(each for each in osworld_setup_steps.KNOWN if each.__name__ == osworld_setup_steps.CLASS_OF[kind])
    annotation: Any = model.model_fields["parameters"].annotation
    part = next((each for each in get_args(annotation) if hasattr(each, "model_fields")), annotation)
    return list(part.model_fields)
