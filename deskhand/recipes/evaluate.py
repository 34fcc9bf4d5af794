"""Evaluation of any policy. Invariant: every policy plays the same tasks through the same agent, and results that were made in
another way never stand under one name.

A policy is a checkpoint of the run itself, one of another run (`runs/other`, `runs/other@12`), a model (a folder, a hub name,
"tiny"), a script ("oracle", "idle"), or an OpenAI-compatible endpoint (`https://host/v1`, with its key in OPENAI_API_KEY).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol
from urllib.parse import urlsplit

from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.agents.from_config import agent_of
from deskhand.config.load import Config
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.models.load import load_processors
from deskhand.recipes.assemble import (
    checkpoint_source,
    eval_tasks,
    open_policy,
    open_scripted_policy,
    result_label,
    version_label,
)
from deskhand.recipes.concurrency import eval_concurrency
from deskhand.recipes.suite import require_oracles
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.eval_loop import EpisodeRunner, EvalReport, evaluate
from deskhand.rollout.runner import DesktopLeaser
from deskhand.rollout.scheduler import frozen_gc
from deskhand.rollout.scripted_policies import NOOP, ORACLE, SCRIPTED_POLICIES
from deskhand.store.run import Run

__all__ = [
    "ADDRESS",
    "END_STATES",
    "NOOP",
    "PolicySpec",
    "evaluate_policy",
    "open_runner",
    "resolve_policy",
    "tasks_solved_by_noop",
]
ADDRESS = ("http://", "https://")
END_STATES = "end_states"
SCRIPT_TOKENS = 1000
"""Of a script's reply: a script is not cut."""


class Shown(Protocol):
    """Where progress is shown."""

    def working(self, text: str) -> None: ...

    def evaluated(self, name: str, done: int, total: int, successes: int, lost: int) -> None: ...


@dataclass(frozen=True)
class PolicySpec:
    """A policy. `name` is that of its results in the run; `source` a checkpoint, a script's name, or an endpoint's address."""

    kind: Literal["weights", "script", "endpoint"]
    name: str
    source: str
    version: int = 0
    served_name: str = ""
    """What the endpoint calls its model."""


def resolve_policy(
    config: Config, run: Run, policy: str | None, step: int | None = None, served_name: str = ""
) -> PolicySpec:
    """What `policy` names; None is the run's own checkpoint of `step` (None: the last).

    Raises `ConfigError` when it is not there, or `step` is given for something else than a run's checkpoint.
    """
    if served_name and not (policy or "").startswith(ADDRESS):
        raise ConfigError(
            f"--served-name {served_name}: it is what an endpoint calls its model; give --policy its address"
        )
    if policy is None:
        source, version = checkpoint_source(config, run, step)
        found = PolicySpec("weights", version_label(version), source, version)
    else:
        found = _named(config, policy, step, served_name)
    before, changes = run.metadata.get("config", {}), list[str]()
    if policy is None and found.source == config.model != before.get("model", config.model):
        changes.append(f"model={Path(config.model).name}{_mark(config.model)}")
    return replace(found, name=result_label(found.name, before, config, changes))


def _named(config: Config, policy: str, step: int | None, served_name: str) -> PolicySpec:
    endpoint = _endpoint(policy, served_name) if policy.startswith(ADDRESS) else None
    if step is not None and (endpoint or policy in SCRIPTED_POLICIES):
        raise ConfigError(f"--step {step}: {policy} is no run, so it has no steps; leave --step out")
    if endpoint:
        return endpoint
    if policy in SCRIPTED_POLICIES:
        return PolicySpec("script", policy, policy)
    folder, _, at = policy.rpartition("@") if policy.rpartition("@")[2].isdigit() else (policy, "", "")
    if (Path(folder) / "run.sqlite").exists():
        if at and step is not None:
            raise ConfigError(f"--step {step}: {policy} names a step already; give one of the two")
        with Run.open(Path(folder), read_only=True) as other:
            source, version = checkpoint_source(config, other, int(at) if at else step)
        _asked_here(config, policy)
        return PolicySpec("weights", f"{Path(folder).name} version {version}{_mark(source)}", source, version)
    if step is not None:
        raise ConfigError(f"--step {step}: {policy} is no run, so it has no steps; leave --step out")
    _asked_here(config, policy)
    return PolicySpec("weights", f"model {Path(policy).name}{_mark(policy)}", policy)


def _endpoint(policy: str, served_name: str) -> PolicySpec:
    """Raises `ConfigError` for what is no address, or holds a key, and where nobody says what the model is called."""
    try:
        address = urlsplit(policy)
        _ = address.port
    except ValueError:
        raise ConfigError("--policy: what begins with http is an address; write it as https://host/v1") from None
    if address.username or address.password or address.query:
        raise ConfigError("--policy: an address holds no key; put it into the environment as OPENAI_API_KEY")
    if not served_name:
        raise ConfigError(f"--policy {policy}: say with --served-name what the endpoint calls its model")
    return PolicySpec(
        "endpoint", f"{served_name} at {address.netloc}{address.path.rstrip('/')}", policy, served_name=served_name
    )


