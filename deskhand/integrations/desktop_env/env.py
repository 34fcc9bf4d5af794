"""OSWorld's `DesktopEnv` API on any Deskhand desktop; `desktop-env` is not needed.

    env = DesktopEnv(action_space="pyautogui", screen_size=(1280, 720))
    observation = env.reset(task_config=json.loads(path.read_text()))
    response, actions = agent.predict(observation["instruction"], observation)
    observation, reward, done, info = env.step(actions[0], pause=0)
    score = env.evaluate()

Constructor, methods, observations and action spaces are OSWorld's, so its agents run unmodified. Differences: a step
waits until the screen has settled, so `pause` may be 0; arguments that select a machine (`provider_name` etc.) have
no effect; an evaluation that fails raises instead of returning 0.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import ConfigError, EvaluatorError, InfrastructureError
from deskhand.osworld.clients import LocalOsworldClient
from deskhand.osworld.controllers import PythonController, SetupController
from deskhand.osworld.official_evaluators import OfficialEvaluators
from deskhand.osworld.scoring import Verdict, default_official_evaluators, needs_accessibility, score_task
from deskhand.osworld.setup_runner import SetupRunner
from deskhand.osworld.sync_loop import MakeDesktop, SyncLoop
from deskhand.tasks.formats import osworld
from deskhand.tasks.formats.file_cache import FileCache
from deskhand.tasks.formats.located_yaml import LocatedDocument
from deskhand.tasks.formats.osworld import OsworldTask
from deskhand.tasks.outcome import Errored, Outcome, Scored

ACTION_SPACES = ("computer_13", "pyautogui", "claude_computer_use", "autoglm_computer_use")
Observation = dict[str, Any]


class DesktopEnv:
    """An environment with one desktop that `desktop` creates or leases (default: a local one). Not thread-safe.

    `evaluators` None: OSWorld's own if their environment is installed, else Deskhand's versions. Raises `ConfigError`
    for an unsupported action space, `os_type` or proxy.
    """

    def __init__(  # noqa: PLR0913
        self,
        provider_name: str = "vmware",
        region: str | None = None,
        path_to_vm: str | None = None,
        snapshot_name: str = "init_state",
        action_space: str = "pyautogui",
        cache_dir: str = "cache",
        screen_size: tuple[int, int] = (1920, 1080),
        headless: bool = False,
        require_a11y_tree: bool = True,
        require_terminal: bool = False,
        os_type: str = "Ubuntu",
        enable_proxy: bool = False,
        client_password: str = "",
        *,
        desktop: MakeDesktop | None = None,
        files: FileCache | None = None,
        evaluators: OfficialEvaluators | None = None,
    ) -> None:
        if action_space not in ACTION_SPACES:
            raise ConfigError(f"action_space: must be one of {', '.join(ACTION_SPACES)}, got {action_space!r}")
        if os_type != "Ubuntu" or enable_proxy:
            raise ConfigError("desktops here are Linux without a proxy; use os_type='Ubuntu' and enable_proxy=False")
        self.provider_name, self.snapshot_name, self.cache_dir_base = provider_name, snapshot_name, cache_dir
        self.action_space, self.os_type, self.headless = action_space, os_type, headless
        self.screen_width, self.screen_height = screen_size
        self.require_a11y_tree, self.require_terminal = require_a11y_tree, require_terminal
        self.client_password = client_password or "password"
        self.instruction: str | None = None
        self.task: OsworldTask | None = None
        self.action_history: list[Any] = []
        self._files, self._evaluators = files, evaluators
        self._step_no = 0
        self._closed = False
        self._stage: SetupRunner | None = None
        self._loop = SyncLoop()
        self._desktop = self._loop.desktop(desktop or LocalDesktop)
        self.controller = PythonController(self._loop, self._staged)
        self.setup_controller = SetupController(self._loop, self._staged)

    def _staged(self) -> SetupRunner:
        if self._stage is None:
            raise InfrastructureError("no episode; call reset first")
        return self._stage

    def reset(
        self, task_config: dict[str, Any] | None = None, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Observation:
        """A fresh desktop with the task set up; the first observation.

        Raises `ConfigError` for a task that is wrong, `InfrastructureError` when it could not be set up.
        """
        self.task = None if task_config is None else _task_of(task_config)
        self.instruction = self.task.instruction if self.task is not None else None
        self.action_history.clear()
        self._step_no = 0
        self._loop.run(self._begin())
        return self._get_obs()

    async def _begin(self) -> None:
        if self._stage is not None:
            await self._stage.client.close()
        needs_tree = self.require_a11y_tree or self.require_terminal
        needs_tree = needs_tree or (self.task is not None and needs_accessibility(self.task))
        spec = DesktopSpec("plain", self.screen_width, self.screen_height, accessibility=needs_tree)
        await self._desktop.reset(spec)
        client = LocalOsworldClient(self._desktop, spec)
        self._stage = SetupRunner(client, self._files, password=self.client_password)
        await self._stage.set_up(self.task.config if self.task is not None else [])

    def step(self, action: Any, pause: float = 2) -> tuple[Observation, float, bool, dict[str, Any]]:
        """Perform `action` and return (observation, 0, done, info) after `pause` seconds.

        Only DONE and FAIL end an episode. Python code that fails in the guest raises nothing here.

        Raises:
            AgentError: Invalid action of `computer_13`.
        """
        self._step_no += 1
        self.action_history.append(action)
        special = action.get("action_type") if isinstance(action, dict) else action
        done, info = False, dict[str, Any]()
        if special in ("FAIL", "DONE"):
            done, info = True, {special.lower(): True}
        elif special == "WAIT":
            time.sleep(pause)
        elif self.action_space == "computer_13":
            self.controller.execute_action(action)
        elif self.action_space in ("pyautogui", "claude_computer_use"):
            self.controller.execute_python_command(action["command"] if isinstance(action, dict) else action)
        time.sleep(pause)
        return self._get_obs(), 0, done, info

    def _get_obs(self) -> Observation:
        return {
            "screenshot": self.controller.get_screenshot(),
            "accessibility_tree": self.controller.get_accessibility_tree() if self.require_a11y_tree else None,
            "terminal": self.controller.get_terminal_output() if self.require_terminal else None,
            "instruction": self.instruction,
        }

    def evaluate(self) -> float:
        """The score of the end state, in [0, 1]. Raises `EvaluatorError` or `InfrastructureError` when there is
        none."""
        return self.verdict().value

    def verdict(self) -> Verdict:
        """As `evaluate`, with the score of each metric and what was read."""
        if self.task is None:
            raise ConfigError("no task to evaluate; pass task_config to reset")
        last = self.action_history[-1] if self.action_history else None
        failed = (last.get("action_type") if isinstance(last, dict) else last) == "FAIL"
        evaluators = self._evaluators or default_official_evaluators()
        return self._loop.run(score_task(self.task, self._staged(), failed=failed, evaluators=evaluators))

    def outcome(self) -> Outcome:
        """As `evaluate`, three-valued: an outage or a failing metric is `Errored` with its cause."""
        try:
            verdict = self.verdict()
        except InfrastructureError as error:
            return Errored("infrastructure", str(error))
        except EvaluatorError as error:
            return Errored("evaluator", str(error))
        parts = {f"{index}: {metric}": score for index, (metric, score) in enumerate(verdict.scores)}
        return Scored(verdict.value, parts, verdict.guest_trusted, verdict.findings)

    @property
    def vm_platform(self) -> str:
        return self.controller.get_vm_platform()

    @property
    def vm_screen_size(self) -> dict[str, int] | None:
        return self.controller.get_vm_screen_size()

    def render(self, mode: str = "rgb_array") -> bytes:
        """The screen as PNG. Raises `ValueError` for another mode."""
        if mode != "rgb_array":
            raise ValueError(f"Unsupported render mode: {mode}")
        return self.controller.get_screenshot()

    def close(self) -> None:
        """End the desktop. Idempotent."""
        if not self._closed:
            self._closed = True
            self._loop.run(self._end())
            self._loop.close()

    async def _end(self) -> None:
        if self._stage is not None:
            await self._stage.client.close()
        await self._desktop.close()


def _task_of(value: dict[str, Any]) -> OsworldTask:
    document = LocatedDocument("task_config", value, dict, [])
    return osworld.load_document(Path("task_config"), document, OsworldTask, osworld.OSWORLD_VOCABULARY).task
