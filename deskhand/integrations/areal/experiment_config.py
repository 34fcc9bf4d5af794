"""AReaL's experiment config with a `deskhand` section.

Loaded by AReaL's own `load_expr_config`; `settings` validates the section. Importable without AReaL, because workers
must find the class.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

try:
    from areal.api.cli_args import PPOConfig  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError:

    @dataclass
    class PPOConfig:  # without AReaL nothing is loaded into it
        pass


@dataclass
class DataSection:
    """Data rows: a file, or task families."""

    path: str | None = None
    """JSON-lines file, one row per line."""
    families: list[str] = field(default_factory=list)
    count: int = 64
    first: int = 0
    """First variant of each family."""


@dataclass
class DeskhandSection:
    """Deskhand's settings in an AReaL experiment."""

    workflow: dict[str, Any] = field(default_factory=dict)
    """Settings of the workflow (`WorkflowSettings`)."""
    workflow_class: str = "deskhand.integrations.areal.workflow.OSWorldWorkflow"
    """Import path of the workflow, or of a plain agent, which AReaL runs behind its proxy."""
    train: DataSection = field(default_factory=DataSection)
    valid: DataSection | None = None
    servers: list[str] = field(default_factory=list)
    """host:port of running inference servers; if empty, AReaL starts its own."""
    cpu_inference_server: bool = False
    """Whether `deskhand train` starts an inference server that needs no GPU (`cpu_server`)."""


@dataclass
class DesktopExperiment(PPOConfig):  # pyright: ignore[reportGeneralTypeIssues]
    deskhand: DeskhandSection = field(default_factory=DeskhandSection)
    profiles: dict[str, Any] = field(default_factory=dict)
    """Named sets of overrides, selected by `deskhand train --profile`."""
