"""AReaL's experiment with a section of ours. Invariant: a file that loads here loads by AReaL's own `load_expr_config`, and what
ours adds is checked by the same models as everywhere (`areal.settings`).

Importable without AReaL, as a module must be that AReaL's workers find a configuration's class in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from deskhand.errors import ConfigError

try:
    from areal.api.cli_args import PPOConfig  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError:

    @dataclass
    class PPOConfig:  # without AReaL nothing is loaded into it
        pass


FULL = "full"


@dataclass
class DataSection:
    """Rows of data: a file of them, or families of tasks."""

    path: str | None = None
    """JSON lines, one row each."""
    families: list[str] = field(default_factory=list)
    count: int = 64
    first: int = 0
    """The first variant of each family that is taken."""


@dataclass
class DeskhandSection:
    """What Deskhand is told in an experiment of AReaL."""

    workflow: dict[str, Any] = field(default_factory=dict)
    """`areal.settings.WorkflowSettings`."""
    workflow_class: str = "deskhand.integrations.areal.workflow.OSWorldWorkflow"
    """The workflow's import path, or that of a plain agent, which AReaL then runs behind its proxy."""
    train: DataSection = field(default_factory=DataSection)
    valid: DataSection | None = None
    servers: list[str] = field(default_factory=list)
    """host:port of inference servers that run already; none: AReaL starts its own."""
    cpu_inference_server: bool = False
    """Whether `deskhand train` starts an inference server that needs no GPU (`areal.serving`)."""


@dataclass
class DesktopExperiment(PPOConfig):  # pyright: ignore[reportGeneralTypeIssues]
    """AReaL's PPO experiment for desktops."""

    deskhand: DeskhandSection = field(default_factory=DeskhandSection)
    stages: dict[str, Any] = field(default_factory=dict)
    """Settings by the name of a stage, laid over the others by `deskhand train --stage`."""


def stage_overrides(path: Path, stage: str | None) -> list[str]:
    """The settings of a stage as overrides for AReaL's parser. Raises `ConfigError` when the file has no such stage."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: a config file is a mapping of keys to values")
    if stage in (None, FULL):
        return []
    stages = content.get("stages") or {}
    if stage not in stages:
        raise ConfigError(f"{path}: it has no stage '{stage}'; it has: {', '.join([*map(str, stages), FULL])}")
    return [f"{key}={_word(value)}" for key, value in _flat((), stages[stage])]


def _flat(keys: tuple[str, ...], value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat((*keys, str(key)), inner)
    else:
        yield "++" + ".".join(keys), value


def _word(value: Any) -> str:
    """As hydra reads a value on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(map(_word, value)) + "]"
    return str(value)
