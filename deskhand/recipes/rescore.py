"""Find the tasks of saved end states, for `deskhand rescore`. Entry point: `TaskFinder.find`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from deskhand.config.load import Config, load_config
from deskhand.errors import ConfigError
from deskhand.recipes.suite import load_suite
from deskhand.store.run import Run
from deskhand.tasks.end_state import EndState, original_task
from deskhand.tasks.suites import family_registry
from deskhand.tasks.task import Task


class TaskFinder:
    """Finds tasks in the suite of a config file, or else of the run whose directory contains the end state."""

    def __init__(self, config: Path | None, profile: str | None, overrides: Sequence[str]) -> None:
        self._config, self._profile, self._overrides = config, profile, overrides
        self._settings: dict[Path | None, Config] = {}

    def find(self, state: EndState) -> Task:
        """Return the task of an end state. Raises `ConfigError` if its suite no longer contains it."""
        return original_task(state, self._task_factory(_run_dir_of(state.path)))

    def _task_factory(self, run_dir: Path | None) -> Callable[[str, int], Task]:
        settings = self._settings_of(run_dir)
        path = settings.suite.path
        if path is None:
            return family_registry.make_task
        suite = load_suite(settings.suite, settings.desktop.backend)
        known = {*suite.train_tasks, *suite.eval_tasks}

        def make(family: str, seed: int) -> Task:
            if family not in known:
                raise ConfigError(f"suite.path: {path} has no task {family!r}")
            return suite.make(family, seed)

        return make

    def _settings_of(self, run_dir: Path | None) -> Config:
        run_dir = run_dir if self._config is None else None
        if run_dir not in self._settings:
            base = None
            if run_dir is not None:
                with Run.open(run_dir, read_only=True) as run:
                    base = run.metadata.get("config", {}), f"{run_dir}/run.sqlite"
            environment = os.environ if base is None else {}
            self._settings[run_dir] = load_config(
                self._config, self._overrides, environment, base=base, profile=self._profile
            )
        return self._settings[run_dir]


def _run_dir_of(path: Path) -> Path | None:
    return next((folder for folder in path.resolve().parents if (folder / "run.sqlite").exists()), None)
