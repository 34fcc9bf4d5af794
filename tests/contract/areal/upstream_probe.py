"""Runs in AReaL's own environment: `upstream/areal/examples/computer_use`, with running inference servers in place of
those that AReaL starts on GPUs.

`python upstream_probe.py EXAMPLE_FOLDER CHECKPOINT ADDRESS OUT_FOLDER` writes found.json.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any


def main(example: Path, checkpoint: str, address: str, out: Path) -> None:
    sys.path.insert(0, str(example))
    import train
    from areal.api.cli_args import load_expr_config

    from deskhand.integrations.areal.patches import ports, worker_launch
    from deskhand.integrations.areal.settings import WorkflowSettings
    from deskhand.integrations.areal.trainer import save_statistics, trainer_of
    from deskhand.integrations.areal.validate_budget import find_config_problems

    config = str(example / "config.yaml")
    places = [f"cluster.fileroot={out}", f"actor.path={checkpoint}", "scheduler.type=local"]
    large = load_expr_config(["--config", config, *places], train.ComputerUseConfig)[0]
    settings = WorkflowSettings.of(large.desktop, {})
    problems = find_config_problems({**asdict(large), "deskhand": {}}, settings)

    worker_launch.apply_launcher_patches()
    ports.use_random_ports()
    served, seconds = trainer_of([address]), []

    class Trainer(served):
        def __init__(self, config: Any, **named: Any) -> None:
            config.deskhand = type("Section", (), {"valid": None})  # what `trainer_of` asks for; no evaluation
            super().__init__(config, **named)
            save_statistics(self.stats_logger, out)
            seconds.append(self.scheduler.startup_timeout)

    train.PPOTrainer = Trainer
    small = [
        "total_train_steps=1",
        "train_dataset.batch_size=1",
        "num_tasks=64",
        "rollout.backend=sglang:d1p1t1",
        "rollout.max_concurrent_rollouts=1",
        "actor.backend=fsdp:d1p1t1",
        "actor.attn_impl=sdpa",
        "actor.dtype=float32",
        "actor.gradient_checkpointing=false",
        "actor.weight_update_mode=disk",
        "actor.mb_spec.max_tokens_per_mb=8192",
        "gconfig.max_new_tokens=32",
        "gconfig.max_tokens=4096",
        "actor.scheduling_spec=[{task_type: worker, port_count: 2, gpu: 0, cpu: 1, mem: 4, "
        "cmd: python3 -m deskhand.integrations.areal.worker}]",
        "~desktop.desktops",
        "+desktop.desktops={local: 4}",
        "desktop.loop={group_size: 4, max_group_retries: 2}",
        "~desktop.agent",
        "+desktop.agent={max_new_tokens: 32}",
        "desktop.engine={max_model_len: 4096}",
        "desktop.group_timeout_s=600",
    ]
    train.main(["--config", config, *places, *small])
    (line,) = (out / "areal_metrics.jsonl").read_text().splitlines()
    values = json.loads(line)
    update = "ppo_actor/update/"
    found = {
        "steps": values["step"],
        "grad_norm": values[f"{update}grad_norm"],
        "successful": values[f"{update}update_successful"],
        "behave_imp_weight": values[f"{update}behave_imp_weight/avg"],
        "problems": problems,
        "startup_timeout": seconds[0],
    }
    (out / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]))
    os._exit(0)
