"""Train, evaluate and read runs from Python. `import deskhand` exports everything here.

Each function does what the command of the same name does, with the same run directories. Paths are `str | Path`; a
config is a file, or a `Config`.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from deskhand import registry
from deskhand.agents.build import build_agent
from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.agents.episode_context import Agent
from deskhand.config import load
from deskhand.config.schema import Config
from deskhand.errors import ConfigError
from deskhand.recipes.model_defaults import defaults_of_name, fit_agent, fit_config
from deskhand.recipes.step_report import ProgressListener, StepReport
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.eval_loop import EvalReport
from deskhand.rollout.reward import RewardFunction
from deskhand.store.run import Run
from deskhand.tasks.task import Split, Task, seed_for

AgentRef = Agent | type[Agent] | str
SuiteFormat = Literal["osworld", "waa", "deskhand", "openadapt", "python"]
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class TaskSource:
    """Tasks of a suite. `load_tasks` makes it; `train` and `evaluate` take it."""

    suite: Mapping[str, Any]
    """The config's section `suite`."""
    split: Split = "train"
    count: int | None = None
    """Number of tasks of an evaluation; None is `evaluation.num_episodes`."""

    def tasks(self, backend: str = "local", count: int = 1) -> list[Task]:
        """At least `count` tasks, the same number of each family. Raises `ConfigError` if there are none."""
        from deskhand.recipes.suite import load_suite

        config = _config({"suite": dict(self.suite)}, "load_tasks")
        suite, wanted = load_suite(config.suite, backend), self.count or count
        if self.split != "train":
            return suite.tasks_of(self.split, wanted)
        each = -(-wanted // len(suite.train_tasks)) if suite.is_parametric else 1
        return [suite.make(name, seed_for("train", index)) for index in range(each) for name in suite.train_tasks]


@dataclass(frozen=True)
class TrainResult:
    """What a training run came to."""

    run_dir: Path
    steps: int
    before: EvalReport | None
    """None if evaluation is disabled."""
    after: EvalReport | None
    checkpoint: Path | None
    """The last checkpoint, a Hugging Face folder; `evaluate(str(checkpoint), ...)` evaluates it."""
    report_html: Path


def load_config(path: str | Path | None = None, *, overrides: Sequence[str] = (), profile: str | None = None) -> Config:
    """Read a config file, the environment (`DESKHAND_*`) and `key.key=value` overrides. Raises `ConfigError`.

    Examples:
        >>> config = deskhand.load_config("configs/tiny_cpu.yaml", overrides=["loop.total_steps=10"])
    """
    return load.load_config(Path(path) if path is not None else None, overrides, os.environ, profile=profile)


def load_tasks(
    source: str | Path,
    *,
    format: SuiteFormat | None = None,
    split: Split = "train",
    families: Sequence[str] = (),
    count: int | None = None,
) -> TaskSource:
    """Select tasks. Raises `ConfigError`.

    Args:
        source: A bundled suite ("basics", "web", "miniwob"), an import path of task families, a Python file, or a
            folder.
        format: Format of the files in a folder; None is Deskhand's YAML.
        split: "train", "validation", "test", or "test_instructions" (instructions that no other split has).
        families: Families, files or folders to use; empty means all.
        count: Number of tasks of an evaluation.

    Examples:
        >>> tasks = deskhand.load_tasks("basics", split="test", count=40)
    """
    name = str(source)
    suite: dict[str, Any]
    if format is not None or name.endswith(".py") or Path(name).is_dir():
        suite = {"format": format or ("python" if name.endswith(".py") else "deskhand"), "path": name}
    else:
        suite = {"name": name}
    suite["families"] = list(families)
    _config({"suite": suite}, "load_tasks")
    return TaskSource(suite, split, count)


def _blocking(function: Callable[_Arguments, Coroutine[Any, Any, _Result]]) -> Callable[_Arguments, _Result]:
    """The twin of an asynchronous function for code without an event loop; its name has no `_async`."""
    name = function.__name__.removesuffix("_async")

    def run(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(function(*args, **kwargs))
        raise ConfigError(f"deskhand.{name} cannot run inside an event loop; await deskhand.{name}_async")

    functools.update_wrapper(run, function)
    run.__name__ = run.__qualname__ = name
    return run


async def train_async(
    config: Config | str | Path,
    *,
    run_dir: str | Path,
    tasks: TaskSource | None = None,
    agent: AgentRef | None = None,
    reward: RewardFunction | str | None = None,
    algorithm: Callable[..., Any] | str | None = None,
    resume: bool = False,
    on_step: Callable[[StepReport], None] | None = None,
) -> TrainResult:
    """Train, and evaluate before and after, like `deskhand train`. Raises `ConfigError` before anything starts.

    Args:
        config: A config file or a `Config`.
        run_dir: A new or empty folder; with `resume`, the folder of a run.
        tasks: Replaces the config's suite.
        agent: An agent, its class, or its import path; replaces the config's agent.
        reward: A function from a judged episode to its reward, or its import path.
        algorithm: A function decorated by `deskhand.algorithm`, its name, or its import path.
        resume: Continue the run in the folder.
        on_step: Called after each training step.

    Examples:
        >>> result = deskhand.train("configs/tiny_cpu.yaml", run_dir="runs/mine")
    """
    from deskhand.recipes import plan
    from deskhand.recipes.suite import hold_out_by_default
    from deskhand.recipes.train import create_run, run_training

    began, folder = time.monotonic(), Path(run_dir)
    changes: dict[str, Any] = {}
    if tasks is not None:
        changes["suite"] = dict(tasks.suite)
    if reward is not None:
        changes["reward"] = registry.reference("reward", reward)
    if algorithm is not None:
        changes["trainer"] = {"algorithm": registry.reference("algorithm", algorithm)}
    changed = _changed(config, changes, "deskhand.train", agent)
    settings = hold_out_by_default(fit_config(changed))
    run = Run.open(folder) if resume else create_run(settings, folder, "deskhand.train")
    async with _reported(run):
        plan.check_memory(settings)
        done = await run_training(settings, run, _Listener(on_step), began)
        last = run.checkpoint()
    checkpoint = last.path if last is not None else None
    return TrainResult(folder, done.steps, done.before, done.after, checkpoint, folder / "report.html")


train = _blocking(train_async)


async def evaluate_async(
    model: str,
    *,
    tasks: TaskSource,
    run_dir: str | Path,
    agent: AgentRef | None = None,
    served_model_name: str | None = None,
    api_key_env: str | None = None,
    samples_per_task: int = 1,
    max_concurrent_episodes: int = 4,
    config: Config | str | Path | None = None,
) -> EvalReport:
    """Success of a policy on tasks, like `deskhand eval`. Called again with the same run, it continues.

    Args:
        model: "tiny", a checkpoint folder, a hub name, a run ("runs/other@12"), a script ("oracle"), or a URL.
        tasks: The tasks, from `load_tasks`.
        run_dir: A new folder, or that of a run.
        agent: An agent, its class, or its import path.
        served_model_name: Name of the model at the endpoint.
        api_key_env: Environment variable with the endpoint's key; None is OPENAI_API_KEY.
        samples_per_task: Episodes per task; with more than one, pass@k is reported.
        max_concurrent_episodes: Concurrent episodes.
        config: Everything else.

    Examples:
        >>> tasks = deskhand.load_tasks("basics", split="test")
        >>> report = deskhand.evaluate("tiny", tasks=tasks, run_dir="runs/eval")
    """
    from deskhand.recipes.assemble import open_run_pool
    from deskhand.recipes.evaluate import evaluate_policy, resolve_policy
    from deskhand.recipes.train import create_run

    folder = Path(run_dir)
    number = {"num_episodes": tasks.count} if tasks.count is not None else {}
    section = {"max_concurrent_episodes": max_concurrent_episodes, **number}
    changes = {"suite": dict(tasks.suite), "evaluation": section}
    settings = fit_config(_changed(config or Config(), changes, "deskhand.evaluate", agent))
    about = {"policy": model, "served_model_name": served_model_name, "samples_per_task": samples_per_task}
    if (folder / "run.sqlite").exists():
        run = Run.open(folder)
    else:
        run = create_run(settings, folder, "deskhand.evaluate", {"evaluation": about}, needs_model=False)
    async with _reported(run):
        policy = resolve_policy(settings, run, model, None, served_model_name or "")
        policy = replace(policy, api_key_env=api_key_env or policy.api_key_env)
        chosen = tasks.tasks(settings.desktop.backend, settings.evaluation.num_episodes)
        async with open_run_pool(settings, run, max_concurrent_episodes, _Listener()) as pool:
            return await evaluate_policy(settings, run, pool, policy, samples_per_task, _Listener(), chosen)


evaluate = _blocking(evaluate_async)


async def run_episode(
    task: Task,
    *,
    base_url: str,
    served_model_name: str,
    agent: AgentRef | None = None,
    api_key_env: str = "OPENAI_API_KEY",
    config: Config | str | Path | None = None,
) -> EpisodeResult:
    """Play one task on one desktop with a served model, and judge it.

    Examples:
        >>> episode = await deskhand.run_episode(save_note.generate(0), base_url=url, served_model_name="qwen3-vl-4b")
    """
    import openai

    from deskhand.desktop.factory import open_pool
    from deskhand.rollout.episode import desktop_spec
    from deskhand.rollout.groups import EpisodeRequest
    from deskhand.rollout.runner import ApiRunner

    settings = _changed(config or Config(), {}, "deskhand.run_episode", agent)
    player, shared = build_agent(
        fit_agent(settings.agent, defaults_of_name(served_model_name)), model=served_model_name
    )
    client = openai.AsyncOpenAI(base_url=base_url, api_key=os.environ.get(api_key_env) or "none", max_retries=0)
    async with open_pool(settings.desktop, desktop_spec(task), 1) as pool:
        runner = ApiRunner(pool, client, player, settings=shared)
        try:
            return await runner.run(EpisodeRequest(task.id or "episode", task))
        finally:
            await runner.close()


def open_run(run_dir: str | Path) -> Run:
    """Open a run for reading; use it in a `with` statement.

    Examples:
        >>> with deskhand.open_run("runs/mine") as run:
        ...     episodes = [deskhand.load_episode(run, row.id) for row in run.episodes("train", "scored")]
    """
    return Run.open(Path(run_dir), read_only=True)


def load_episode(run: Run, episode_id: str) -> EpisodeResult:
    """A finished episode of a run, with its steps and its call graph.

    Examples:
        >>> deskhand.load_episode(run, run.episodes("train", "trained")[0].id).score
    """
    from deskhand.rollout.run_writer import load_result

    return load_result(run, episode_id)


class _Listener(ProgressListener):
    def __init__(self, on_step: Callable[[StepReport], None] | None = None) -> None:
        self._on_step = on_step

    def step(self, report: StepReport) -> None:
        if self._on_step is not None:
            self._on_step(report)


def _config(settings: Mapping[str, Any], origin: str) -> Config:
    return load.load_config(None, base=(settings, origin))


def _changed(
    config: Config | str | Path, changes: Mapping[str, Any], origin: str, agent: AgentRef | None = None
) -> Config:
    """The config with some keys replaced, with a whole section where that is the suite, and with another agent."""
    found = config if isinstance(config, Config) else load_config(config)
    settings, chosen = found.model_dump(mode="json"), found.agent.model_fields_set
    for key, value in changes.items():
        is_partial = isinstance(value, Mapping) and key != "suite"
        settings[key] = {**settings[key], **value} if is_partial else value
    if isinstance(agent, DesktopAgent):
        settings["agent"], chosen = agent.config.model_dump(mode="json"), agent.config.model_fields_set
    elif agent is not None:
        settings["agent"] = {**settings["agent"], "class": registry.reference("agent", agent)}
    return load.with_agent_set(_config(settings, origin), chosen)


@asynccontextmanager
async def _reported(run: Run) -> AsyncIterator[None]:
    """Close the run at the end, with a report of what it then holds; an empty one is removed."""
    from deskhand.recipes.train import discard_if_empty
    from deskhand.reporting.build_report import build_report_view
    from deskhand.reporting.html_report import write
    from deskhand.store.run_log import log_to_run

    log_to_run(run.folder)
    with run:
        try:
            yield
        finally:
            if not discard_if_empty(run):
                write(build_report_view(run), run.folder / "report.html")
