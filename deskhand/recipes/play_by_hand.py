"""One task that a person plays: judged, and kept as a demonstration. Used by `deskhand try`.

The person's actions are the replies to the calls of Deskhand's agent (`rollout.live_episode`), so the demonstration has
the messages, screenshots and action format of the config's agent, and `deskhand sft` learns from it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from deskhand.config.load import Config
from deskhand.config.schema import SuiteConfig
from deskhand.errors import ConfigError
from deskhand.recipes.assemble import SEEDS_PER_RUN, open_run_pool, open_scripted_policy
from deskhand.recipes.sft import FIRST_SEED
from deskhand.recipes.step_report import ProgressListener
from deskhand.recipes.suite import load_suite
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import EpisodeRequest
from deskhand.store.run import DEMONSTRATIONS, Run
from deskhand.tasks.formats import python_file, yaml_schema
from deskhand.tasks.formats.located_yaml import load_yaml
from deskhand.tasks.task import seed_for

_YAML = (".yaml", ".yml")


@dataclass(frozen=True)
class HandPlay:
    """A task for a person: settings for one desktop and this task alone, and the episode to play."""

    config: Config
    request: EpisodeRequest


def prepare(config: Config, run: Run, task: str, seed: int | None = None, max_steps: int | None = None) -> HandPlay:
    """Return the episode of a task: a family of the config's suite, a YAML task file, or FILE.py:FAMILY.

    `seed` None is the first variant of the run's demonstrations that was not played; RL never uses those seeds. Raises
    `ConfigError` if there is no such task.
    """
    suite_config = suite_of(config.suite, task)
    suite = load_suite(suite_config, config.desktop.backend)
    names = dict.fromkeys((*suite.train_tasks, *suite.validation_tasks, *suite.eval_tasks))
    if len(names) > 1:
        raise ConfigError(f"{task}: names {len(names)} tasks ({', '.join(list(names)[:3])}, ...); name one of them")
    if seed is None:
        seed = FIRST_SEED + config.seed * SEEDS_PER_RUN + len(run.episodes(DEMONSTRATIONS))
    found = suite.make(next(iter(names)), seed_for("train", seed))
    if max_steps is not None:
        found = replace(found, max_steps=max_steps)
    changes = {"suite": suite_config, "desktop": config.desktop.model_copy(update={"prewarm": 0})}
    return HandPlay(config.model_copy(update=changes), EpisodeRequest(uuid.uuid4().hex, found))


def suite_of(suite: SuiteConfig, task: str) -> SuiteConfig:
    """Return the settings of a suite that has this task alone."""
    path = Path(task)
    if python_file.names_python_file(task):
        name, _, family = (task, "", "") if task.endswith(".py") else task.rpartition(":")
        changes = {"format": "python", "path": Path(name), "families": (family,) if family else ()}
    elif path.suffix in _YAML:
        if not path.is_file():
            raise ConfigError(f"{path}: no such task file")
        file_format = "deskhand" if yaml_schema.is_native(load_yaml(path)) else "openadapt"
        changes = {"format": file_format, "path": path.parent, "families": (path.stem,)}
    else:
        return suite.model_copy(update={"families": (task,), "exclude": ()})
    return suite.model_copy(update={**changes, "name": None, "exclude": ()})


async def play_by_hand(play: HandPlay, run: Run, listener: ProgressListener) -> EpisodeResult:
    """Open the task's desktop, wait for the person's actions, and judge. Returns the demonstration, which is stored, or
    the result of an episode that errored, which is not."""
    config, kept = play.config, list[EpisodeResult]()
    async with open_run_pool(config, run, 1, listener, human_only=True) as pool:
        pool.on_demonstration = kept.append
        opening = open_scripted_policy(
            None, config.agent, pool, run.frames, model=config.model, history=config.engine.rewritten_history
        )
        async with opening as runner:
            result = await runner.run(play.request)
    return kept[0] if kept else result
