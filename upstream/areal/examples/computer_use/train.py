# SPDX-License-Identifier: Apache-2.0

"""GRPO of a vision-language model that operates desktops (see README.md)."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parent))
from configs import ComputerUseConfig
from datasets import Dataset
from deskhand.tasks.task import seed_for

from areal import PPOTrainer
from areal.api.cli_args import load_expr_config

WORKFLOW = "deskhand.integrations.areal.workflow.OSWorldWorkflow"


def make_dataset(families: list[str], num_tasks: int) -> Dataset:
    """One row per task: a family and the seed of one of its variants."""
    rows = []
    for number in range(num_tasks):
        family = families[number % len(families)]
        seed = seed_for("train", number // len(families))
        rows.append({"family": family, "seed": seed})
    return Dataset.from_list(rows)


def main(args):
    config, _ = load_expr_config(args, ComputerUseConfig)
    if not config.families:
        raise ValueError("families: name at least one task family")
    workflow_kwargs = {"settings": config.desktop, "gconfig": config.gconfig}
    with PPOTrainer(
        config, train_dataset=make_dataset(config.families, config.num_tasks)
    ) as trainer:
        trainer.train(
            workflow=WORKFLOW,
            workflow_kwargs=workflow_kwargs,
            eval_workflow=WORKFLOW,
            eval_workflow_kwargs=workflow_kwargs,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
