"""The installations that docs/areal.md describes can be done: uv resolves each without downloading a wheel, and the one
for a CPU is made, with Deskhand's own wheel in it, and trains."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from areal_cpu_server import ROOT
from environments import python_of

REQUIREMENTS = ROOT / "requirements"
SOURCE = os.environ.get("DESKHAND_TEST_AREAL_SOURCE")
LINUX = ("--python-platform", "x86_64-manylinux_2_28")


@pytest.fixture(scope="module")
def uv() -> Path:
    return python_of("uv", "DESKHAND_TEST_AREAL").with_name("uv")


def resolved(uv: Path, *words: str | Path, version: str = "3.11") -> dict[str, str]:
    """Versions by name, of what uv finds for these inputs and options."""
    command = [uv, "pip", "compile", "--quiet", "--no-annotate", "--no-header", "--python-version", version]
    local = [word for path in os.environ.get("PIP_FIND_LINKS", "").split() for word in ("--find-links", path)]
    done = subprocess.run([*map(str, [*command, *local, *words])], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ")[0].split("==") for line in done.stdout.splitlines() if "==" in line)


def pins(name: str) -> dict[str, str]:
    lines = (REQUIREMENTS / name).read_text().splitlines()
    return dict(line.split(" ")[0].split("==") for line in lines if "==" in line and not line.startswith("#"))


def test_every_pin_of_the_processor_environment_exists(uv):
    found = resolved(uv, *LINUX, "--no-deps", REQUIREMENTS / "areal.txt")
    assert found["areal"] == "1.0.4"
    assert len(found) == len(pins("areal.txt"))


@pytest.mark.parametrize("version", ["3.11", "3.12"])
def test_the_gpu_environment_resolves_with_its_overrides(uv, version):
    words = ["--overrides", REQUIREMENTS / "areal-cuda.overrides", "--constraints", REQUIREMENTS / "areal-cuda.txt"]
    found = resolved(uv, *LINUX, *words, REQUIREMENTS / "areal-cuda.in", ROOT / "pyproject.toml", version=version)
    kept = pins("areal-cuda.txt")
    assert set(found) <= set(kept), "requirements/areal-cuda.txt is not what its inputs resolve to any more"
    chosen = ("areal", "torch", "sglang", "transformers", "openai", "peft", "rich")
    assert [found[name].split(".")[0] for name in chosen] == ["1", "2", "0", "5", "2", "0", "13"]
    assert found["nvidia-cudnn-cu12"] == "9.16.0.29"
    assert ("megatron-core" in found) == (version == "3.12")


def test_without_the_overrides_there_is_no_gpu_environment(uv, tmp_path):
    """When there is one, requirements/areal-cuda.overrides is not needed any more."""
    (tmp_path / "plain.in").write_text("areal[cuda]==1.0.4\n")
    with pytest.raises(AssertionError, match="No solution found"):
        resolved(uv, *LINUX, tmp_path / "plain.in")


@pytest.mark.parametrize("extra", [(), ("train",)])
def test_deskhand_fits_beside_the_released_areal(uv, tmp_path, extra):
    (tmp_path / "areal.in").write_text("areal==1.0.4\n")
    extras = [word for name in extra for word in ("--extra", name)]
    found = resolved(uv, *LINUX, *extras, ROOT / "pyproject.toml", tmp_path / "areal.in")
    assert (found["areal"], found["transformers"], found["peft"]) == ("1.0.4", "5.3.0", "0.18.1")


@pytest.mark.skipif(not SOURCE, reason="DESKHAND_TEST_AREAL_SOURCE names no source tree of AReaL with its uv.lock")
@pytest.mark.parametrize("version", ["3.11", "3.12"])
def test_deskhand_fits_into_the_environment_of_areal_s_own_lock(uv, tmp_path, version):
    """What docs/areal.md tells: the lock as constraints, so that nothing of AReaL's is replaced."""
    (command,) = re.findall(r"uv (export [^)>]*)\)? ", (ROOT / "docs" / "areal.md").read_text())
    lock = tmp_path / "lock.txt"
    with lock.open("w") as file:
        words = [str(uv), *command.split()]
        subprocess.run(words, cwd=SOURCE, stdout=file, stderr=subprocess.DEVNULL, check=True)
    found = resolved(uv, *LINUX, "--constraints", lock, ROOT / "pyproject.toml", version=version)
    pinned = r"^([a-z0-9-]+)==([^ ;]+) ;.*x86_64' and \(?sys_platform.*linux"
    kept = dict(re.findall(pinned, lock.read_text(), re.MULTILINE))
    assert {name: number for name, number in found.items() if name in kept and kept[name] != number} == {}
    assert found["openai"].startswith("2.")
    assert found["rich"].startswith("13.")


def test_a_wheel_in_areal_s_environment_needs_nothing_else_and_the_doctor_sees_it(found):
    made = found["installed"].result()
    code, said = made["doctor"]
    assert code == 0, said
    assert "Deskhand's requirements are met" in said
    assert re.search(rf"deskhand +\S+ from {re.escape(str(made['environment']))}", said) or "path_" in said
    assert "everything that a run imports" in said


def test_a_wheel_in_areal_s_environment_trains_to_its_report(found):
    made = found["installed"].result()
    assert made["steps"] == 1
    assert "deskhand-tiny" in made["report"]


def test_a_wheel_in_an_environment_of_its_own_hides_no_package_of_areal(found):
    """The folder on AReaL's PYTHONPATH holds Deskhand alone; the folder that holds the package has all the others."""
    made = found["installed"].result()
    assert made["beside"] == ["deskhand"]
    assert made["hidden"] == "no transformers", "AReaL would import the packages beside Deskhand"
