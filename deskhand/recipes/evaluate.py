"""Evaluate a policy on held-out tasks. Entry points: `resolve_policy`, `evaluate_policy`.

A policy is a checkpoint of the run itself, one of another run (`runs/other`, `runs/other@12`), a model (a folder, a hub
name, "tiny"), a script ("oracle", "noop"), or an OpenAI-compatible endpoint (`https://host/v1`, with its key in
OPENAI_API_KEY). All play the same tasks through the same agent.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from deskhand.actions.formats.smart_resize import model_image_size
from deskhand.agents.build import build_agent
from deskhand.config.load import Config, config_of_run
from deskhand.config.schema import AgentConfig
from deskhand.desktop.base import DesktopPoolProtocol
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.models.load import load_processors
from deskhand.recipes.assemble import (
    checkpoint_source,
    engine_of,
    eval_concurrency,
    open_policy,
    open_scripted_policy,
    result_label,
    version_label,
)
from deskhand.recipes.download import fetch_weights
from deskhand.recipes.model_defaults import (
    FITTED,
    defaults_of_checkpoint,
    defaults_of_name,
    fit_agent,
    model_of,
)
from deskhand.recipes.step_report import ProgressListener
from deskhand.recipes.suite import load_suite, require_oracles
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.eval_loop import EpisodeRunner, EvalReport, evaluate
from deskhand.rollout.reward import load_reward
from deskhand.rollout.runner import ApiRunner
from deskhand.rollout.scheduler import frozen_gc
from deskhand.rollout.scripted_policies import ORACLE, SCRIPTED_POLICIES
from deskhand.store.run import Run
from deskhand.tasks.task import Task

URL_SCHEMES = ("http://", "https://")
END_STATES = "end_states"
EARLY_EPISODES = 3
"""Episodes after which an evaluation warns that no reply could be parsed."""


@dataclass(frozen=True)
class PolicySpec:
    """A policy: `name` identifies its results; `source` is a checkpoint, a script or an endpoint's URL."""

    kind: Literal["weights", "script", "endpoint"]
    name: str
    source: str
    version: int = 0
    served_model_name: str = ""
    """Model name at the endpoint."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable with the endpoint's key."""
    agent: AgentConfig | None = None
    """Settings of the agent that fit the policy; None is the config's."""


def resolve_policy(
    config: Config, run: Run, policy: str | None, step: int | None = None, served_model_name: str = ""
) -> PolicySpec:
    """Resolve `--policy`; None is the run's own checkpoint of `step` (None: the last). Raises `ConfigError` if the
    policy does not exist, or `step` is given for a policy without steps."""
    if served_model_name and not (policy or "").startswith(URL_SCHEMES):
        raise ConfigError(f"--served-model-name {served_model_name}: requires --policy with the URL of an endpoint")
    if policy is None:
        source, version = checkpoint_source(run, config.model, step)
        found = PolicySpec("weights", version_label(version), source, version)
    else:
        found = _named(policy, step, served_model_name, config.model)
        if found.kind == "weights" and config.engine.backend == "openai":
            raise ConfigError(f"--policy {policy}: engine.backend openai evaluates its endpoint; remove --policy")
    before, changes = run.metadata.get("config", {}), list[str]()
    is_other = policy is None and found.source == config.model != before.get("model", config.model)
    if is_other:
        changes.append(f"model={Path(config.model).name}{_mark(config.model)}")
    original = config_of_run(run.metadata, run.folder)
    defaults = dict[str, Any]()
    if policy is not None or is_other or model_of(config) != model_of(original):
        defaults = _agent_defaults(config, found)
    agent, first = fit_agent(config.agent, defaults), fit_agent(original.agent, defaults)
    before = {**before, "agent": first.model_dump(mode="json")} if before else before
    now = {**config.model_dump(mode="json"), "agent": agent.model_dump(mode="json")}
    return replace(found, name=result_label(found.name, before, now, changes), agent=agent)


def _agent_defaults(config: Config, policy: PolicySpec) -> dict[str, Any]:
    """The agent's settings that fit a policy; empty for scripts, which write in any action format."""
    if policy.kind == "script":
        return {}
    if policy.kind == "endpoint":
        return defaults_of_name(policy.served_model_name)
    asked = model_of(config)
    return defaults_of_checkpoint(policy.source) if asked == config.model else defaults_of_name(asked)


