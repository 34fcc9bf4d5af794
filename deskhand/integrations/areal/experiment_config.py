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
    """Data rows of a split: those of `deskhand.suite`, or of a file."""

    path: str | None = None
    """JSON-lines file, one row per line; a relative path starts where `deskhand train` was called."""
    skip_invalid: bool = False
    """Leave out rows of the file whose task cannot be loaded, with the reason, instead of refusing the run."""
    families: list[str] = field(default_factory=list)
    """Tasks, families or folders of the split; empty means all."""
    count: int | None = None
    """Number of rows; None is every task file once, or 64 rows of families with unlimited variants."""
    first: int = 0
    """First variant of each family."""


@dataclass
class DeskhandSection:
    """Deskhand's settings in an AReaL experiment."""

    workflow: dict[str, Any] = field(default_factory=dict)
    """Settings of the workflow (`WorkflowSettings`)."""
    workflow_class: str = "deskhand.integrations.areal.workflow.OSWorldWorkflow"
    """Import path of the workflow, or of a plain agent, which AReaL runs behind its proxy."""
    suite: dict[str, Any] = field(default_factory=dict)
    """Tasks, with the keys of the local trainer's `suite` section (`SuiteConfig`): `valid` gets the held-out ones."""
    device_memory_gib: float | None = None
    """Memory of each GPU that the plan must fit into; None does not check it."""
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