def _asked_here(config: Config, policy: str) -> None:
    """Raise `ConfigError` where an endpoint would play in the place of the weights."""
    if config.engine.backend == "remote":
        raise ConfigError(
            f"--policy {policy}: with engine.backend remote the endpoint plays; leave --policy out, or set another kind"
        )


def _mark(source: str) -> str:
    """Tells weights apart whose folders have one name, or that were written anew; nothing for a name that means one thing.

    A checkpoint of a run is known by its manifest, which has the hash of its weights, another folder by its path and the sizes and
    times of its weights.
    """
    folder = Path(source).expanduser()
    if source == "tiny" or not folder.is_dir():
        return ""
    manifest = folder / "manifest.json"
    if manifest.is_file():
        said = manifest.read_bytes()
    else:
        files = [
            (file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(folder.glob("*.safetensors"))
        ]
        said = repr((str(folder.resolve()), files)).encode()
    return f" #{hashlib.sha256(said).hexdigest()[:6]}"


@asynccontextmanager
async def open_runner(
    config: Config, run: Run, pool: DesktopLeaser, policy: PolicySpec
) -> AsyncIterator[EpisodeRunner]:
    """What plays episodes with a policy."""
    temperature = config.evaluation.temperature
    states = run.folder / END_STATES if config.evaluation.save_end_states else None
    if policy.kind == "weights":
        async with open_policy(config, run, pool, policy.source, policy.version, temperature) as parts:
            parts.runner.end_states = states
            yield parts.runner
    elif policy.kind == "script":
        async with open_scripted_policy(config, run, pool, SCRIPTED_POLICIES[policy.source], SCRIPT_TOKENS) as runner:
            runner.end_states = states
            yield runner
    else:
        import openai

        from deskhand.rollout.runner import ApiRunner

        key = os.environ.get("OPENAI_API_KEY") or "none"
        client = openai.AsyncOpenAI(base_url=policy.source, api_key=key, max_retries=0)
        agent = DesktopAgent(
            replace(agent_of(config.agent, temperature, load_processors(config.model)[1]), model=policy.served_name)
        )
        runner = ApiRunner(pool, client, agent, run.frames)
        runner.end_states = states
        try:
            yield runner
        finally:
            await runner.close()


async def evaluate_policy(
    config: Config, run: Run, pool: DesktopLeaser, policy: PolicySpec, repeats: int, display: Shown
) -> EvalReport:
    """Held-out success of a policy, shown as it goes; goes on where an evaluation of it was left.

    Raises `ConfigError` when the settings leave nothing to play, `InfrastructureError` when nothing but outages happened."""
    tasks = eval_tasks(config)
    if not tasks:
        raise ConfigError(
            "evaluation.num_episodes is 0, so there is nothing to play; set it to the number of held-out episodes"
        )
    if policy.kind == "script" and policy.source == ORACLE:
        require_oracles(tasks)
    total = len(tasks) * repeats
    kept = {task.id for task in tasks}
    earlier = [row for row in run.episodes(policy.name, "scored") if row.task_id in kept and row.member < repeats]
    done, successes, lost = len(earlier), sum((row.value or 0.0) >= 1.0 for row in earlier), 0
    display.working(f"{policy.name}: held-out episodes")

    def ended(result: EpisodeResult) -> None:
        nonlocal done, successes, lost
        scored = result.reward is not None
        done, successes, lost = done + scored, successes + result.success, lost + (not scored)
        display.evaluated(policy.name, done, total, successes, lost)

    async with open_runner(config, run, pool, policy) as runner:
        with frozen_gc():
            places = eval_concurrency(config)
            found = await evaluate(
                run, policy.name, tasks, runner, places, repeats=repeats, ended=ended, seed=config.seed
            )
    if not found.success.total:
        raise InfrastructureError(
            f"{policy.name}: none of {total} held-out episodes has a score; the last: {found.last_error}"
        )
    return found


def tasks_solved_by_noop(config: Config, run: Run, name: str) -> str:
    """Which of the held-out tasks an evaluation of the policy that does nothing found solved, with the mend; empty for none."""
    played = {task.id for task in eval_tasks(config)}
    rows = [row for row in run.episodes(name, "scored") if row.task_id in played and (row.value or 0.0) >= 1.0]
    found = sorted({row.family for row in rows})
    if not found:
        return ""
    names = ", ".join(found)
    return (
        f"solved by doing nothing, so nothing can be learnt from them: {names}; stage them so that they are not, or leave them out "
        f"by --set suite.exclude=[{names}]"
    )
