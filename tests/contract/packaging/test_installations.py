"""The wheel in environments of its own: on every supported Python that this machine has, and where no checkout is.

The normal run takes two versions; `DESKHAND_TEST_FULL=1` takes all.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from environments import ROOT, UNREACHABLE
from full import FULL

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
SMALL = ("loop.total_steps=1", "loop.groups_per_step=1", "loop.group_size=2", "evaluation.num_episodes=0")


def interpreter(version: str) -> Path | None:
    """A Python of this version with venv: on the path, of pyenv, or of Debian."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [*sorted(pyenv.glob(f"{version}.*/bin/python{version}")), shutil.which(f"python{version}")]
    for each in [sys.executable if sys.version.startswith(f"{version}.") else None, *found]:
        program = f"import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != ({version.replace('.', ', ')}))"
        if each and subprocess.run([each, "-c", program], capture_output=True, check=False).returncode == 0:
            return Path(each)
    return None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.iterdir())


def run(folder: Path, *words: str | Path, code: int = 0) -> str:
    """Standard output of a command in a folder without a checkout."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("DESKHAND_", "PYTHON"))}
    done = subprocess.run(list(map(str, words)), cwd=folder, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout


@pytest.mark.parametrize("version", VERSIONS if FULL else (VERSIONS[0], VERSIONS[-2]))
def test_the_wheel_works_on_every_supported_python(version: str, wheel: Path, tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"this machine has no Python {version} with venv")
    run(tmp_path, python, "-m", "venv", "venv")
    pip = [tmp_path / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-input", "--no-compile"]
    done = subprocess.run([*map(str, pip), str(wheel)], capture_output=True, text=True, check=False)
    if done.returncode != 0 and any(sign in done.stderr for sign in UNREACHABLE):
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    deskhand = tmp_path / "venv" / "bin" / "deskhand"
    assert "Train vision-language models" in run(tmp_path, deskhand, "--help")
    assert json.loads(run(tmp_path, deskhand, "tasks", "list", "--json"))
    assert json.loads(run(tmp_path, deskhand, "tasks", "resolve", "tiny_cpu", "--json"))["tasks"]
    assert "conformance" in run(tmp_path, deskhand, "actions", "--help")
    run(tmp_path, deskhand, "actions", "conformance", "qwen3_vl")
    own = {"PATH": os.defpath}
    done = subprocess.run(
        [str(deskhand), "train", "tiny_cpu", "new"], cwd=tmp_path, env=own, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.endswith("is not installed; pip install 'deskhand[train]'\n"), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["venv"]


def test_a_run_of_an_installed_package_begins_and_ends_outside_of_a_checkout(wheel: Path, tmp_path: Path) -> None:
    """The packages that the wheel needs are those of this Python; Deskhand itself is the wheel's."""
    run(tmp_path, sys.executable, "-m", "venv", "--without-pip", "venv")
    site = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = tmp_path / "venv" / "bin" / "python"
    assert run(tmp_path, python, "-c", "import deskhand; print(deskhand.__file__)").startswith(str(site))
    settings = [word for setting in SMALL for word in ("--set", setting)]
    told = run(tmp_path, python, "-m", "deskhand", "train", "tiny_cpu", "runs/mine", *settings)
    assert f"report: {tmp_path / 'runs' / 'mine' / 'report.html'}" in told
    assert (tmp_path / "runs" / "mine" / "report.html").is_file()
    found = json.loads(run(tmp_path, python, "-m", "deskhand", "diagnose", "runs/mine", "--json"))
    assert "training: step 1 of 1" in found["state"][0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "venv"]
