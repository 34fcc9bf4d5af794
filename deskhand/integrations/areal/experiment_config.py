"""AReaL's experiment with a section of ours. Invariant: a file that loads here loads by AReaL's own `load_expr_config`, and what
ours adds is checked by the same models as everywhere (`areal.settings`).

Importable without AReaL, as a module must be that AReaL's workers find a configuration's class in.
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
