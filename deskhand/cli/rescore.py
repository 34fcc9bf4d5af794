"""The command `deskhand rejudge`. Invariant: a kept state is judged by the task that it was kept for, of the suite that its own run
names, and one whose task cannot be found is named with the mend.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from deskhand.cli.common import Flag, Overrides, Stage
from deskhand.errors import ConfigError
from deskhand.tasks.task import Task

if TYPE_CHECKING:
    from deskhand.config.load import Config
    from deskhand.tasks.end_state import EndState


def rescore(
    places: list[Path],
    /,
    *,
    task: Path | None = None,
    config: Path | None = None,
    stage: Stage = None,
    changed: Annotated[bool, Flag] = False,
    overrides: Overrides = None,
) -> None:
    """Judge kept end states again, by the checks as they are now or by those of a task file; nothing is played.

    Parameters
    ----------
    places
        Folders of end states, or single ones.
    task
        A task file in Deskhand's YAML whose checks are used instead of the tasks' own.
    config
        YAML file of settings whose suite the tasks are of; left out for states in a run's folder, whose settings are known.
    changed
        Print only the states whose value changes.
    """
    import asyncio

    from deskhand.tasks import end_state, rescoring
    from deskhand.tasks.formats import yaml_task

    given = yaml_task.load_task(task) if task is not None else None
    own = _Tasks(config, stage, overrides)

    def named(state: end_state.EndState) -> Task:
        return given or rescoring.original_task(state, own.makers(state))

    async def work() -> tuple[int, int]:
        count = different = 0
        async for result in rescoring.rescore_states(end_state.load_end_states(places), named):
            count, different = count + 1, different + result.changed
            if result.changed or not changed:
                print("\n".join(result.lines()))
        return count, different

    count, different = asyncio.run(work())
    print(f"{count} end states judged, {different} of another value than then")


class _Tasks:
    """The suites by which states are judged: that of the settings that are given, or else that of the run in whose folder it is."""

    def __init__(self, config: Path | None, stage: str | None, overrides: list[str] | None) -> None:
        self._config, self._stage, self._overrides = config, stage, overrides or ()
        self._known: dict[Path | None, Config] = {}

    def makers(self, state: EndState) -> Callable[[str, int], Task]:
        """What makes the tasks that a state may be of, by family and seed. Raises `ConfigError`."""
        from deskhand.recipes.suite import load_suite
        from deskhand.tasks.suites import family_registry

        settings = self._settings(_run_of(state.path))
        if settings.suite.files is None:
            return family_registry.make_task
        suite = load_suite(settings.suite, settings.desktop.backend)
        known = {*suite.train_tasks, *suite.eval_tasks}
        source, folder = settings.suite.files

        def make(family: str, seed: int) -> Task:
            if family not in known:
                raise ConfigError(f"suite.{source}: {folder} has no task {family!r} now")
            return suite.make(family, seed)

        return make

    def _settings(self, folder: Path | None) -> Config:
        from deskhand.config.load import load_config
        from deskhand.store.run import Run

        folder = folder if self._config is None else None
        if folder not in self._known:
            base = None
            if folder is not None:
                with Run.open(folder, read_only=True) as run:
                    base = run.metadata.get("config", {}), f"{folder}/run.sqlite"
            environment = os.environ if base is None else {}
            self._known[folder] = load_config(self._config, self._overrides, environment, base=base, stage=self._stage)
        return self._known[folder]


def _run_of(path: Path) -> Path | None:
    """The folder of the run that a file is in, if it is in one."""
    return next((folder for folder in path.resolve().parents if (folder / "run.sqlite").exists()), None)
