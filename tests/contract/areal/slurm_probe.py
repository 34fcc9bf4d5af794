"""Runs in AReaL's own environment: the batch scripts that AReaL's Slurm scheduler would submit, for an experiment.

`python slurm_probe.py EXPERIMENT OUT_FOLDER`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ENV = "{task_type: worker, port_count: 2, gpu: 1, cpu: 4, mem: 32, cmd: python3 -m deskhand.integrations.areal.worker, "
KINDS = {
    "none": ENV + "container_type: none, srun_additional_args: '--unbuffered -K', env_vars: {OMP_NUM_THREADS: 4}}",
    "apptainer": ENV + "image: /shared/areal.sif, mount: '/shared:/shared', env_vars: {OMP_NUM_THREADS: 4}}",
}


def main(experiment: str, out: str) -> None:
    from areal.infra.scheduler.slurm import SlurmScheduler

    from deskhand.integrations.areal.entrypoint import load
    from deskhand.integrations.areal.patches.worker_launch import read_slurm_settings

    def script(kind: str) -> str:
        folder = Path(out) / kind
        config = load([
            "--config", experiment, f"cluster.fileroot={folder}", "scheduler.type=slurm", "cluster.n_nodes=2",
            "actor.backend=fsdp:d8p1t1", f"actor.scheduling_spec=[{KINDS[kind]}]",
        ])  # fmt: skip
        made = SlurmScheduler(exp_config=config)
        return made._generate_sbatch_script("actor", 8, 1, 8, 4, 32768, config.actor.scheduling_spec, None, None)

    before = script("none")
    read_slurm_settings()
    found = {"before": before, **{kind: script(kind) for kind in KINDS}}
    (Path(out) / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
