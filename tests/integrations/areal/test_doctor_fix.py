"""`deskhand areal doctor --fix` on a made environment: what it mends works afterwards, and mending again changes
nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from pathlib import Path

import pytest

from deskhand.errors import ConfigError
from deskhand.integrations.areal import doctor
from deskhand.integrations.areal.launcher import worker_environment


@pytest.fixture
def made(tmp_path) -> tuple[Path, dict[str, str]]:
    """An environment with desktop-env, pydrive2 and SGLang by name; the compiler on PATH knows no C++20, another
    does."""
    folder, programs = tmp_path / "environment", tmp_path / "programs"
    venv.create(folder)
    packages = next((folder / "lib").glob("python3.*")) / "site-packages"
    for name in ("auth", "drive", "files"):
        (packages / "pydrive2").mkdir(exist_ok=True)
        (packages / "pydrive2" / f"{name}.py").write_text(f"class Google{name.title()}: pass\n_kept = '{name}'\n")
    (packages / "sglang").mkdir()
    (packages / "sglang" / "__init__.py").touch()
    for name, version in {"desktop_env": "1.0.2", "pydrive2": "1.21.3", "sglang": "0.5"}.items():
        (packages / f"{name}-{version}.dist-info").mkdir()
        (packages / f"{name}-{version}.dist-info" / "METADATA").write_text(
            f"Name: {name.replace('_', '-')}\nVersion: {version}\n"
        )
    programs.mkdir()
    for name, code in {"g++": 1, "gcc": 1, "g++-11": 1, "gcc-11": 1, "g++-12": 0, "gcc-12": 0}.items():
        (programs / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": str(programs), "DESKHAND_AREAL_PYTHON": str(folder / "bin" / "python")}
    environment.pop("CXX", None)
    return folder / "bin" / "python", environment


def kept(folder: Path) -> dict[str, str]:
    return {
        str(path): os.readlink(path) if path.is_symlink() else str(path.stat().st_mtime_ns)
        for path in folder.rglob("*")
    }


def test_pydrive2_answers_to_the_name_that_osworld_imports(made, tmp_path):
    python, environment = made
    program = (
        "from pydrive.auth import GoogleAuth; import pydrive.drive, pydrive2.drive; "
        "print(pydrive.drive is pydrive2.drive)"
    )
    assert subprocess.run([python, "-c", program], capture_output=True, check=False).returncode != 0
    assert len(doctor.install_fixes(environment)) == 2
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr


def test_workers_and_nvcc_find_a_compiler_that_takes_cpp20(made, tmp_path):
    python, environment = made
    path = worker_environment(python, environment)["PATH"]
    assert not doctor._compiles_cpp20(str(shutil.which("g++", path=path)))
    doctor.install_fixes(environment)
    for name in ("g++", "gcc", "c++", "cc"):
        found = Path(str(shutil.which(name, path=path)))
        assert found.parent == python.parent
        assert found.resolve().name == ("g++-12" if "+" in name else "gcc-12")


def test_fixing_again_changes_nothing_and_a_half_written_fix_is_finished(made, tmp_path):
    python, environment = made
    doctor.install_fixes(environment)
    before = kept(python.parents[1])
    assert doctor.install_fixes(environment) == []
    assert kept(python.parents[1]) == before
    shim = next(python.parents[1].glob("lib/python3.*/site-packages/pydrive/__init__.py"))
    shim.write_text("")
    assert len(doctor.install_fixes(environment)) == 1
    assert shim.read_text() == doctor.SHIM


def test_an_environment_s_own_compiler_and_pydrive_are_left_alone(made, tmp_path):
    python, environment = made
    (python.parent / "g++").write_text("#!/bin/sh\nexit 1\n")
    (python.parent / "g++").chmod(0o755)
    packages = next((python.parents[1] / "lib").glob("python3.*")) / "site-packages"
    (packages / "PyDrive-1.3.1.dist-info").mkdir()
    with pytest.raises(ConfigError, match=r"compiler without C\+\+20 support"):
        doctor.install_fixes(environment)
    assert not (packages / "pydrive").exists()


def test_the_finding_follows_what_is_there(made, tmp_path):
    python, environment = made
    said = {"executable": str(python), "desktop-env": "1.0.2", "pydrive": None, "pydrive2": None}
    assert "pip install pydrive2" in doctor._pydrive(said).fix
    said["pydrive2"] = "1.21.3"
    assert doctor._pydrive(said).fix == "deskhand areal doctor --fix"
    doctor.install_fixes(environment)
    assert doctor._pydrive(said).ok
