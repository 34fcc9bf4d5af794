"""AReaL's Slurm scheduler starts workers as the experiment says; nothing is submitted here."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def scripts(found) -> dict[str, Any]:
    return found["slurm"].result()


def is_bash(script: str) -> bool:
    return subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_areal_alone_ignores_the_kind_of_container(scripts):
    """If this fails, `read_slurm_settings` is no longer needed."""
    assert "singularity exec" in scripts["before"]
    assert "/storage:/storage" in scripts["before"]


def test_workers_without_a_container_run_natively_with_their_variables(scripts):
    script = scripts["none"]
    assert is_bash(script)
    assert "singularity" not in script
    assert "export OMP_NUM_THREADS=4" in script
    assert "srun --unbuffered -K " in script
    assert "--mpi" not in script
    assert "deskhand.integrations.areal.worker" in script
    assert "#SBATCH --gres=gpu:8" in script


def test_workers_in_a_container_have_the_image_and_the_mounts_of_the_experiment(scripts):
    script = scripts["apptainer"]
    assert is_bash(script)
    assert "singularity exec" in script
    assert " --bind /shared:/shared " in script
    assert " /shared/areal.sif " in script
    assert "--env OMP_NUM_THREADS=4" in script
    assert Path("/storage").as_posix() not in script.replace("/shared", "")
