"""hadolint and shellcheck on the files in `deploy/`, from an environment of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from environments import python_of

DEPLOY = Path(__file__).parents[3] / "deploy"
SCRIPTS = sorted([*DEPLOY.glob("*.sh"), *DEPLOY.glob("*.sbatch")])


def checked(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(python_of("deploy").with_name(program)), *words]
    return subprocess.run(command, cwd=DEPLOY, capture_output=True, text=True, check=False)


def test_hadolint_accepts_the_dockerfile() -> None:
    done = checked("hadolint", "--failure-threshold", "info", "Dockerfile")
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_accepts_the_scripts(script: Path) -> None:
    done = checked("shellcheck", script.name)
    assert (done.returncode, done.stdout) == (0, "")


def test_both_find_what_is_wrong(tmp_path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM debian\nRUN cd /tmp && apt-get install curl\n")
    assert "DL3006" in checked("hadolint", str(tmp_path / "Dockerfile")).stdout
    (tmp_path / "a.sh").write_text("#!/bin/bash\nrm -rf $1/bin\n")
    assert "SC2086" in checked("shellcheck", str(tmp_path / "a.sh")).stdout
