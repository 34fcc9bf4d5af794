"""Find the tasks of saved end states, for `deskhand rescore`. Entry point: `task_finder`."""

from __future__ import annotations

import functools
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


def task_finder(config: Path | None, profile: str | None, overrides: Sequence[str]) -> Callable[[EndState], Task]:
    """Return a function from an end state to its task in the suite of a config file, or else of the run whose directory
    contains the state. It raises `ConfigError` if the suite no longer contains the task."""

    @functools.cache
    def settings_of(run_dir: Path | None) -> Config:
        if run_dir is None:
            return load_config(config, overrides, os.environ, profile=profile)
        with Run.open(run_dir, read_only=True) as run:
            base = run.metadata.get("config", {}), f"{run_dir}/run.sqlite"
        return load_config(None, overrides, {}, base=base, profile=profile)

    def find(state: EndState) -> Task:
        folders = state.path.resolve().parents if config is None else ()
        settings = settings_of(next((folder for folder in folders if (folder / "run.sqlite").exists()), None))
        path = settings.suite.path
        if path is None:
            return original_task(state, family_registry.make_task)
        suite = load_suite(settings.suite, settings.desktop.backend)

        def make(family: str, seed: int) -> Task:
            if family not in {*suite.train_tasks, *suite.validation_tasks, *suite.eval_tasks}:
                raise ConfigError(f"suite.path: {path} has no task {family!r}")
            return suite.make(family, seed)

        return original_task(state, make)

    return find
