# SPDX-License-Identifier: Apache-2.0

from dataclasses import dataclass, field
from typing import Any

from areal.api.cli_args import GRPOConfig


@dataclass
class ComputerUseConfig(GRPOConfig):
    """GRPO on desktop tasks."""

    desktop: dict[str, Any] = field(
        default_factory=dict,
        metadata={"help": "Settings of the workflow: model, desktops, agent, groups."},
    )
    families: list[str] = field(
        default_factory=list, metadata={"help": "Task families to train on."}
    )
    num_tasks: int = field(
        default=4096, metadata={"help": "Number of tasks, in turn of each family."}
    )