def _named(policy: str, step: int | None, served_model_name: str, model: str) -> PolicySpec:
    """`model`: the weights of a run that has no checkpoint."""
    folder, _, at = policy.rpartition("@") if policy.rpartition("@")[2].isdigit() else (policy, "", "")
    is_run = (
        policy not in SCRIPTED_POLICIES
        and not policy.startswith(URL_SCHEMES)
        and (Path(folder) / "run.sqlite").exists()
    )
    endpoint = _endpoint(policy, served_model_name) if policy.startswith(URL_SCHEMES) else None
    if step is not None and not is_run:
        raise ConfigError(f"--step: {policy} is not a run directory; remove --step")
    if endpoint is not None:
        return endpoint
    if policy in SCRIPTED_POLICIES:
        return PolicySpec("script", policy, policy)
    if not is_run:
        return PolicySpec("weights", f"model {Path(policy).name}{_mark(policy)}", policy)
    if at and step is not None:
        raise ConfigError(f"--step {step}: {policy} already contains a step; remove one of them")
    with Run.open(Path(folder), read_only=True) as other:
        source, version = checkpoint_source(other, model, int(at) if at else step)
    return PolicySpec("weights", f"{Path(folder).name} version {version}{_mark(source)}", source, version)


def _endpoint(policy: str, served_model_name: str) -> PolicySpec:
    try:
        address = urlsplit(policy)
        _ = address.port
    except ValueError:
        raise ConfigError("--policy: invalid URL; expected https://host/v1") from None
    if address.username or address.password or address.query:
        raise ConfigError("--policy: URLs must not contain credentials; set OPENAI_API_KEY instead")
    if not served_model_name:
        raise ConfigError(f"--policy {policy}: requires --served-model-name")
    return PolicySpec(
        "endpoint",
        f"{served_model_name} at {address.netloc}{address.path.rstrip('/')}",
        policy,
        served_model_name=served_model_name,
    )


