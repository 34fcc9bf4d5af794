"""What a workflow is told, and the files that say it. Invariant: settings are JSON types, because AReaL sends a workflow to its
workers as an import path and keywords and makes it anew for every task; a wrong value is one line that names its key."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from deskhand.config.load import FULL
from deskhand.config.loop import GroupConfig
from deskhand.config.schema import AgentConfig, ContextConfig, DesktopConfig
from deskhand.errors import ConfigError


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Desktops(_Part):
    """Where desktops come from: a bridge (`deskhand serve`) that all workers lease from, or this process."""

    server_url: str | None = None
    """Address of a bridge, `http://host:port`: the way for more than one worker."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the bridge's key."""
    local: int = Field(default=0, ge=0)
    """Without a bridge: so many embedded desktops in each worker process."""
    factory: str | None = None
    """Without either: `package.module.function`, called without arguments, gives a pool of desktops."""
    settings: DesktopConfig = DesktopConfig()
    """Of embedded desktops."""

    @model_validator(mode="after")
    def _one(self) -> Desktops:
        if sum((self.server_url is not None, self.local > 0, self.factory is not None)) != 1:
            raise ValueError("give one of bridge (an address), embedded (how many) and make (a function's path)")
        return self


class WorkflowSettings(_Part):
    """Everything that `OSWorldWorkflow` and the plain agents are made from."""

    model: str = "tiny"
    """The checkpoint that is trained, for its tokenizer and its image processor; weights are not read."""
    desktops: Desktops
    agent: AgentConfig = AgentConfig()
    tasks: str = "deskhand.integrations.areal.dataset.task_of"
    """`package.module.function` that makes a `Task` of a row of data."""
    loop: GroupConfig = GroupConfig()
    """Each episode of a group is on a desktop of its own. AReaL's own `gconfig.n_samples` stays 1."""
    engine: ContextConfig = ContextConfig()
    """`max_tokens`: at most AReaL's `mb_spec.max_tokens_per_mb`."""
    group_timeout_s: float = Field(default=1800.0, gt=0)
    """What is still running then is cut off and unscored; keep it below AReaL's `rollout.request_timeout`."""
    algorithm: Literal["grpo", "dr_grpo", "gspo"] = "grpo"
    """How rewards of a group become advantages: divided by the group's deviation or not (`dr_grpo`)."""
    zero_variance_groups: Literal["drop", "keep"] = "drop"
    """Groups of equal rewards teach nothing: another task is taken in their place, or their rows are trained on in vain."""
    normalize_by_episode: bool = True
    """Every episode of a group counts the same, however long it is; otherwise every token does."""
    frame_cache_mib: int = Field(default=256, ge=1)
    """Memory of a worker for screenshots as they were taken."""
    evaluation_temperature: float = Field(default=0.0, ge=0)
    """Of episodes that AReaL asks for to evaluate."""
    episode_dir: str | None = None
    """Folder in which each worker keeps its episodes, for `deskhand report`; None keeps none."""

    @classmethod
    def of(cls, settings: WorkflowSettings | Mapping[str, Any] | None, more: Mapping[str, Any]) -> WorkflowSettings:
        """From a mapping and further keywords. Raises `ConfigError` for the first thing that is wrong."""
        if isinstance(settings, WorkflowSettings):
            return settings.model_copy(update=dict(more))
        try:
            return cls.model_validate({**(settings or {}), **more})
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the settings"
            raise ConfigError(f"workflow settings: {place}: {first['msg']}") from None

    @property
    def sees(self) -> bool:
        """Whether the model is shown pictures."""
        return self.agent.observation == "pixels"


def import_by_path(path: str) -> Callable[..., Any]:
    """The function of a dotted path. Raises `ConfigError` when there is none."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{path}: no such function ({error}); write package.module.function") from None


def read_experiment(path: Path) -> dict[str, Any]:
    """The content of a file as it stands, references unresolved. Raises `ConfigError`."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: a config file is a mapping of keys to values")
    return content


def stage_overrides(path: Path, stage: str | None) -> list[str]:
    """The settings of a stage as overrides for AReaL's parser. Raises `ConfigError` when the file has no such stage."""
    stages = read_experiment(path).get("stages") or {}
    if stage in (None, FULL):
        return []
    if stage not in stages:
        raise ConfigError(f"{path}: it has no stage '{stage}'; it has: {', '.join([*map(str, stages), FULL])}")
    return [f"++{key}={json.dumps(value)}" for key, value in _flat("", stages[stage])]


def _flat(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{place}.{key}" if place else str(key), inner)
    else:
        yield place, value
