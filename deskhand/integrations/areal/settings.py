"""Settings of Deskhand's AReaL workflows and agents, and reading of experiment files.

AReaL sends a workflow to its workers as an import path with keyword arguments and recreates it for every task, so
settings contain JSON types only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from deskhand.config.load import FULL
from deskhand.config.loop import GroupConfig
from deskhand.config.schema import (
    MACHINE_BACKENDS,
    AgentConfig,
    ContextConfig,
    DesktopConfig,
    TrackingConfig,
)
from deskhand.config.shipped import AREAL, list_configs
from deskhand.errors import ConfigError


class _StrictModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Desktops(_StrictModel):
    """Source of desktops: a desktop server or a gateway shared by all workers, or the worker process itself."""

    server_url: str | None = None
    """URL of a desktop server (`deskhand serve desktops`); required for more than one worker."""
    api_key_env: str | None = None
    """Environment variable with the server's key."""
    local: int = Field(default=0, ge=0)
    """Number of local desktops in each worker process."""
    factory: str | None = None
    """Function `package.module.function` without arguments that returns a pool."""
    settings: DesktopConfig = DesktopConfig()
    """Settings of local desktops; with `urls`, desktops of another backend, such as a gateway ("sandbox"), or
    machines that this worker alone uses ("osworld", "waa")."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Desktops:
        named = (self.server_url is not None, self.local > 0, self.factory is not None, bool(self.settings.urls))
        if sum(named) != 1:
            raise ValueError("set exactly one of server_url, local, factory and settings.urls")
        if self.settings.backend != "local" and not self.settings.urls:
            raise ValueError(f"settings.backend {self.settings.backend}: set settings.urls")
        return self

    @property
    def num_machines(self) -> int | None:
        """Number of machines that this worker alone uses; None for other desktops."""
        return len(self.settings.urls) if self.settings.backend in MACHINE_BACKENDS else None


class WorkflowSettings(_StrictModel):
    """Settings of `OSWorldWorkflow` and the plain agents."""

    model: str = "tiny"
    """Checkpoint being trained, for its tokenizer and image processor; weights are not loaded."""
    desktops: Desktops
    agent: AgentConfig = AgentConfig()
    tasks: str = "deskhand.integrations.areal.dataset.task_from_row"
    """Function `package.module.function` that returns the `Task` of a data row."""
    loop: GroupConfig = GroupConfig()
    """Group settings. AReaL's own `gconfig.n_samples` stays 1."""
    engine: ContextConfig = ContextConfig()
    """Context settings; `max_model_len` must not exceed AReaL's `mb_spec.max_tokens_per_mb`."""
    group_timeout_s: float = Field(default=1800.0, gt=0)
    """Time limit of a group; later episodes are errored. Keep it below AReaL's `rollout.request_timeout`."""
    max_errored_groups: int = Field(default=8, ge=1)
    """Consecutive groups of a worker without a scored episode that end the run; for a plain agent, this many times
    `loop.group_size` episodes."""
    advantages: Literal["group", "areal"] = "group"
    """What `rewards` of a trajectory are: advantages within the group, or ("areal") rewards, from which AReaL computes
    advantages with its normalization."""
    algorithm: Literal["grpo", "dr_grpo", "gspo"] = "grpo"
    """How group rewards become advantages: with or without (`dr_grpo`) division by the standard deviation."""
    zero_variance_groups: Literal["drop", "keep"] = "drop"
    """Whether groups with equal rewards, which carry no signal, are replaced ("drop") or trained on anyway."""
    normalize_by_episode: bool = True
    """Weight episodes equally instead of tokens."""
    frame_cache_mib: int = Field(default=256, ge=1)
    """Memory of a worker for encoded screenshots."""
    evaluation_temperature: float = Field(default=0.0, ge=0)
    """Temperature of evaluation episodes."""
    episode_dir: str | None = None
    """Directory in which workers store episodes, for `deskhand report`; None stores none."""
    tracking: TrackingConfig = TrackingConfig()
    """Scrubbing of stored episodes; AReaL's `stats_logger` has the rest."""

    @field_validator("agent")
    @classmethod
    def _is_deskhands_agent(cls, agent: AgentConfig) -> AgentConfig:
        if agent.class_ != "desktop":
            raise ValueError(
                f"class: AReaL workflows run Deskhand's agent, not {agent.class_}; override `make_agent` in a subclass "
                "of OSWorldWorkflow and name it in deskhand.workflow_class"
            )
        return agent

    @classmethod
    def of(cls, settings: WorkflowSettings | Mapping[str, Any] | None, more: Mapping[str, Any]) -> WorkflowSettings:
        """Return settings from a mapping and further keywords. Raises `ConfigError` for the first error."""
        if isinstance(settings, WorkflowSettings):
            return settings.model_copy(update=dict(more))
        try:
            return cls.model_validate({**(settings or {}), **more})
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(["deskhand.workflow", *map(str, first["loc"])])
            raise ConfigError(f"{key}: {first['msg']}") from None

    @property
    def uses_images(self) -> bool:
        return self.agent.observation == "screenshot"


def import_by_path(path: str) -> Callable[..., Any]:
    """Return the function at a dotted path. Raises `ConfigError`."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be imported ({error}); expected package.module.function") from None


def read_experiment(path: Path) -> dict[str, Any]:
    """Return the content of a file with references unresolved. Raises `ConfigError`."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        names = ", ".join(list_configs(AREAL))
        raise ConfigError(f"{path}: cannot read the experiment: {error.strerror}; shipped ones: {names}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: invalid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must contain a mapping")
    return content


def merge_settings(content: Any, overrides: Sequence[str]) -> dict[str, Any]:
    """Return an experiment with `key=value` words merged into it, references unresolved; later words win."""
    merged = deepcopy(content)
    for word in overrides:
        key, equals, value = word.partition("=")
        *path, last = key.lstrip("+~").split(".")
        place = merged
        for part in path:
            inner = place.get(part)
            if not isinstance(inner, dict):
                inner = place[part] = {}
            place = inner
        if key.startswith("~"):
            place.pop(last, None)
        elif equals:
            place[last] = yaml.safe_load(value)
    return merged


def profile_overrides(path: Path, profile: str | None) -> list[str]:
    """Return a profile as overrides for AReaL's parser. Raises `ConfigError` if the file has no such profile."""
    profiles = read_experiment(path).get("profiles") or {}
    if profile in (None, FULL):
        return []
    if profile not in profiles:
        raise ConfigError(f"{path}: unknown profile '{profile}'; available: {', '.join([*map(str, profiles), FULL])}")
    return [as_override(f"{key}={json.dumps(value)}") for key, value in _flat("", profiles[profile])]


def as_override(word: str) -> str:
    """Return a `key=value` word so that AReaL's parser sets keys that the file lacks, too; other words as they are.

    An unknown key is rejected when the result is read into AReaL's dataclasses.
    """
    return word if word.startswith(("+", "~", "-")) or "=" not in word else f"++{word}"


def _flat(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{place}.{key}" if place else str(key), inner)
    else:
        yield place, value