def _mark(source: str) -> str:
    """A short hash that distinguishes weights whose folders share a name; empty for hub names and the bundled policy.

    It covers a checkpoint's manifest, which contains the hash of its weights, or the path, sizes and times of other
    folders.
    """
    folder = Path(source).expanduser()
    if source == "tiny" or not folder.is_dir():
        return ""
    manifest = folder / "manifest.json"
    if manifest.is_file():
        identity = manifest.read_bytes()
    else:
        files = [
            (file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(folder.glob("*.safetensors"))
        ]
        identity = repr((str(folder.resolve()), files)).encode()
    return f" #{hashlib.sha256(identity).hexdigest()[:6]}"


@asynccontextmanager
async def open_runner(
    config: Config, run: Run, pool: DesktopPoolProtocol, policy: PolicySpec
) -> AsyncIterator[EpisodeRunner]:
    """Open the runner of a policy."""
    config = config if policy.agent is None else config.model_copy(update={"agent": policy.agent})
    async with AsyncExitStack() as stack:
        if policy.kind == "weights":
            engine = await engine_of(config, run, policy.source, policy.version)
            runner = await stack.enter_async_context(open_policy(engine, config.eval_agent, pool, run.frames))
        elif policy.kind == "script":
            script, history = SCRIPTED_POLICIES[policy.source], config.engine.rewritten_history
            opening = open_scripted_policy(script, config.agent, pool, run.frames, model=config.model, history=history)
            runner = await stack.enter_async_context(opening)
        else:
            import openai

            key = os.environ.get(policy.api_key_env) or "none"
            client = openai.AsyncOpenAI(base_url=policy.source, api_key=key, max_retries=0)
            seen = None if config.model == "tiny" else model_image_size(load_processors(config.model)[1])
            agent, settings = build_agent(config.eval_agent, model=policy.served_model_name, image_size=seen)
            runner = ApiRunner(pool, client, agent, run.frames, settings=settings)
            stack.push_async_callback(runner.close)
        runner.reward = load_reward(config.reward)
        runner.end_states = run.folder / END_STATES if config.evaluation.save_end_states else None
        yield runner


async def run_evaluation(
    run: Run,
    name: str,
    tasks: Sequence[Task],
    runner: EpisodeRunner,
    concurrency: int,
    on_progress: Callable[[int, int, int, int], None],
    *,
    samples_per_task: int = 1,
    seed: int = 0,
    warn: Callable[[str], None] | None = None,
) -> EvalReport:
    """Play tasks, or resume. `on_progress` receives (scored episodes, total episodes, successes, errored attempts).

    `warn` gets one line as soon as `EARLY_EPISODES` have ended without a reply that could be parsed.
    """
    total, known = len(tasks) * samples_per_task, {task.id for task in tasks}
    earlier = [row for row in run.episodes(name, "scored") if row.task_id in known and row.member < samples_per_task]
    done, successes, lost = len(earlier), sum((row.value or 0.0) >= 1.0 for row in earlier), 0

    num_played, num_parsed = 0, len(earlier)

    def ended(result: EpisodeResult) -> None:
        nonlocal done, successes, lost, num_played, num_parsed
        num_played += bool(result.steps)
        num_parsed += sum(step.reply_error not in ("format", "truncated") for step in result.steps)
        if warn is not None and num_played == EARLY_EPISODES and not num_parsed and result.steps:
            warn(
                f"warning: no reply of the first {num_played} episodes could be parsed; Ctrl-C stops the evaluation, "
                "then set agent.action_format, agent.prompt_style=full or agent.max_new_tokens"
            )
        scored = result.reward is not None
        done, successes, lost = done + scored, successes + result.success, lost + (not scored)
        on_progress(done, total, successes, lost)

    with frozen_gc():
        return await evaluate(
            run, name, tasks, runner, concurrency, samples_per_task=samples_per_task, on_result=ended, seed=seed
        )


async def evaluate_policy(
    config: Config,
    run: Run,
    pool: DesktopPoolProtocol,
    policy: PolicySpec,
    samples_per_task: int,
    listener: ProgressListener,
    tasks: Sequence[Task] | None = None,
) -> EvalReport:
    """Evaluate a policy on the tasks of `evaluation.split`, or resume its evaluation. Raises `ConfigError` if there are
    no tasks to play, `InfrastructureError` if every episode errored."""
    if tasks is None:
        suite = load_suite(config.suite, config.desktop.backend)
        tasks = suite.tasks_of(config.evaluation.split, config.evaluation.num_episodes)
    if not tasks:
        raise ConfigError("evaluation.num_episodes: must be above 0 to evaluate, got 0")
    if policy.kind == "script" and policy.source == ORACLE:
        require_oracles(tasks)
    if policy.agent is not None and policy.agent != config.agent:
        fitted = " ".join(f"agent.{name}={getattr(policy.agent, name)}" for name in FITTED)
        listener.log(f"{policy.name}: {fitted}, as it fits the model; --set changes it")
    listener.status(f"{policy.name}: {config.evaluation.split} episodes")
    concurrency = eval_concurrency(config)
    on_progress = partial(listener.evaluated, policy.name)
    if policy.kind == "weights":
        await fetch_weights(config, policy.source, listener)
    async with open_runner(config, run, pool, policy) as runner:
        report = await run_evaluation(
            run,
            policy.name,
            tasks,
            runner,
            concurrency,
            on_progress,
            samples_per_task=samples_per_task,
            seed=config.seed,
            warn=listener.log,
        )
    if not report.success.total:
        total = len(tasks) * samples_per_task
        raise InfrastructureError(f"{policy.name}: all {total} episodes errored; last error: {report.last_error}")
    return report


def tasks_solved_by_noop(run: Run, name: str, tasks: Iterable[Task]) -> str:
    """A line with the held-out tasks that the no-op policy or their start state solved, and a fix; empty if there are
    none."""
    played = {task.id for task in tasks}
    rows = [row for row in run.episodes(name, "scored") if row.task_id in played and (row.value or 0.0) >= 1.0]
    rows += [row for row in run.episodes(name, "errored") if row.task_id in played and row.cause == "already_solved"]
    if not rows:
        return ""
    names = ", ".join(sorted({row.family for row in rows}))
    return (
        f"solved by a no-op: {names}; they teach nothing, so change their start states or exclude them "
        f"with --set suite.exclude=[{names}]"
    )
